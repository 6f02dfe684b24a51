// Command quality replays the public workloads of sim/testdata/traces and prints the figures next to the published ones:
// it measures how good decisions are, command bench how fast they are made.
//
// The first table has the default twice: under the protocol of each study, and as a cluster has it, where preempted work
// loses what it has not saved and decisions know that. The second has the policies of the studies, which must come to the
// published figures. It exits with 1 if something is worse than published or than the recorded figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// want is one published result, or our goal where none is published.
type want struct {
	policy, figure string
	published      float64 // 0: none
	goal           string  // in words; "" for as published
	pass           func(got float64) bool
}

// workload is one run of `muster sim`: a trace with the policies that are compared on it.
type workload struct {
	part, name string
	args       []string
	policies   []string
	wants      []want
	classes    bool // report the waits by size class
}

func near(published, slack float64) func(float64) bool {
	return func(got float64) bool { return got >= published-slack && got <= published+slack }
}
func most(limit float64) func(float64) bool  { return func(got float64) bool { return got <= limit } }
func least(limit float64) func(float64) bool { return func(got float64) bool { return got >= limit } }

func swf(name string, procs int, easy, clair, sjbf, tsafrir, easyWait, clairWait, sjbfWait, goal float64) workload {
	return workload{
		part: "swf", name: name, args: []string{"-format", "swf", "-trace", filepath.Join(traces, "swf", name+".csv.gz"), "-procs", strconv.Itoa(procs)},
		policies: []string{"easy", "easy-clair", "easy-sjbf-clair", "easy-tsafrir", "default"}, classes: true,
		wants: []want{
			{"easy", "avebsld", easy, "", near(easy, 0.005)}, {"easy", "mean_wait", easyWait, "", near(easyWait, 0.5)},
			{"easy-clair", "avebsld", clair, "", near(clair, 0.005)}, {"easy-clair", "mean_wait", clairWait, "", near(clairWait, 0.5)},
			{"easy-sjbf-clair", "avebsld", sjbf, "", near(sjbf, 0.005)}, {"easy-sjbf-clair", "mean_wait", sjbfWait, "", near(sjbfWait, 0.5)},
			{"easy-tsafrir", "avebsld", tsafrir, "", near(tsafrir, 0.005)},
			{"default", "avebsld", 0, fmt.Sprintf("<= %g", goal), most(goal)},
			{"default", "p99_wait", 0, "<= 1.75 x easy's", nil},
		},
	}
}

func muri(name string, known bool, srtf, srsf, las [2]float64) workload {
	w := workload{part: "muri", name: name + ", run times unknown", policies: []string{"2d-las"},
		args: []string{"-format", "muri", "-nodes", "8x8", "-trace", filepath.Join(traces, "philly-muri", name+".csv"), "-durations", "unknown"}, classes: true}
	give := func(policy string, is [2]float64) {
		w.wants = append(w.wants, want{policy, "avg_jct", is[0], "", near(is[0], 0.5)}, want{policy, "makespan", is[1], "", near(is[1], 0.5)})
	}
	if !known {
		give("2d-las", las)
		return w
	}
	w.name, w.policies, w.args[len(w.args)-1] = name+", run times known", []string{"srtf", "srsf"}, "known"
	give("srtf", srtf)
	give("srsf", srsf)
	return w
}

func openb(list string, seeds int, published map[string][2]float64, goal [2]float64) workload {
	w := workload{part: "openb", name: list, policies: []string{"random", "dotprod", "clustering", "packing", "bestfit", "fgd", "strand"},
		args: []string{"-format", "openb", "-nodes", filepath.Join(traces, "openb", "nodes.csv"), "-trace", filepath.Join(traces, "openb", "pods_"+list+".csv"), "-seeds", strconv.Itoa(seeds)}}
	for _, p := range w.policies[:6] {
		slack := 0.4
		if p == "fgd" {
			slack = 0.2 // the published means are of ten other orders
		}
		for i, f := range []string{"alloc_100", "alloc_130"} {
			w.wants = append(w.wants, want{p, f, published[p][i], "", near(published[p][i], slack)})
		}
	}
	for i, f := range []string{"alloc_100", "alloc_130"} {
		if goal[i] > 0 {
			w.wants = append(w.wants, want{"strand", f, 0, fmt.Sprintf(">= %.1f", goal[i]), least(goal[i])})
		} else {
			w.wants = append(w.wants, want{"strand", f, 0, "as much as it can", nil})
		}
	}
	return w
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "quality:", err)
		os.Exit(1)
	}
}

