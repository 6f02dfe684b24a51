package fsm

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// TestSigningKeysEnd: a key is published for as long as a token signed with it may be valid, and the rotation after that
// forgets it.
func TestSigningKeysEnd(t *testing.T) {
	c := newCluster(t, 0)
	add := func(id string, at structs.LogTime) {
		t.Helper()
		data, err := Encode(structs.Command{Time: at, Body: &structs.SigningKeyCommand{Key: &structs.SigningKey{ID: id, Algorithm: "RS256", Public: []byte{1}}}}, feature.Newest)
		if err != nil {
			t.Fatal(err)
		}
		c.index++
		if res, _, _ := c.f.ApplyBatch([]Entry{{Index: c.index, Data: data}}); res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
	}
	const ended = structs.LogTime(1_700_000_000_000_000_000)
	add("a", ended-1)
	add("b", ended)
	a := state.SigningKeys.Get(c.f.Snapshot(), "a")
	if a.Active || a.EndedAt != ended {
		t.Fatalf("after a rotation: %+v", a)
	}
	last := ended.Add(structs.IdentityTTLMax)
	if !a.Published(last-1) || a.Published(last) {
		t.Error("the key is not published until its last token expires, or for longer")
	}
	add("c", last-1)
	if state.SigningKeys.Get(c.f.Snapshot(), "a") == nil {
		t.Error("a key is forgotten that verifies tokens")
	}
	add("d", last.Add(time.Hour))
	if state.SigningKeys.Get(c.f.Snapshot(), "a") != nil || state.SigningKeys.Get(c.f.Snapshot(), "c") == nil {
		t.Error("the wrong keys are forgotten")
	}
}
