package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// randomTrace writes a trace of n jobs that do not fit at once.
func randomTrace(t testing.TB, seed uint64, n int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace.csv")
	text := "submit,runtime,gpus,cpus,memory,user,priority\n"
	d := draws{seed}
	at := 0
	for range n {
		at += d.intn(120)
		g := 1 << d.intn(5)
		text += fmt.Sprintf("%d,%d,%d,%d,%d,u%d,%d\n", at, 10+d.intn(3000), g, g*(1+d.intn(4)), g*1024, d.intn(4), 50+10*d.intn(2))
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A pass over the jobs that room given back may serve decides as one over all that wait: every job starts and ends at the
// same moment.
func TestSkippingDecidesAlike(t *testing.T) {
	passes := [2]float64{}
	for seed := uint64(1); seed <= 4; seed++ {
		trace := randomTrace(t, seed, 150)
		for _, p := range []string{"fcfs+greedy", "priority+greedy+worst-fit", "fair+greedy", "fcfs+none"} {
			var ends [2]map[string]string
			for k, whole := range []bool{false, true} {
				rules, err := RulesFor(p)
				if err != nil {
					t.Fatal(err)
				}
				kinds, err := ParseNodes("3x8/cpu=20")
				if err != nil {
					t.Fatal(err)
				}
				o := &Options{Trace: trace}
				src, err := openJobs(o, rules, kinds)
				if err != nil {
					t.Fatal(err)
				}
				cfg := Config{Nodes: BuildNodes(kinds), Source: src, Whole: whole}
				if err := rules.Apply(&cfg); err != nil {
					t.Fatal(err)
				}
				ends[k] = map[string]string{}
				cfg.Hooks.Ended = func(_ *Engine, l *Live) {
					ends[k][l.Key.ID] = fmt.Sprint(Since(l.Start), Since(l.End))
				}
				e := NewEngine(cfg)
				if err := e.Run(context.Background()); err != nil {
					t.Fatal(err)
				}
				src.Close()
				passes[k] += float64(e.stats.Decided)
			}
			for id, was := range ends[1] {
				if ends[0][id] != was {
					t.Fatalf("seed %d, %s: job %s ran %s, with every job in every pass %s", seed, p, id, ends[0][id], was)
				}
			}
		}
	}
	if passes[0]*2 > passes[1] {
		t.Errorf("skipping decided about %.0f workloads, without it %.0f: nothing was skipped", passes[0], passes[1])
	}
	t.Logf("decided about %.0f workloads instead of %.0f", passes[0], passes[1])
}
