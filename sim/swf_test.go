package sim

import (
	"compress/gzip"
	"context"
	"encoding/csv"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// swfTraces are the logs with published results: see the README next to them.
var swfTraces = []struct {
	file  string
	procs int64
	// What was published over the whole log: mean bounded slowdown with Tsafrir's prediction.
	tsafrir float64
	// The goals for the default, which knows no run times.
	goal float64
}{
	{"testdata/traces/swf/kth-sp2.csv.gz", 100, 62.86, 45},
	{"testdata/traces/swf/sdsc-sp2.csv.gz", 128, 65.06, 57},
}

// oracle reads the published wait of each job under a policy, by job.
func oracle(t testing.TB, file, column string) map[string]int64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for i, name := range rows[0] {
		if name == column {
			at = i
		}
	}
	if at < 0 {
		t.Fatalf("%s has no column %s", file, column)
	}
	out := make(map[string]int64, len(rows))
	for _, r := range rows[1:] {
		w, err := strconv.ParseInt(r[at], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		out[r[0]] = w
	}
	return out
}

// replaySWF runs a log, or its first jobs, and gives the figures and the wait of each job.
func replaySWF(t testing.TB, file string, procs, limit int64, policy string) (*Result, map[string]int64) {
	t.Helper()
	o := &Options{Trace: file, Procs: procs, Limit: limit}
	src, err := openSWFJobs(o)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	waits := map[string]int64{}
	r, err := runSWF(context.Background(), o, policy, src, func(l *Live) {
		waits[l.Key.ID] = int64(l.Start.Sub(l.Submit).Seconds())
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, waits
}

// wholeLogs reports whether the logs are replayed to their end: make bench-quality.
func wholeLogs() bool { return os.Getenv("MUSTER_WHOLE_LOGS") != "" }

// Every job waits for as long as the authors' simulator made it wait. Of a part of a log, those that were started before
// the last of the part arrived.
func TestSWFPublishedWaits(t *testing.T) {
	for _, tr := range swfTraces {
		for _, c := range []struct{ policy, column string }{{"easy", "wait_easy"}, {"easy-clair", "wait_easy_clair"}, {"easy-sjbf-clair", "wait_sjbf_clair"}} {
			limit := int64(3000)
			if testing.Short() {
				limit = 1500
			}
			if wholeLogs() {
				limit = 0
			}
			want := oracle(t, tr.file, c.column)
			submit := oracle(t, tr.file, "submit")
			r, got := replaySWF(t, tr.file, tr.procs, limit, c.policy)
			last := int64(math.MaxInt64)
			if limit > 0 {
				last = 0
				for job := range got {
					last = max(last, submit[job])
				}
			}
			compared, wrong := 0, 0
			for job, w := range got {
				if submit[job]+min(w, want[job]) >= last {
					continue // those that come later had a say
				}
				compared++
				if w != want[job] {
					if wrong++; wrong < 5 {
						t.Errorf("%s %s: job %s waits %d s, published %d", tr.file, c.policy, job, w, want[job])
					}
				}
			}
			if wrong > 0 || compared < 1400 {
				t.Errorf("%s %s: %d of %d jobs differ", tr.file, c.policy, wrong, compared)
			}
			v, _ := r.Get("avebsld")
			t.Logf("%s %s: %d of %d jobs wait as published; AVEbsld %.2f", tr.file, c.policy, compared-wrong, len(got), v)
		}
	}
}

// The goals over the whole logs: Tsafrir's prediction as published, and the default better than anything published
// without true run times, with the longest waits in bounds.
func TestSWFGoals(t *testing.T) {
	if !wholeLogs() {
		t.Skip("whole logs are replayed by make bench-quality")
	}
	for _, tr := range swfTraces {
		easy, _ := replaySWF(t, tr.file, tr.procs, 0, "easy")
		tsafrir, _ := replaySWF(t, tr.file, tr.procs, 0, "easy-tsafrir")
		ours, _ := replaySWF(t, tr.file, tr.procs, 0, "default")
		get := func(r *Result, name string) float64 { v, _ := r.Get(name); return v }
		if v := get(tsafrir, "avebsld"); math.Abs(v-tr.tsafrir) > 0.01 {
			t.Errorf("%s: easy-tsafrir %.2f, published %.2f", tr.file, v, tr.tsafrir)
		}
		if v := get(ours, "avebsld"); v > tr.goal {
			t.Errorf("%s: default %.2f, goal %.2f", tr.file, v, tr.goal)
		}
		if v := get(ours, "p99_wait") / get(easy, "p99_wait"); v > 1.75 {
			t.Errorf("%s: p99 wait is %.2f times EASY's", tr.file, v)
		}
		for _, r := range []*Result{easy, tsafrir, ours} {
			var classes []string
			for _, c := range r.Classes {
				classes = append(classes, c.Name+" "+strconv.FormatFloat(c.Value, 'f', 0, 64))
			}
			t.Logf("%s %-13s AVEbsld %6.2f, wait mean %5.0f p95 %6.0f p99 %6.0f s, p95 by size: %s; %.1f s", tr.file, r.Policy, get(r, "avebsld"), get(r, "mean_wait"), get(r, "p95_wait"), get(r, "p99_wait"), strings.Join(classes, ", "), get(r, "wall_s"))
		}
	}
}
