package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// The tail of a node that is made from its last one is the one that is made afresh: with work that comes, goes, outruns its
// prediction, has no end, or is told to stop.
func TestTailOnward(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	made := 0
	for range 40 {
		n := &structs.Node{ID: structs.NodeID{1}}
		v := &View{memo: &memo{}}
		o, now, serial := occupancy{}, structs.LogTime(int64(time.Hour)), uint64(0)
		for range 200 {
			now = now.Add(time.Duration(r.IntN(30)) * time.Second)
			for range 1 + r.IntN(12) {
				switch list := o.hold.list(); {
				case len(list) > 80+r.IntN(40):
					o = o.without(n, list[r.IntN(len(list))].ID)
				case len(list) > 0 && r.IntN(10) == 0: // another prediction
					h := *list[r.IntN(len(list))]
					h.work.expect = time.Duration(r.IntN(600)) * time.Second
					o = o.with(n, &h)
				default:
					serial++
					h := &held{ID: structs.DeriveID[structs.AllocID](structs.Seed{}, "tail", "", serial), need: structs.Vector{CPU: int64(1 + r.IntN(4))}}
					h.work = heldWork{job: &structs.Job{Type: structs.JobBatch, Groups: []*structs.Group{{Name: "g"}}}, group: "g", began: now, ending: r.IntN(400) == 0}
					if r.IntN(9) > 0 {
						h.work.job.Runtime.Limit = time.Duration(1+r.IntN(900)) * time.Second
					}
					if r.IntN(2) == 0 {
						h.work.expect = time.Duration(1+r.IntN(300)) * time.Second
					}
					o = o.with(n, h)
				}
			}
			last := v.memo.releases[0]
			got := v.releaseTimes(0, o.hold, now)
			want := newReleaseTimes(o.hold, now, func(e *held) structs.LogTime { return e.work.foreseen(now) })
			if last.times != nil && last.times.onward(last.hold, o.hold, now, func(e *held) structs.LogTime { return e.work.foreseen(now) }) != nil {
				made++
			}
			if !slices.Equal(got.ends, want.ends) || got.told != want.told || got.devices != want.devices || got.until != want.until {
				t.Fatalf("made from the last one: %d ends, told %v, until %v\nmade afresh: %d, %v, %v", len(got.ends), got.told, got.until, len(want.ends), want.told, want.until)
			}
			for _, k := range []int{0, len(got.ends) / 2, len(got.ends)} {
				used := o.used
				for _, e := range got.ends[:k] {
					used = used.Sub(e.held.need)
				}
				if x := got.after(n, o, k); x.used != used || len(x.hold.list()) != len(o.hold.list())-k {
					t.Fatalf("when %d are over, %v is used by %d; want %v by %d", k, x.used, len(x.hold.list()), used, len(o.hold.list())-k)
				}
			}
		}
	}
	if made < 1000 {
		t.Errorf("only %d tails were made from the last one", made)
	}
}
