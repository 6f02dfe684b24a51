package sim

import (
	"context"
	"math"
	"os"
	"testing"
)

const muriTraces = "testdata/traces/philly-muri/"

// replayMuri runs a trace on the study's 8 nodes of 8 GPUs.
func replayMuri(t *testing.T, trace, policy, durations string, limit int64) *Result {
	t.Helper()
	r, err := muriFormat{}.Run(context.Background(), &Options{Trace: muriTraces + trace, Nodes: "8x8", Durations: durations, Limit: limit}, policy)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := r.Get("refused"); n != 0 {
		t.Errorf("%s %s: Verify refused %v parts: %v", trace, policy, n, r.Notes)
	}
	return r
}

// muriFigures are avg_jct and makespan in whole seconds.
func muriFigures(r *Result) (jct, makespan float64) {
	jct, _ = r.Get("avg_jct")
	makespan, _ = r.Get("makespan")
	return math.Round(jct), math.Round(makespan)
}

// The published policies come to the published figures, to the second. The longer trace is for make bench-quality.
func TestMuriPublishedFigures(t *testing.T) {
	for _, c := range []struct {
		trace, policy string
		jct, makespan float64
	}{
		{"trace3.csv", "srtf", 193082, 8174135},
		{"trace3.csv", "srsf", 185022, 8174135},
		{"trace3.csv", "2d-las", 347213, 8174226},
		{"trace1.csv", "srtf", 1370603, 26045466},
		{"trace1.csv", "srsf", 980141, 26065759},
		{"trace1.csv", "2d-las", 3330371, 23556410},
	} {
		t.Run(c.trace+" "+c.policy, func(t *testing.T) {
			if c.trace == "trace1.csv" && os.Getenv("MUSTER_WHOLE_LOGS") == "" {
				return
			}
			jct, makespan := muriFigures(replayMuri(t, c.trace, c.policy, "", 0))
			t.Logf("%s %-7s avg JCT %8.0f makespan %9.0f, published %8.0f %9.0f", c.trace, c.policy, jct, makespan, c.jct, c.makespan)
			if jct != c.jct || makespan != c.makespan {
				t.Errorf("%s %s: avg JCT %.0f, makespan %.0f; published %.0f, %.0f", c.trace, c.policy, jct, makespan, c.jct, c.makespan)
			}
		})
	}
}

// A cluster with default settings does better than the published policies that share no GPU: than SRSF with known run
// times, than Themis (trace1) and Tiresias (trace3) with unknown ones; and the widest jobs do not wait longer for it.
func TestMuriDefault(t *testing.T) {
	for _, c := range []struct {
		trace, durations string
		jct, makespan    float64 // published
		widest           float64 // p95 wait of 16 to 64 GPUs under the published policy, as replayed
	}{
		{"trace3.csv", "known", 185022, 8174135, 4903717},
		{"trace3.csv", "unknown", 347213, math.Inf(1), 5024653},
		{"trace1.csv", "known", 980141, 26065759, 1953931},
		{"trace1.csv", "unknown", 1823179, math.Inf(1), 15317983},
	} {
		if c.trace == "trace1.csv" && os.Getenv("MUSTER_WHOLE_LOGS") == "" {
			continue
		}
		r := replayMuri(t, c.trace, "default", c.durations, 0)
		jct, makespan := muriFigures(r)
		t.Logf("%s default, durations %-7s avg JCT %8.0f makespan %9.0f, published %8.0f %9.0f; wait p95 %v", c.trace, c.durations, jct, makespan, c.jct, c.makespan, r.Classes)
		widest := r.Classes[len(r.Classes)-1].Value
		if jct > c.jct || makespan >= c.makespan || widest > c.widest {
			t.Errorf("%s, durations %s: avg JCT %.0f, makespan %.0f, widest wait %.0f; want less than %.0f, %.0f, %.0f", c.trace, c.durations, jct, makespan, widest, c.jct, c.makespan, c.widest)
		}
		if n, _ := r.Get("preemptions"); n == 0 {
			t.Error("nothing was preempted")
		}
	}
}

func TestMuriErrors(t *testing.T) {
	for _, c := range []struct {
		name, trace, policy, durations string
	}{
		{"no such file", "none.csv", "srtf", ""},
		{"no such policy", "trace3.csv", "sjfx", ""},
		{"durations", "trace3.csv", "default", "perhaps"},
		{"srsf cannot do without run times", "trace3.csv", "srsf", "unknown"},
	} {
		if _, err := (muriFormat{}).Run(context.Background(), &Options{Trace: muriTraces + c.trace, Durations: c.durations}, c.policy); err == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
}