func run() error {
	only := flag.String("only", "", "only workloads whose name contains this: swf, muri trace1, openb gpuspec10")
	seeds := flag.Int("seeds", 10, "orders of openb; the published figures are means of 10")
	short := flag.Bool("short", false, "one order of openb, not the workload that takes minutes, and not the policies of the studies")
	write := flag.Bool("write", false, "record the figures of this run as those that later ones are compared with")
	record := flag.String("record", "e2e/quality/testdata/baseline.txt", "the recorded figures")
	flag.Parse()
	bin := os.Getenv("MUSTER_BIN")
	if bin == "" {
		return fmt.Errorf("set MUSTER_BIN to the binary, as `make bench-quality` does")
	}
	if *short {
		*seeds = 1
	}
	began := time.Now()
	was, err := readBaseline(*record)
	if err != nil && !(*write && errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	var rows []side
	var need []replay
	for _, s := range sides(*seeds) {
		if strings.Contains(s.name, *only) && !(*short && s.long) {
			rows, need = append(rows, s), append(need, s.replays()...)
		}
	}
	var studies []workload
	if !*short {
		for _, w := range published(*seeds) {
			if strings.Contains(w.part+" "+w.name, *only) {
				studies, need = append(studies, w), append(need, w.replays()...)
			}
		}
	}
	got, err := runAll(context.Background(), bin, need)
	if err != nil {
		return err
	}
	var wrong []string
	fmt.Println("| workload | figure | best published | default, published protocol | against the best | default, measured loss | what is lost |")
	fmt.Println("|---|---|---:|---:|---|---:|---|")
	for i := range rows {
		if w := rows[i].row(got, was); w != "" {
			wrong = append(wrong, w)
		}
	}
	if len(studies) > 0 {
		fmt.Println("\n| workload | policy | figure | published | ours | goal | met |")
		fmt.Println("|---|---|---|---:|---:|---|---|")
		for i := range studies {
			wrong = append(wrong, studies[i].rows(got)...)
		}
	}
	fmt.Fprintf(os.Stderr, "%d replays in %s\n", len(got), time.Since(began).Round(time.Second))
	if *write {
		return was.write(*record)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d figures are not as they should be:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

// published are the workloads under the policies of the studies.
func published(seeds int) []workload {
	return []workload{
		swf("kth-sp2", 100, 92.58, 71.72, 49.85, 62.86, 6837, 6328, 5436, 45),
		swf("sdsc-sp2", 128, 87.87, 70.48, 56.84, 65.06, 20498, 17337, 16307, 57),
		muri("trace1", true, [2]float64{1370603, 26045466}, [2]float64{980141, 26065759}, [2]float64{}),
		muri("trace1", false, [2]float64{}, [2]float64{}, [2]float64{3330371, 23556410}),
		muri("trace3", true, [2]float64{193082, 8174135}, [2]float64{185022, 8174135}, [2]float64{}),
		muri("trace3", false, [2]float64{}, [2]float64{}, [2]float64{347213, 8174226}),
		openb("default", seeds, map[string][2]float64{"random": {86.30, 87.47}, "dotprod": {90.62, 90.85}, "clustering": {91.65, 91.88}, "packing": {91.78, 92.00},
			"bestfit": {92.86, 93.08}, "fgd": {95.23, 95.39}}, [2]float64{95.9, 96.0}),
		openb("gpuspec10", seeds, map[string][2]float64{"random": {86.26, 87.43}, "dotprod": {90.17, 90.39}, "clustering": {91.96, 92.18}, "packing": {92.24, 92.46},
			"bestfit": {93.10, 93.30}, "fgd": {94.66, 94.95}}, [2]float64{}),
	}
}

// replay is the workload under a policy.
func (w *workload) replay(policy string) replay {
	return replay(strings.Join(w.args, " ") + " -policy " + policy)
}

func (w *workload) replays() (out []replay) {
	for _, p := range w.policies {
		out = append(out, w.replay(p))
	}
	return out
}

// rows prints the lines of a workload and gives what misses its goal.
func (w *workload) rows(all map[replay]figures) (wrong []string) {
	got := map[string]figures{}
	for _, p := range w.policies {
		got[p] = all[w.replay(p)]
	}
	for _, x := range w.wants {
		v, ok := got[x.policy][x.figure]
		pass := x.pass
		if x.figure == "p99_wait" && pass == nil {
			pass = most(1.75 * got["easy"]["p99_wait"])
			x.goal = "<= 1.75 x easy's " + num(got["easy"]["p99_wait"])
		}
		met := "yes"
		switch {
		case pass == nil:
			met = ""
		case !ok || !pass(v):
			met, wrong = "no", append(wrong, fmt.Sprintf("%s %s, %s of %s: %s", w.part, w.name, x.figure, x.policy, num(v)))
		}
		published, goal := "", x.goal
		if x.published > 0 {
			published = num(x.published)
		}
		if goal == "" {
			goal = "as published"
		}
		fmt.Printf("| %s %s | %s | %s | %s | %s | %s | %s |\n", w.part, w.name, x.policy, x.figure, published, num(v), goal, met)
	}
	if w.classes {
		for _, p := range w.policies {
			line := ""
			for _, c := range []string{"1", "2-8", "16-64", "more"} {
				if v, ok := got[p]["wait_p95_"+c]; ok {
					line += fmt.Sprintf("%s: %s s  ", c, num(v))
				}
			}
			fmt.Printf("| %s %s | %s | wait p95 by size | | %s | nobody starves | |\n", w.part, w.name, p, strings.TrimSpace(line))
		}
	}
	return wrong
}
