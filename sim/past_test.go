package sim

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

func figure(t *testing.T, r *Result, name string) float64 {
	t.Helper()
	v, ok := r.Get(name)
	if !ok {
		t.Fatalf("no figure %s", name)
	}
	return v
}

// A cluster's past is replayed: two jobs of 8 GPUs that ran side by side on two nodes wait for each other on one.
func TestAcct(t *testing.T) {
	rec := func(id string, submit, start, end int64) map[string]any {
		const s = int64(time.Second)
		return map[string]any{"ID": id, "JobID": id, "User": "ann", "Type": "batch", "Priority": 50, "SubmitTime": submit * s, "StartTime": start * s, "EndTime": end * s,
			"GPUs": 8.0, "CPU": 1000, "MemoryMiB": 1024, "Longest": (end - start) * s}
	}
	b, err := json.MarshalIndent([]any{rec("late", 2010, 2010, 2110), rec("early", 2000, 2001, 2101), map[string]any{"ID": "never", "SubmitTime": 1}}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "acct.json")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for spec, wait := range map[string]float64{"2x8": 0, "1x8": 45} {
		rs, err := Run(context.Background(), &Options{Trace: name, Nodes: spec, Policies: []string{"fcfs+easy"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := figure(t, rs[0], "mean_wait"); got != wait || figure(t, rs[0], "done") != 2 {
			t.Errorf("%s: mean wait %v of %v jobs, want %v of 2", spec, got, figure(t, rs[0], "done"), wait)
		}
	}
}

// A snapshot taken in the middle of a run is replayed to the end: running and waiting jobs all complete, at the same
// time as in the original run, because limits give the run times.
func TestSnapshot(t *testing.T) {
	name := filepath.Join(t.TempDir(), "dump")
	trace := filepath.Join(t.TempDir(), "trace.csv")
	text := "submit,runtime,gpus,limit\n0,1000,8,1000\n0,2000,8,2000\n10,500,16,500\n20,100,4,100\n"
	if err := os.WriteFile(trace, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	rules, err := RulesFor("fcfs+greedy")
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := ParseNodes("2x8")
	if err != nil {
		t.Fatal(err)
	}
	src, err := openJobs(&Options{Trace: trace}, rules, kinds)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	cfg := Config{Nodes: BuildNodes(kinds), Source: src, Whole: true}
	if err := rules.Apply(&cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Hooks.Passed = func(e *Engine, in *scheduler.Input, _ *scheduler.Plan, _ *scheduler.Report) {
		if Since(e.Now()) == 20*time.Second {
			b, err := scheduler.Dump(*in, structs.AlgorithmDefault)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	e := NewEngine(cfg)
	if err := e.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	rs, err := Run(context.Background(), &Options{Format: "snapshot", Trace: name, Policies: []string{"fcfs+greedy"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := figure(t, rs[0], "done"); got != 4 {
		t.Errorf("%v jobs done of 4 that ran or waited", got)
	}
	if got, want := figure(t, rs[0], "makespan")+20, e.Stats().Makespan(); got != want {
		t.Errorf("all done after %v s, in the run that went on after %v", got, want)
	}
}
