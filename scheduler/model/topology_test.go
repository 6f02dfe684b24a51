package model

import (
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestUniqueLevel: a level may be an attribute that the class of a node leaves out.
func TestUniqueLevel(t *testing.T) {
	var nodes []*structs.Node
	for i, chassis := range []string{"a", "b", "b", "c"} {
		nodes = append(nodes, &structs.Node{ID: structs.NodeID{byte(i + 1)}, Status: structs.NodeReady, Pool: structs.NodePoolDefault, Attributes: map[string]string{"unique.chassis": chassis}})
	}
	l := newTree(NewView(1, nodes, nil, nil), []string{"unique.chassis"}).Levels[0]
	if want := []int32{0, 1, 1, 2}; !slices.Equal(l.Of, want) || len(l.Names) != 3 {
		t.Errorf("nodes are in %v of %q, want %v", l.Of, l.Names, want)
	}
}
