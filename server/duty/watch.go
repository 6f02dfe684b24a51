package duty

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// lookPause is the delay from a change to the next look, because a busy cluster changes all the time.
const lookPause = 20 * time.Millisecond

// nodeWatch tracks the nodes that a duty looks at, and when it looks next.
type nodeWatch struct {
	wanted func(*structs.Node) bool
	nodes  []structs.NodeID // in order
	look   structs.LogTime  // 0: when something changes
}

func (w *nodeWatch) load(snap *state.Snapshot, now structs.LogTime) {
	w.nodes, w.look = nil, now
	for n := range snap.Nodes() {
		if w.wanted(n) {
			w.nodes = append(w.nodes, n.ID)
		}
	}
}

// feed updates the nodes, and schedules a look soon after a node, an allocation or a job has changed.
func (w *nodeWatch) feed(d *structs.Delta, now structs.LogTime) {
	for i := range d.Nodes {
		c := &d.Nodes[i]
		id := c.Either().ID
		at, have := slices.BinarySearchFunc(w.nodes, id, func(a, b structs.NodeID) int { return slices.Compare(a[:], b[:]) })
		want := c.After != nil && w.wanted(c.After)
		switch {
		case want && !have:
			w.nodes = slices.Insert(w.nodes, at, id)
		case !want && have:
			w.nodes = slices.Delete(w.nodes, at, at+1)
		}
	}
	if len(d.Nodes) > 0 || len(d.Allocs) > 0 || len(d.Jobs) > 0 {
		w.look = earlier(w.look, now.Add(lookPause))
	}
}

// due reports whether it is time to look. Without nodes it never is.
func (w *nodeWatch) due(now structs.LogTime) bool {
	if len(w.nodes) == 0 {
		w.look = 0
	}
	return w.look != 0 && w.look <= now
}
