package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// burstyLog writes a log of users who submit many like jobs at a time, more than the machine has room for.
func burstyLog(t testing.TB, seed uint64, jobs int) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "log.csv")
	text := "job,submit,run,procs,req,user\n"
	d := draws{seed}
	at := 0
	for n := 0; n < jobs; {
		at += d.intn(300)
		user, procs, req := d.intn(3), 1+d.intn(3)*d.intn(4), 200*(1+d.intn(2))
		for range 1 + d.intn(12) {
			at += d.intn(3) * d.intn(20)
			n++
			text += fmt.Sprintf("%d,%d,%d,%d,%d,%d\n", n, at, 1+d.intn(req), procs, req, user)
		}
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A replay that leaves out passes in which no waiting job has room starts every job at the same moment as one that makes
// them all.
func TestLeftOutPassesPlaceNothing(t *testing.T) {
	var passes [2]int64
	for seed := uint64(1); seed <= 8; seed++ {
		trace := burstyLog(t, seed, 150)
		for _, p := range []string{"default", "easy", "easy-sjbf", "easy-tsafrir", "easy-clair", "conservative", "fcfs+none", "sjf+greedy", "adaptive+conservative", "fair+easy"} {
			var starts [2]map[string]string
			for k := range starts {
				o := &Options{Trace: trace, Procs: 12}
				src, err := openSWFJobs(o)
				if err != nil {
					t.Fatal(err)
				}
				cfg, _, err := swfConfig(o, p, src)
				if err != nil {
					t.Fatal(err)
				}
				starts[k] = map[string]string{}
				cfg.Hooks.Ended = func(_ *Engine, l *Live) {
					starts[k][l.Key.ID] = fmt.Sprint(Since(l.Start))
				}
				cfg.LeaveOut = k == 0
				e := NewEngine(cfg)
				if err := e.Run(context.Background()); err != nil {
					t.Fatal(err)
				}
				src.Close()
				passes[k] += e.stats.Passes
			}
			for id, was := range starts[1] {
				if starts[0][id] != was {
					t.Fatalf("seed %d, %s: job %s started at %s; with every pass %s", seed, p, id, starts[0][id], was)
				}
			}
		}
	}
	if passes[0]*10 > passes[1]*9 {
		t.Errorf("%d passes, with none left out %d", passes[0], passes[1])
	}
	t.Logf("%d passes instead of %d", passes[0], passes[1])
}
