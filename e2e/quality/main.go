// Command quality replays the public workloads of sim/testdata/traces by the protocols of their READMEs and prints the
// results next to the published ones: it measures how good decisions are, command bench how fast they are made.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const traces = "sim/testdata/traces"

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
func below(limit float64) func(float64) bool { return func(got float64) bool { return got < limit } }

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

func muri(name string, known bool, srtf, srsf, las [2]float64, jct, makespan float64, goal string) workload {
	w := workload{part: "muri", name: name + ", run times unknown", classes: true, policies: []string{"2d-las", "default"},
		args: []string{"-format", "muri", "-nodes", "8x8", "-trace", filepath.Join(traces, "philly-muri", name+".csv"), "-durations", "unknown"},
		wants: []want{{"2d-las", "avg_jct", las[0], "", near(las[0], 0.5)}, {"2d-las", "makespan", las[1], "", near(las[1], 0.5)},
			{"default", "avg_jct", 0, goal, below(jct)}},
	}
	if known {
		w.name, w.policies, w.args[len(w.args)-1] = name+", run times known", []string{"srtf", "srsf", "default"}, "known"
		w.wants = []want{{"srtf", "avg_jct", srtf[0], "", near(srtf[0], 0.5)}, {"srtf", "makespan", srtf[1], "", near(srtf[1], 0.5)},
			{"srsf", "avg_jct", srsf[0], "", near(srsf[0], 0.5)}, {"srsf", "makespan", srsf[1], "", near(srsf[1], 0.5)},
			{"default", "avg_jct", 0, "<= SRSF's " + num(srsf[0]), most(srsf[0])}, {"default", "makespan", 0, "< SRSF's " + num(srsf[1]), below(makespan)}}
	}
	return w
}

func openb(list string, seeds int, published map[string][2]float64, goal [2]float64) workload {
	w := workload{part: "openb", name: list, policies: []string{"random", "dotprod", "clustering", "packing", "bestfit", "fgd", "strand", "default"},
		args: []string{"-format", "openb", "-nodes", filepath.Join(traces, "openb", "nodes.csv"), "-trace", filepath.Join(traces, "openb", "pods_"+list+".csv"), "-seeds", strconv.Itoa(seeds)}}
	for _, p := range w.policies[:6] {
		slack := 0.4
		if p == "fgd" {
			slack = 0.1
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
		fgd := published["fgd"][i] // which knows the list; a cluster with the defaults does not
		w.wants = append(w.wants, want{"default", f, 0, fmt.Sprintf(">= FGD's %.2f", fgd), least(fgd)})
	}
	return w
}

func main() {
	only := flag.String("only", "", "only workloads whose part or name contains this: swf, muri, openb")
	seeds := flag.Int("seeds", 10, "of openb; the published figures are means of 10")
	flag.Parse()
	bin := os.Getenv("MUSTER_BIN")
	if bin == "" {
		fmt.Fprintln(os.Stderr, "quality: set MUSTER_BIN to the binary, as `make bench-quality` does")
		os.Exit(1)
	}
	list := []workload{
		swf("kth-sp2", 100, 92.58, 71.72, 49.85, 62.86, 6837, 6328, 5436, 45),
		swf("sdsc-sp2", 128, 87.87, 70.48, 56.84, 65.06, 20498, 17337, 16307, 57),
		muri("trace1", true, [2]float64{1370603, 26045466}, [2]float64{980141, 26065759}, [2]float64{}, 980141, 26065759, ""),
		muri("trace1", false, [2]float64{}, [2]float64{}, [2]float64{3330371, 23556410}, 1823179, 0, "< Themis' 1,823,179"),
		muri("trace3", true, [2]float64{193082, 8174135}, [2]float64{185022, 8174135}, [2]float64{}, 185022, 8174136, ""),
		muri("trace3", false, [2]float64{}, [2]float64{}, [2]float64{347213, 8174226}, 347213, 0, "< Tiresias' 347,213"),
		openb("default", *seeds, map[string][2]float64{"random": {86.30, 87.47}, "dotprod": {90.62, 90.85}, "clustering": {91.65, 91.88}, "packing": {91.78, 92.00},
			"bestfit": {92.86, 93.08}, "fgd": {95.23, 95.39}}, [2]float64{95.9, 96.0}),
		openb("gpuspec10", *seeds, map[string][2]float64{"random": {86.26, 87.43}, "dotprod": {90.17, 90.39}, "clustering": {91.96, 92.18}, "packing": {92.24, 92.46},
			"bestfit": {93.10, 93.30}, "fgd": {94.66, 94.95}}, [2]float64{}),
	}
	began, failed := time.Now(), 0
	fmt.Println("| workload | policy | figure | published | ours | goal | met |")
	fmt.Println("|---|---|---|---:|---:|---|---|")
	for i := range list {
		w := &list[i]
		if *only != "" && !strings.Contains(w.part+" "+w.name, *only) {
			continue
		}
		failed += w.run(bin)
	}
	fmt.Fprintf(os.Stderr, "%d of the goals are not met; %s\n", failed, time.Since(began).Round(time.Second))
}

// run prints the lines of a workload and gives how many goals it misses.
func (w *workload) run(bin string) (failed int) {
	args := append([]string{"sim"}, w.args...)
	args = append(args, "-policy", strings.Join(w.policies, ","), "-json", "-parallel", strconv.Itoa(runtime.NumCPU()))
	cmd := exec.Command(bin, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	fmt.Fprintf(os.Stderr, "muster %s\n", strings.Join(args, " "))
	if err := cmd.Run(); err != nil {
		fmt.Printf("| %s %s | | | | not run: %s | | no |\n", w.part, w.name, strings.ReplaceAll(strings.TrimSpace(errs.String()), "\n", " "))
		return len(w.wants)
	}
	got := map[string]map[string]float64{}
	for s := bufio.NewScanner(&out); s.Scan(); {
		var raw map[string]any
		if err := json.Unmarshal(s.Bytes(), &raw); err != nil {
			continue
		}
		name, _ := raw["policy"].(string)
		got[name] = map[string]float64{}
		for k, v := range raw {
			if f, ok := v.(float64); ok {
				got[name][k] = f
			}
		}
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
			met, failed = "no", failed+1
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
	return failed
}

// num is a figure with as many digits as matter.
func num(v float64) string {
	if v < 1000 {
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
