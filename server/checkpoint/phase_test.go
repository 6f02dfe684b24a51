package checkpoint

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// sharedStorage is a storage whose saves share its bandwidth, and the agents of the work that writes to it at an interval.
type sharedStorage struct {
	*state.Store
	snap   *state.Snapshot
	index  structs.Index
	now    structs.LogTime
	alone  float64 // bytes per second of a save alone
	serves float64 // saves that are as fast as one alone
	agents []*savingAgent
}

type savingAgent struct {
	id     structs.AllocID
	last   structs.LogTime // its newest checkpoint, when the turn of its last save began, or its start
	due    structs.LogTime // since when it waits; 0: it does not
	asks   structs.LogTime // when it asks for its turn next
	from   structs.LogTime // since when it saves; 0: it does not
	bytes  float64         // of its save
	left   float64
	waited time.Duration
	saved  *structs.Saved // not reported yet
	report structs.LogTime
}

// onePeriodicSave is what became of a save.
type onePeriodicSave struct {
	at           structs.LogTime // when it was due
	waited, took time.Duration
	slow         float64 // how much longer it took than alone
	among        int     // saves at a time when it began
}

const (
	phaseInterval = 10 * time.Minute
	phaseSeen     = 5 * time.Second // after which an agent reports a checkpoint
)

// newSharedStorage starts jobs at one instant.
func newSharedStorage(jobs int, alone, serves float64, most int64) *sharedStorage {
	x := &sharedStorage{Store: state.New(state.Options{}), index: 1, now: structs.LogTime(1e18), alone: alone, serves: serves}
	x.Builtin()
	if most > 0 {
		state.Scheduler.Put(x.Store, &structs.SchedulerConfig{CheckpointStorage: map[string]int64{"lustre1": most}})
	}
	for i := range jobs {
		job := &structs.Job{Namespace: structs.NamespaceDefault, ID: fmt.Sprint("job", i), Type: structs.JobBatch, Groups: []*structs.Group{{Name: "g", Count: 1,
			Checkpoint: &structs.Checkpoint{Signal: "SIGUSR1", Grace: 5 * time.Minute, Interval: phaseInterval, Storage: "lustre1"}}}}
		state.Jobs.Put(x.Store, job)
		a := &structs.Allocation{ID: structs.AllocID{byte(1 + i)}, Namespace: job.Namespace, JobID: job.ID, Job: job, Group: "g", NodeID: structs.NodeID{1},
			Desired: structs.DesiredRun, Client: structs.ClientRunning, CreateTime: x.now, StartedAt: x.now}
		x.PutAlloc(a)
		// Checkpoints of one size differ a little in time.
		x.agents = append(x.agents, &savingAgent{id: a.ID, last: x.now, bytes: alone * float64(9000+200*(i%11)) / 1000})
	}
	x.commit()
	return x
}

func (x *sharedStorage) commit() {
	x.index++
	x.CommitEntry(x.index)
	x.snap, _ = x.Publish(x.index)
}

// run lets time pass, and calls f for each save that ends.
func (x *sharedStorage) run(d time.Duration, f func(onePeriodicSave)) {
	for end := x.now.Add(d); x.now < end; x.now = x.now.Add(time.Second) {
		saving, changed := 0, false
		for _, g := range x.agents {
			if g.from != 0 {
				saving++
			}
		}
		each := x.alone * min(1, x.serves/float64(max(saving, 1)))
		for _, g := range x.agents {
			if g.from == 0 {
				continue
			}
			if g.left -= each; g.left > 0 {
				continue
			}
			took := x.now.Sub(g.from)
			g.saved, g.report = &structs.Saved{Time: x.now, Bytes: int64(g.bytes), Took: took}, x.now.Add(phaseSeen)
			f(onePeriodicSave{at: g.from.Add(-g.waited), waited: g.waited, took: took, slow: took.Seconds() / (g.bytes / x.alone), among: saving})
			g.from = 0
		}
		for _, g := range x.agents {
			if g.saved != nil && x.now >= g.report {
				a := *x.snap.AllocByID(g.id)
				a.Saved = g.saved
				x.PutAlloc(&a)
				g.last, g.saved, changed = max(g.last, g.saved.Time), nil, true
			}
		}
		if changed {
			x.commit()
		}
		var line Periodic
		for _, g := range x.agents {
			if g.from != 0 || g.saved != nil || x.now.Sub(g.last) < phaseInterval || x.now < g.asks {
				continue
			}
			if g.due == 0 {
				g.due = x.now
			}
			if line == nil {
				line = NewPeriodic(x.snap, NewLine(x.snap), x.now)
			}
			wait, at, again := line.Turn(g.id, x.now)
			if wait != nil && x.now.Sub(g.due) < phaseInterval {
				g.asks = x.now.Add(again)
				continue
			}
			g.waited, g.last, g.from, g.left = x.now.Sub(g.due), max(at, x.now), x.now, g.bytes
			g.due = 0
		}
	}
}

// TestPeriodicSavesFindTheirPhase starts 20 jobs at one instant that save their state at an interval to one storage. It serves
// 2.5 saves as fast as one. They save at one instant only until the storage is measured, and stay apart from then on.
func TestPeriodicSavesFindTheirPhase(t *testing.T) {
	for _, c := range []struct {
		name   string
		most   int64
		serves float64
	}{
		{"not configured", 0, 2.5},
		{"not configured, serves one", 0, 1},
		{"not configured, serves all", 0, 30},
		{"configured", 3, 2.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newSharedStorage(20, 200<<20, c.serves, c.most)
			const hours, learns = 4, 1
			for h := range hours {
				var waited, longest time.Duration
				var slow, slowest float64
				n, most := 0, 0
				x.run(time.Hour, func(s onePeriodicSave) {
					n++
					waited, longest = waited+s.waited, max(longest, s.waited)
					slow, slowest = slow+s.slow, max(slowest, s.slow)
					most = max(most, s.among)
				})
				t.Logf("hour %d: %d saves, at most %d at a time, %.2f times as long as alone (at most %.2f), waited %v (at most %v)", h+1, n, most, slow/float64(n), slowest, waited/time.Duration(n), longest)
				if h < learns {
					continue
				}
				if slowest > 2.5 || most > int(c.serves)+1 && c.serves < 20 {
					t.Errorf("hour %d: a save took %.2f times as long as alone, of %d at a time", h+1, slowest, most)
				}
				if mean := waited / time.Duration(n); mean > 2*time.Second || longest > turnOverhead {
					t.Errorf("hour %d: a save waited for %v, at most for %v", h+1, mean, longest)
				}
				if least := 20 * int(time.Hour/(phaseInterval+time.Minute)); n < least {
					t.Errorf("hour %d: %d saves, want at least %d", h+1, n, least)
				}
			}
		})
	}
}
