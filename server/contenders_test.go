package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/sim"
	"github.com/muster-sched/muster/structs"
)

// traceJob is a job of a trace that a simulated cluster and a real server both run.
type traceJob struct {
	id       string
	at, run  time.Duration
	gpus     int64
	expected bool // the run time is declared
}

func (j *traceJob) job() *structs.Job {
	out := &structs.Job{Namespace: structs.NamespaceDefault, ID: j.id, Name: j.id, Type: structs.JobBatch, Priority: 50, Region: structs.RegionDefault,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Preemptible: true,
		Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: sim.Driver,
			Resources: structs.Resources{CPU: 1, MemoryMiB: 1, GPU: []structs.GPURequest{{Count: j.gpus}}}}}}}}
	if j.expected {
		out.Runtime.Expected = j.run
	}
	return out
}

type traceList struct{ left []*sim.Job }

func (l *traceList) Next() (*sim.Job, error) {
	if len(l.left) == 0 {
		return nil, io.EOF
	}
	j := l.left[0]
	l.left = l.left[1:]
	return j, nil
}

func traceNodes(t *testing.T, spec string) []*structs.Node {
	t.Helper()
	kinds, err := sim.ParseNodes(spec)
	if err != nil {
		t.Fatal(err)
	}
	return sim.BuildNodes(kinds)
}

// outcome is when a job ended, and how often it was preempted.
type outcome struct {
	end       time.Duration
	preempted int64
}

// simulated runs a trace in the simulator.
func simulated(t *testing.T, trace []traceJob, spec string) map[string]outcome {
	t.Helper()
	src, out := &traceList{}, map[string]outcome{}
	for i := range trace {
		src.left = append(src.left, &sim.Job{Job: trace[i].job(), At: trace[i].at, Run: trace[i].run, Size: 1000 * trace[i].gpus})
	}
	cfg := sim.Config{Nodes: traceNodes(t, spec), Source: src, Policy: policy.For(nil, structs.SchedulerConfig{}), Predict: sim.NewLearner(predict.NewSimilar())}
	cfg.Kept = func(_ *sim.Live, ran time.Duration) time.Duration { return ran } // though the jobs do not say so
	cfg.Hooks.Ended = func(e *sim.Engine, l *sim.Live) { out[l.Key.ID] = outcome{sim.Since(l.End), l.Preempted} }
	if err := sim.NewEngine(cfg).Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	return out
}

// lived runs a trace on a server.
func lived(t *testing.T, trace []traceJob, spec string, each func(s *Server)) map[string]outcome {
	t.Helper()
	s := testServer(t, nil)
	f := newFleet(t, one(s), 0)
	f.set(func() {
		f.keeps, f.prompt = true, true // some 0.2 s later, other work would be old enough to be preempted
		for _, n := range traceNodes(t, spec) {
			n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", n.Name, 0)
			mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
			mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
			f.nodes = append(f.nodes, n)
		}
		for i := range trace {
			f.runs[trace[i].id] = trace[i].run
		}
	})
	began := time.Now()
	for i := range trace {
		time.Sleep(time.Until(began.Add(trace[i].at)))
		register(t, s, trace[i].job())
		if each != nil {
			time.Sleep(time.Second)
			each(s)
		}
	}
	out := map[string]outcome{}
	waitFor(t, 1000*time.Hour, "the end of every job", func() bool {
		time.Sleep(time.Minute)
		for r := range s.Published().Snapshot.Acct() {
			out[r.JobID] = outcome{r.End.Sub(structs.LogTimeOf(began)), r.Preemptions}
		}
		return len(out) == len(trace)
	})
	return out
}

// TestOvertakesAsTheSimulator: short preemptible work takes the place of long work on a real server when, and as often
// as, the simulator says. The real path takes a moment longer, because agents look every 100 ms.
func TestOvertakesAsTheSimulator(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	traces := map[string][]traceJob{"by hand": {
		{id: "long", run: 3 * time.Hour, gpus: 4, expected: true},
		{id: "young", at: 20 * time.Second, run: 5 * time.Minute, gpus: 4, expected: true}, // waits until long has run for a minute
		{id: "short", at: 30 * time.Minute, run: 5 * time.Minute, gpus: 1, expected: true},
		{id: "unknown", at: 2 * time.Hour, run: 40 * time.Minute, gpus: 4},
	}}
	seeds := uint64(4)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		var list []traceJob
		at := time.Duration(0)
		for i := range 14 {
			list = append(list, traceJob{id: fmt.Sprint("j", i), at: at, run: time.Duration(90+r.IntN(6000)) * time.Second, gpus: 1 << r.IntN(3), expected: r.IntN(3) > 0})
			at += time.Duration(60+r.IntN(1500)) * time.Second
		}
		traces[fmt.Sprint("seed ", seed)] = list
	}
	for name, trace := range traces {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want := simulated(t, trace, "1x4")
				got := lived(t, trace, "1x4", func(s *Server) { replaysEqually(t, s) })
				stops := int64(0)
				for _, j := range trace {
					w, g := want[j.id], got[j.id]
					stops += w.preempted
					if d := g.end - w.end; d < -5*time.Second || d > 5*time.Second || g.preempted != w.preempted {
						t.Errorf("%s ends at %v after %d preemptions, in the simulator at %v after %d", j.id, g.end, g.preempted, w.end, w.preempted)
					}
				}
				if stops == 0 && name == "by hand" {
					t.Error("nobody was preempted")
				}
				t.Logf("%d preemptions", stops)
			})
		})
	}
}

// replaysEqually decides the dumped input of the newest pass again, and compares the plans.
func replaysEqually(t *testing.T, s *Server) {
	t.Helper()
	in := s.decide.Input(structs.NodePoolDefault)
	if in == nil {
		t.Fatal("no pass has run")
	}
	pol := policy.For(in.View.Pool(structs.NodePoolDefault), in.Config)
	live := *in
	live.Line = queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	want, _ := scheduler.Schedule(live, pol)
	b, err := scheduler.Dump(*in, pol.Name())
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := queue.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := scheduler.Schedule(again, pol)
	if !bytes.Equal(scheduler.AppendPlan(nil, want), scheduler.AppendPlan(nil, got)) {
		t.Errorf("a dump of an input with %d running contenders gives another plan:\n%+v\nwant\n%+v", len(in.Running), got, want)
	}
}
