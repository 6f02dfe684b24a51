package server

import (
	"cmp"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// periodicSavers are the agents of running work that saves its state at an interval.
type periodicSavers struct {
	s      *Server
	takes  map[string]time.Duration // by job: of each save; 0: it never writes a checkpoint
	asked  map[structs.AllocID]structs.LogTime
	saving map[structs.AllocID]structs.LogTime // since when
	count  map[structs.AllocID]int             // saves that have ended
	first  map[structs.AllocID]structs.LogTime
	most   int // at a time
}

func newPeriodicSavers(s *Server, takes map[string]time.Duration) *periodicSavers {
	return &periodicSavers{s: s, takes: takes, asked: map[structs.AllocID]structs.LogTime{}, saving: map[structs.AllocID]structs.LogTime{}, count: map[structs.AllocID]int{}, first: map[structs.AllocID]structs.LogTime{}}
}

// step does what agents do in a second.
func (x *periodicSavers) step(t *testing.T) {
	t.Helper()
	snap, now := x.s.Published().Snapshot, structs.LogTimeOf(time.Now())
	var up []structs.AllocObserved
	for a := range snap.Allocs() {
		takes, known := x.takes[a.JobID]
		if !known || a.Client != structs.ClientRunning {
			continue
		}
		interval := a.Job.Groups[0].Checkpoint.Interval
		if from := x.saving[a.ID]; from != 0 && now.Sub(from) >= max(takes, 9*time.Second) {
			delete(x.saving, a.ID)
			x.count[a.ID]++
			if takes > 0 {
				up = append(up, structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning, StartedAt: a.StartedAt, Saved: &structs.Saved{Time: now, Bytes: 1}})
			}
			continue
		}
		last := max(a.StartedAt, x.asked[a.ID])
		if a.Saved != nil {
			last = max(last, a.Saved.Time)
		}
		if x.saving[a.ID] != 0 || now.Sub(last) < interval {
			continue
		}
		turn, err := x.s.endpoints.NodeSaveTurn(t.Context(), nil, &methods.NodeSaveTurnRequest{NodeAuth: methods.NodeAuth{NodeID: a.NodeID}, AllocID: a.ID, Periodic: true})
		if err != nil {
			t.Fatal(err)
		}
		if !turn.Now {
			if turn.Where == "" && turn.Again <= 0 {
				t.Fatalf("it waits for nothing: %+v", turn)
			}
			continue
		}
		x.asked[a.ID], x.saving[a.ID] = now, now
		if turn.Due > 0 {
			x.asked[a.ID] = turn.Due
		}
		if x.first[a.ID] == 0 {
			x.first[a.ID] = now
		}
	}
	x.most = max(x.most, len(x.saving))
	if len(up) > 0 {
		mustApply(t, x.s, &structs.AllocObservedCommand{Updates: up})
	}
}

