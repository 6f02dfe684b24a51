package model

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Release times derived from the last ones of a node equal those computed from scratch, for work that comes, goes,
// outruns its prediction, has no end, or is asked to stop.
func TestTailOnward(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	made := 0
	for range 40 {
		n := &structs.Node{ID: structs.NodeID{1}}
		v := &View{memo: &memo{}}
		o, now, serial := Occupancy{}, structs.LogTime(int64(time.Hour)), uint64(0)
		for range 200 {
			now = now.Add(time.Duration(r.IntN(30)) * time.Second)
			for range 1 + r.IntN(12) {
				switch list := o.Hold.List(); {
				case len(list) > 80+r.IntN(40):
					o = o.Without(n, list[r.IntN(len(list))].ID)
				case len(list) > 0 && r.IntN(10) == 0: // another prediction
					h := *list[r.IntN(len(list))]
					h.Work.Expect = time.Duration(r.IntN(600)) * time.Second
					o = o.with(n, &h)
				default:
					serial++
					h := &Held{ID: structs.DeriveID[structs.AllocID](structs.Seed{}, "tail", "", serial), Need: structs.Vector{CPU: int64(1 + r.IntN(4))}}
					h.Work = HeldWork{Job: &structs.Job{Type: structs.JobBatch, Groups: []*structs.Group{{Name: "g"}}}, Group: "g", Began: now, Ending: r.IntN(400) == 0}
					if r.IntN(9) > 0 {
						h.Work.Job.Runtime.Limit = time.Duration(1+r.IntN(900)) * time.Second
					}
					if r.IntN(2) == 0 {
						h.Work.Expect = time.Duration(1+r.IntN(300)) * time.Second
					}
					o = o.with(n, h)
				}
			}
			last := v.memo.releases[0]
			got := v.ReleaseTimes(0, o.Hold, now)
			want := NewReleaseTimes(o.Hold, now, func(e *Held) structs.LogTime { return e.Work.Predicted(now) })
			if last.times != nil && last.times.onward(last.hold, o.Hold, now, func(e *Held) structs.LogTime { return e.Work.Predicted(now) }) != nil {
				made++
			}
			if !slices.Equal(got.Ends, want.Ends) || got.Stopping != want.Stopping || got.Devices != want.Devices || got.Until != want.Until {
				t.Fatalf("made from the last one: %d ends, told %v, until %v\nmade afresh: %d, %v, %v", len(got.Ends), got.Stopping, got.Until, len(want.Ends), want.Stopping, want.Until)
			}
			for _, k := range []int{0, len(got.Ends) / 2, len(got.Ends)} {
				used := o.Used
				for _, e := range got.Ends[:k] {
					used = used.Sub(e.Held.Need)
				}
				if x := got.After(n, o, k); x.Used != used || len(x.Hold.List()) != len(o.Hold.List())-k {
					t.Fatalf("when %d are over, %v is used by %d; want %v by %d", k, x.Used, len(x.Hold.List()), used, len(o.Hold.List())-k)
				}
			}
		}
	}
	if made < 1000 {
		t.Errorf("only %d tails were made from the last one", made)
	}
}
