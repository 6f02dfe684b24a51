package decide

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// endedState is a state that only has accounting records.
type endedState struct {
	*state.Store
	r  *rand.Rand
	n  int
	at structs.Index
}

// end writes accounting records and drops the oldest ones.
func (x *endedState) end(ended, dropped int) *state.Snapshot {
	for range ended {
		x.n++
		start := structs.LogTime(time.Duration(x.r.IntN(1000)) * time.Minute)
		state.Acct.Put(x.Store, &structs.AcctRecord{Namespace: "default", JobID: fmt.Sprint(x.n), CreateIndex: structs.Index(x.n), Queue: structs.QueuePath(fmt.Sprint("q", x.r.IntN(3))), Priority: 10 * x.r.IntN(10),
			Start: start, End: start.Add(time.Duration(x.r.IntN(1000)) * time.Minute), AllocTime: time.Duration(x.r.IntN(1000)) * time.Hour, Lost: int64(x.r.IntN(3)), Preemptions: int64(x.r.IntN(4))})
	}
	for range min(dropped, state.Acct.Len(x.Store)) {
		x.DropAcct()
	}
	x.at++
	x.CommitEntry(x.at)
	snap, _ := x.Publish(x.at)
	return snap
}

// plainEnded adds up all records.
func plainEnded(snap *state.Snapshot, j *structs.Job) (out structs.JobRisk) {
	for r := range snap.Acct() {
		out.AllocTime, out.Lost = out.AllocTime+r.AllocTime, out.Lost+r.Lost
		if r.Queue == j.QueueName() && r.Priority <= j.Priority {
			out.JobTime, out.Preempted = out.JobTime+r.Ran(), out.Preempted+r.Preemptions
		}
	}
	return out
}

// TestEndedSums: the sums are those of all records after jobs have ended and records were dropped, also for an older state and
// for another one.
func TestEndedSums(t *testing.T) {
	const seed = 20261128
	x := &endedState{state.New(state.Options{}), rand.New(rand.NewPCG(seed, 1)), 0, 1}
	var s endedSums
	var old *state.Snapshot
	most := 0
	for step := range 400 {
		snap := x.end(x.r.IntN(4), x.r.IntN(5)*(x.r.IntN(2)))
		switch x.r.IntN(20) {
		case 0:
			snap = x.end(0, 1000)
		case 1:
			snap = x.end(30, 0)
		case 2:
			if old != nil {
				snap = old
			}
		case 3:
			snap = (&endedState{state.New(state.Options{}), x.r, x.n, x.at}).end(5, 1)
		}
		if x.r.IntN(5) == 0 {
			old = snap
		}
		j := &structs.Job{Queue: structs.QueuePath(fmt.Sprint("q", x.r.IntN(4))), Priority: 10 * x.r.IntN(10)}
		got, want := *s.of(snap, j), plainEnded(snap, j)
		if got.AllocTime != want.AllocTime || got.Lost != want.Lost || got.JobTime != want.JobTime || got.Preempted != want.Preempted {
			t.Fatalf("seed %d, step %d: %+v, want %+v", seed, step, got, want)
		}
		most = max(most, snap.AcctCount())
	}
	if t.Logf("at most %d records", most); most < 20 {
		t.Error("that proves nothing")
	}
}

// BenchmarkRiskOf is what was measured of 100,000 jobs that ended, for a plan after one more has ended.
func BenchmarkRiskOf(b *testing.B) {
	j := &structs.Job{Queue: "q1", Priority: 50}
	for _, plain := range []bool{false, true} {
		b.Run(map[bool]string{false: "sums", true: "all records"}[plain], func(b *testing.B) {
			x := &endedState{state.New(state.Options{}), rand.New(rand.NewPCG(1, 1)), 0, 1}
			snap := x.end(structs.AcctKept, 0)
			var s endedSums
			s.of(snap, j)
			for b.Loop() {
				b.StopTimer()
				snap = x.end(1, 1)
				b.StartTimer()
				if plain {
					plainEnded(snap, j)
				} else {
					s.of(snap, j)
				}
			}
		})
	}
}