// TestPeriodicSavesInTurns: work that saves its state at an interval and started together saves in turns: never more than the
// limit at a time, a gang together, and everyone about once an interval. A save lasts nearly as long as its grace, and some
// programs never write a checkpoint that is seen.
func TestPeriodicSavesInTurns(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	const interval = 10 * time.Minute
	for _, c := range []struct {
		name         string
		alone, gangs int // allocations; gangs of 2
		limit        int64
		takes        time.Duration
		most         int
		least        int // saves of each; 0: one in each round but the first
	}{
		{"one at a time", 10, 0, 1, 9 * time.Second, 1, 0},
		{"slow", 9, 0, 1, 38 * time.Second, 1, 0},
		{"two at a time", 8, 4, 2, 15 * time.Second, 2, 0},
		{"three at a time, gangs of two", 3, 6, 3, 9 * time.Second, 3, 0},
		{"a gang larger than the limit", 4, 2, 1, 9 * time.Second, 2, 0},
		{"nobody sees their checkpoints", 8, 0, 1, 0, 1, 0},
		{"more than the storage serves in an interval", 36, 0, 1, 38 * time.Second, 1, 2},
		{"no limit", 8, 0, 0, 9 * time.Second, 8, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				newFleet(t, one(s), 3)
				if c.limit > 0 {
					limitSaving(t, s, 0, map[string]int64{"lustre1": c.limit})
				}
				agents := newPeriodicSavers(s, map[string]time.Duration{"alone": c.takes})
				job := saver("alone", c.alone, "lustre1")
				job.Groups[0].Checkpoint.Interval, job.Groups[0].Checkpoint.Grace = interval, 30*time.Second
				register(t, s, job)
				for i := range c.gangs {
					g := saver(fmt.Sprint("gang", i), 2, "lustre1")
					g.Groups[0].Checkpoint.Interval, g.Groups[0].Checkpoint.Grace = interval, 30*time.Second
					g.Groups[0].Gang = &structs.Gang{Min: 2}
					agents.takes[g.ID] = c.takes
					register(t, s, g)
				}
				waitFor(t, time.Minute, "work", func() bool { return running(s, "alone") == c.alone })
				const rounds = 6
				for range rounds * (interval + time.Minute) / time.Second {
					time.Sleep(time.Second)
					agents.step(t)
				}
				if agents.most != c.most {
					t.Errorf("%d saved at a time, want %d", agents.most, c.most)
				}
				if want := c.alone + 2*c.gangs; len(agents.count) != want {
					t.Errorf("%d of %d have saved", len(agents.count), want)
				}
				began := map[string]structs.LogTime{}
				for id, n := range agents.count {
					if least := cmp.Or(c.least, rounds-1); n < least || n > rounds {
						t.Errorf("%s saved %d times in %d intervals", id.Short(), n, rounds)
					}
					a := s.Published().Snapshot.AllocByID(id)
					if a.Job.Groups[0].Gang != nil {
						if at := began[a.JobID]; at != 0 && at != agents.first[id] {
							t.Errorf("members of %s began %s apart", a.JobID, at.Sub(agents.first[id]))
						}
						began[a.JobID] = agents.first[id]
					}
				}
			})
		})
	}
}

// TestEndingWorkSavesFirst: while work that must end waits for its turn, work that runs on does not save at its interval, and it
// does afterwards.
func TestEndingWorkSavesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		f.kill, f.asks = 9*time.Second, true
		limitSaving(t, s, 0, map[string]int64{"lustre1": 1})
		register(t, s, saver("ends", 8, "lustre1"))
		waitFor(t, time.Minute, "work", func() bool { return running(s, "ends") == 8 })
		other := testNode(7)
		mustApply(t, s, &structs.NodeRegisterCommand{Node: other})
		mustApply(t, s, &structs.NodeStatusCommand{ID: other.ID, Status: structs.NodeReady})
		f.set(func() { f.nodes = append(f.nodes, other) })
		job := saver("runs", 2, "lustre1")
		job.Constraints = []structs.Constraint{{LTarget: "${node.unique.name}", RTarget: other.Name, Operand: "="}}
		job.Groups[0].Checkpoint.Interval = time.Minute
		register(t, s, job)
		waitFor(t, time.Minute, "work", func() bool { return running(s, "runs") == 2 })
		agents := newPeriodicSavers(s, map[string]time.Duration{"runs": 9 * time.Second})
		time.Sleep(50 * time.Second)
		startDrain(t, s, f.nodes[0].ID, &structs.DrainStrategy{Deadline: 3 * time.Minute})
		waited, both := false, 0
		for range 420 {
			time.Sleep(time.Second)
			agents.step(t)
			if n := f.saving(s, "lustre1"); n > 0 {
				waited = true
				both = max(both, n+len(agents.saving))
			}
		}
		if !waited || both > 2 || len(agents.count) != 2 {
			t.Errorf("work saved at its end: %t; %d at a time, of which at most 1 had begun before the drain; %d of those that run on have saved", waited, both, len(agents.count))
		}
	})
}
