package sim

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// intn returns a number uniform in [0,n).
func (d *draws) intn(n int) int { return int(d.next() % uint64(n)) }

// list is a Source of jobs made by a test.
type list struct {
	jobs []*Job
	at   int
}

func (l *list) Next() (*Job, error) {
	if l.at == len(l.jobs) {
		return nil, io.EOF
	}
	l.at++
	return l.jobs[l.at-1], nil
}

func gpuJob(name string, at, run time.Duration, gpus int64) *Job {
	return &Job{At: at, Run: run, Job: &structs.Job{ID: name, Type: structs.JobBatch, Priority: 50, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
		Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: Driver,
			Resources: structs.Resources{CPU: 1, MemoryMiB: 1, GPU: []structs.GPURequest{{Count: gpus}}}}}}}}}
}

func nodes(t *testing.T, spec string) []*structs.Node {
	t.Helper()
	k, err := ParseNodes(spec)
	if err != nil {
		t.Fatal(err)
	}
	return BuildNodes(k)
}

// Three jobs on two GPUs, by hand.
func TestEngineByHand(t *testing.T) {
	var log string
	cfg := Config{Nodes: nodes(t, "1x2"), Policy: policy.Builtin["first-fit"], Source: &list{jobs: []*Job{
		gpuJob("a", 0, 10*time.Second, 2), gpuJob("b", 1*time.Second, 5*time.Second, 1), gpuJob("c", 2*time.Second, 6*time.Second, 1), gpuJob("d", 11*time.Second, time.Second, 2)}}}
	cfg.Hooks.Ended = func(e *Engine, l *Live) {
		log += fmt.Sprintf("%s %v-%v; ", l.Key.ID, Since(l.Start), Since(l.End))
	}
	e := NewEngine(cfg)
	if err := e.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if want := "a 0s-10s; b 10s-15s; c 10s-16s; d 16s-17s; "; log != want {
		t.Errorf("got  %s\nwant %s", log, want)
	}
	s := e.Stats()
	if got := s.Wait.Sum; got != 9+8+5 {
		t.Errorf("waited %v s in all, want 22", got)
	}
	if got, want := s.Makespan(), 17.0; got != want {
		t.Errorf("makespan %v", got)
	}
	if got, want := s.Utilisation(), (20+5+6+2)/(2*17.0); got != want {
		t.Errorf("utilisation %v, want %v", got, want)
	}
}

// The same trace and seed give the same metrics, independent of the machine's load.
func TestDeterminism(t *testing.T) {
	name := filepath.Join(t.TempDir(), "trace.csv")
	text := "submit,runtime,gpus,user\n"
	d := draws{3}
	for i := range 400 {
		text += fmt.Sprintf("%d,%d,%d,u%d\n", i*40, 10+d.intn(2000), 1<<d.intn(5), d.intn(4))
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &Options{Trace: name, Nodes: "3x8", MTBF: 24 * time.Hour, Checkpoint: 10 * time.Minute, RestartCost: 30 * time.Second, Seed: 5, Policies: []string{"default", "fcfs+fgd"}}
	var first []*Result
	for round := range 3 {
		o.Parallel = 1 + round
		rs, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = rs
			if v, _ := rs[0].Get("done"); v != 400 {
				t.Fatalf("%v jobs done", v)
			}
			if v, _ := rs[0].Get("node_failures"); v == 0 {
				t.Error("no node failed: the test shows nothing about failures")
			}
			continue
		}
		for i := range rs {
			for _, f := range first[i].Figures {
				if got, _ := rs[i].Get(f.Name); got != f.Value && f.Name != "wall_s" && f.Name != "overhead" {
					t.Errorf("%s: %s is %v, was %v", rs[i].Policy, f.Name, got, f.Value)
				}
			}
		}
	}
}
