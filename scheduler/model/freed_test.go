package model

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestMostInUse: work is in the way from its placement on, not from the start of its tasks, and what a pass places takes
// room that has been free.
func TestMostInUse(t *testing.T) {
	now := structs.LogTime(100 * time.Hour)
	ago := func(d time.Duration) structs.LogTime { return now.Add(-d) }
	cpu := structs.Vector{CPU: 4000}
	gone := []*Freed{{From: ago(time.Hour), At: ago(50 * time.Second), Need: cpu}}
	for _, c := range []struct {
		name   string
		placed structs.LogTime
		began  structs.LogTime
		waits  bool
		want   int64
	}{
		{"placed before, its image took until 45 s ago", ago(100 * time.Second), ago(45 * time.Second), false, 4000},
		{"placed after the other ended", ago(45 * time.Second), ago(45 * time.Second), false, 0},
		{"placed by this pass", 0, 0, false, 0},
		{"waited for the other", ago(100 * time.Second), ago(45 * time.Second), true, 0},
	} {
		h := &Held{ID: structs.AllocID{1}, Need: cpu, Work: HeldWork{Placed: c.placed, Began: c.began}}
		if c.waits {
			h.Rare = &HeldRare{Waits: []structs.AllocID{{9}}}
		}
		n := &structs.Node{ID: structs.NodeID{1}}
		var o Occupancy
		if got := mostInUse(gone, o.with(n, h).Hold, ago(time.Minute)).CPU; got != c.want {
			t.Errorf("%s: %d MHz more were in use than now, want %d", c.name, got, c.want)
		}
	}
}
