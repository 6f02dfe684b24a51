package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// side is one row of the table: the default under a published protocol, as a cluster has it, and the best that is published.
type side struct {
	name   string // workload
	what   string // figure in words
	figure string
	more   bool // more is better
	long   bool // takes minutes; not in the short form
	open   bool // known to be worse, also without preempt_max, for a reason that docs/reference/simulator.md has

	best      float64 // 0: none is published for this
	by        string  // whose
	published replay  // the default, under the published protocol
	measured  replay  // the default as a cluster has it
	without   replay  // published, without preempt_max; "": the protocol has no preemption
	loses     string  // what measured loses, and what else differs
}

const (
	traces  = "sim/testdata/traces"
	saves   = "checkpoint every 30 min; what was done since is lost"
	savesNo = "no checkpoints; a preempted job begins again"
	noLimit = " -queues e2e/quality/testdata/no_preempt_max.hcl"
)

func swfSides(name string, procs int, best float64, by string) []side {
	file := fmt.Sprintf("%s/swf/%s.csv.gz -policy default", traces, name)
	s := side{name: "swf " + name, what: "mean bounded slowdown", figure: "avebsld", best: best, by: by,
		published: replay(fmt.Sprintf("-format swf -procs %d -trace %s", procs, file)),
		measured:  replay(fmt.Sprintf("-format csv -nodes 1x0/cpu=%d/mem=1024TiB -trace %s", procs, file)), loses: "no preemption; with max_wait"}
	wait := s
	wait.what, wait.figure, wait.best, wait.by = "99th percentile of waits", "p99_wait", 0, ""
	return []side{s, wait}
}

func muriSides(name, durations string, best float64, by string, makespan float64, makespanBy string) []side {
	file := fmt.Sprintf("-format muri -nodes 8x8 -trace %s/philly-muri/%s.csv -durations %s -policy default", traces, name, durations)
	s := side{name: "muri " + name + ", run times " + durations, long: name == "trace1" && durations == "unknown", what: "mean completion time", figure: "avg_jct",
		best: best, by: by, published: replay(file), without: replay(file + noLimit), measured: replay(file + " -checkpoint 30m"), loses: saves}
	bare, all := s, s
	bare.measured, bare.loses = replay(file+" -checkpoint -1s"), savesNo
	all.what, all.figure, all.best, all.by = "makespan", "makespan", makespan, makespanBy
	all.open = s.long // the longest jobs end last, which is why its mean is so much better; see docs/reference/simulator.md
	return []side{s, bare, all}
}

func openbSides(list string, seeds int, at100, at130 float64) (out []side) {
	file := fmt.Sprintf("-format openb -nodes %s/openb/nodes.csv -trace %s/openb/pods_%s.csv -seeds %d -policy ", traces, traces, list, seeds)
	for _, at := range []struct {
		when   string
		figure string
		best   float64
	}{{"100", "alloc_100", at100}, {"130", "alloc_130", at130}} {
		out = append(out, side{name: "openb " + list, what: fmt.Sprintf("%% of GPUs allocated at %s %%", at.when), figure: at.figure, more: true, best: at.best, by: "FGD",
			published: replay(file + "strand"), measured: replay(file + "default"), loses: "no preemption; knows what is held, not the list"})
	}
	return out
}

func sides(seeds int) []side {
	return slices.Concat(
		swfSides("kth-sp2", 100, 45.80, "best of 2,876 predictors"), swfSides("sdsc-sp2", 128, 65.02, "best of 2,880 predictors"),
		muriSides("trace1", "known", 980141, "SRSF", 26045466, "SRTF"), muriSides("trace1", "unknown", 1823179, "Themis", 23556410, "Tiresias"),
		muriSides("trace3", "known", 185022, "SRSF", 8174135, "SRSF"), muriSides("trace3", "unknown", 347213, "Tiresias", 8172105, "Themis"),
		openbSides("default", seeds, 95.23, 95.39), openbSides("gpuspec10", seeds, 94.66, 94.95))
}

// replays lists what a row needs.
func (s *side) replays() (out []replay) {
	out = append(out, s.published, s.measured)
	if s.without != "" {
		out = append(out, s.without)
	}
	return out
}

// worse reports whether a figure is worse than another by more than a share of it.
func (s *side) worse(v, than, share float64) bool {
	if s.more {
		return v < than*(1-share)
	}
	return v > than*(1+share)
}

// row prints a row, and returns what is wrong with it.
func (s *side) row(got map[replay]figures, was baseline) (wrong string) {
	published, measured := got[s.published][s.figure], got[s.measured][s.figure]
	best, verdict := "", ""
	if s.best > 0 {
		best = fmt.Sprintf("%s (%s)", num(s.best), s.by)
		switch without := got[s.without][s.figure]; {
		case !s.worse(published, s.best, 0):
			verdict = "no worse"
		case !s.worse(published, s.best, equal):
			verdict = fmt.Sprintf("equal within %g %%", 100*equal)
		case s.without != "" && !s.worse(without, s.best, 0):
			verdict = "worse by preempt_max: without it " + num(without)
		case s.open:
			verdict = fmt.Sprintf("worse by %.1f %%; without preempt_max %s", 100*(published/s.best-1), num(without))
		default:
			verdict, wrong = "worse", fmt.Sprintf("%s, %s: %s is worse than the published %s, and nothing explains it", s.name, s.what, num(published), num(s.best))
		}
	}
	fmt.Printf("| %s | %s | %s | %s | %s | %s | %s |\n", s.name, s.what, best, num(published), verdict, num(measured), s.loses)
	for _, x := range []struct {
		column string
		got    float64
	}{{"published", published}, {"measured", measured}} {
		old, known := was[s.key(x.column)]
		if known && s.worse(x.got, old, slack) {
			wrong = fmt.Sprintf("%s, %s, %s: %s; it was %s", s.name, s.what, x.column, num(x.got), num(old))
		}
		was[s.key(x.column)] = x.got
	}
	return wrong
}

// Shares of a figure.
const (
	equal = 0.001 // a figure that is worse than the published one by less is as good
	slack = 0.005 // a figure may be worse than the recorded one by so much
)

// baseline is the figures of both columns as they were recorded.
type baseline map[string]float64

// key names a figure of the baseline.
func (s *side) key(column string) string {
	r := s.published
	if column == "measured" {
		r = s.measured
	}
	return s.figure + " of " + string(r)
}

func readBaseline(file string) (baseline, error) {
	b := baseline{}
	text, err := os.ReadFile(file)
	if err != nil {
		return b, err
	}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		v, key, ok := strings.Cut(line, " ")
		f, err := strconv.ParseFloat(v, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s:%d: want a figure and what it is of", file, i+1)
		}
		b[key] = f
	}
	return b, nil
}

func (b baseline) write(file string) error {
	var out strings.Builder
	keys := make([]string, 0, len(b))
	for k := range b {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&out, "%.4f %s\n", b[k], k)
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}
