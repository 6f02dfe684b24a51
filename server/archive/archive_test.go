package archive

import (
	"bytes"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

func TestArchiveRoundTrip(t *testing.T) {
	meta := &raft.SnapshotMeta{Version: 1, ID: "2-9-1", Index: 9, Term: 2, Size: 5}
	var buf, state bytes.Buffer
	if err := Write(&buf, meta, strings.NewReader("state")); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&buf, &state)
	if err != nil || got.Index != 9 || got.Term != 2 || state.String() != "state" {
		t.Fatalf(`%+v %q %v; want got.Index = 9, got.Term = 2, state.String() = "state"`, got, state.String(), err)
	}
}
