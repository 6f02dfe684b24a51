package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/sim"
)

type simOptions struct {
	*env
	sim.Options
	policies string
	json     bool
	html     string
	inputs   simInputs
	changed  func(string) bool
}

func newSim(e *env) *cobra.Command {
	o := &simOptions{env: e}
	var about strings.Builder
	for _, f := range sim.Formats() {
		fmt.Fprintf(&about, "\n  %-8s %s", f.Name(), f.About())
	}
	c := e.verb("sim [options]", "Replay a trace on a simulated cluster",
		"Replay a trace of jobs in virtual time through the scheduler of a cluster, under one policy or several, and print the\noutcome: waits, completion times, slowdowns, utilisation, fragmentation, fairness. No agent is asked.\n\nA policy is default (a cluster with default settings), the name of a published one, or an order, a backfilling, a placement and a\nrule of preemption joined by +, such as fair+easy+fgd.\n\nRows of a trace may be in any order. Formats of traces (guessed unless -format is given):"+about.String(), `
muster sim -trace jobs.csv -nodes 8x8 -policy default,fair+easy
muster sim -trace jobs.csv -nodes 1000x8xH100-80GiB -policy default -html report.html
muster sim -trace jobs.csv -nodes 8x8 -mtbf 720h -mttr 2h -checkpoint 30m
muster sim -format swf -trace kth-sp2.csv.gz -procs 100 -policy default,easy -json`, 0, 0, o.run)
	f := c.Flags()
	f.StringVar(&o.Trace, "trace", "", "the trace; .gz is unpacked")
	f.StringVar(&o.Format, "format", "", "of the trace; default: guessed from its first line")
	f.StringVar(&o.Nodes, "nodes", "", "the cluster: COUNTxGPUS[xMODEL[-MEMORY]][/cpu=CORES][/mem=SIZE], several joined by +; or a file of the format")
	f.Int64Var(&o.Procs, "procs", 0, "one machine with that many units, for -format swf")
	f.StringVar(&o.policies, "policy", "default", "one or several, separated by commas")
	f.IntVar(&o.Seeds, "seeds", 0, "how many random orders are averaged, for -format openb")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random")
	f.StringVar(&o.Durations, "durations", "", "whether the scheduler knows run times, for -format muri: known or unknown")
	f.Int64Var(&o.Limit, "limit", 0, "replay only so many jobs")
	f.DurationVar(&o.MTBF, "mtbf", 0, "mean time between failures of a node; 0: none fails")
	f.DurationVar(&o.MTTR, "mttr", time.Hour, "mean time to repair of a node")
	f.Float64Var(&o.EstimateError, "estimate-error", 0, "let submitters' estimates be the run time times e^(x N(0,1))")
	f.DurationVar(&o.Checkpoint, "checkpoint", 0, "work since the last checkpoint is lost at preemption and failure; 0: nothing is lost; below 0: all")
	f.DurationVar(&o.RestartCost, "restart-cost", 0, "the restart cost of resumed work")
	f.BoolVar(&o.Notice, "notice", false, "stopped work first saves its state, as long as its newest save took, else its whole grace, for -format snapshot")
	f.StringVar(&o.inputs.storages, "checkpoint-storage", "", "with -notice: how many may save to a storage at a time, as lustre1=4,nfs=8; default: as in the dump")
	f.Int64Var(&o.inputs.saves, "max-checkpoints", 0, "with -notice: how many may save in the cluster at a time; 0: as in the dump")
	f.BoolVar(&o.Preemptible, "preemptible", false, "every job may be preempted")
	f.StringVar(&o.inputs.queues, "queues", "", "the cluster's queues: a file for `muster queue apply`")
	f.StringVar(&o.inputs.quotas, "quotas", "", "the cluster's quotas: a file for `muster quota apply`")
	f.StringVar(&o.inputs.namespaces, "namespaces", "", "the cluster's namespaces, which name quotas: a file as for `muster namespace apply`, which may hold several")
	f.StringVar(&o.inputs.reservations, "reservations", "", "the cluster's reservations: a file for `muster reservation apply`; nodes by name or id")
	f.StringVar(&o.inputs.start, "start", "", "the time at which the trace begins, such as 2026-01-31T08:00:00Z, where reservations have dates")
	f.StringVar(&o.inputs.events, "events", "", "node events: a CSV file with the columns at (since the first submission), node, event (down, up, drain), and deadline of a drain")
	f.IntVar(&o.Parallel, "parallel", max(1, runtime.NumCPU()), "policies at a time (default one per processor)")
	f.Lookup("parallel").DefValue = "0" // help is the same on every machine
	f.BoolVar(&o.json, "json", false, "print one JSON object per policy and line")
	f.StringVar(&o.html, "html", "", "write a report with charts to this file")
	o.changed = f.Changed
	return files(c)
}

// simGCPercent lets garbage grow to four times the live memory before a collection: a replay creates much of it and
// keeps little.
const simGCPercent = 400

func (o *simOptions) run(ctx context.Context, _ []string) error {
	for _, p := range strings.Split(o.policies, ",") {
		if p = strings.TrimSpace(p); p != "" {
			o.Policies = append(o.Policies, p)
		}
	}
	if o.changed("mttr") && o.MTBF == 0 {
		return errors.New("-mttr is about nodes that fail: give -mtbf, too")
	}
	switch o.Durations {
	case "", "known", "unknown":
	default:
		return fmt.Errorf("-durations is %q; want known or unknown", o.Durations)
	}
	var err error
	if o.Cluster, err = o.inputs.read(o.env); err != nil {
		return err
	}
	if isTerminal(o.err) {
		bar := &simBar{env: o.env, done: map[string]float64{}, all: len(o.Policies), began: o.now()}
		o.Options.Progress = bar
		defer bar.clear()
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(simGCPercent)
	}
	results, err := sim.Run(ctx, &o.Options)
	if err != nil {
		return err
	}
	if bar, ok := o.Options.Progress.(*simBar); ok {
		bar.clear()
	}
	if o.html != "" {
		if err := o.report(results); err != nil {
			return err
		}
	}
	if o.json {
		for _, r := range results {
			b, err := json.Marshal(r)
			if err != nil {
				return err
			}
			o.println(string(b))
		}
		return nil
	}
	o.show(results)
	if o.html != "" {
		o.hint("Report written to %s", o.html)
	}
	return nil
}

func (o *simOptions) report(results []*sim.Result) error {
	f, err := os.Create(o.html)
	if err != nil {
		return err
	}
	if err := sim.WriteHTML(f, o.Trace, results); err != nil {
		f.Close()
		return fmt.Errorf("report %s: %w", o.html, err)
	}
	return f.Close()
}

// show prints the results, one column per policy.
func (o *simOptions) show(results []*sim.Result) {
	head := "Figure"
	var names []string
	seen := map[string]bool{}
	for _, r := range results {
		head += "|" + r.Policy
		for _, f := range r.Figures {
			if !seen[f.Name] {
				seen[f.Name] = true
				names = append(names, f.Name)
			}
		}
	}
	var rows [][]string
	for _, n := range names {
		row := []string{sim.Title(n)}
		for _, r := range results {
			row = append(row, cell(r.Figures, n))
		}
		rows = append(rows, row)
	}
	for i := range sim.Classes {
		n := sim.Classes[i].Name
		row := []string{"Wait p95, size " + n}
		found := false
		for _, r := range results {
			c := cell(r.Classes, n)
			found = found || c != "-"
			row = append(row, c)
		}
		if found {
			rows = append(rows, row)
		}
	}
	o.table(head, rows)
	for _, r := range results {
		for _, n := range r.Notes {
			o.warn(n)
		}
	}
}

func cell(fs []sim.Figure, name string) string {
	for _, f := range fs {
		if f.Name == name {
			return sim.Show(f)
		}
	}
	return "-"
}

// simBar is the progress line.
type simBar struct {
	*env
	mu    sync.Mutex
	began time.Time
	last  time.Time
	all   int
	done  map[string]float64 // by policy
	shown bool
}

// Report redraws at most five times a second.
func (b *simBar) Report(policy string, done, all int64, at time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if all > 0 {
		b.done[policy] = float64(done) / float64(all)
	}
	now := b.now()
	if now.Sub(b.last) < 200*time.Millisecond {
		return
	}
	b.last = now
	sum := 0.0
	for _, d := range b.done {
		sum += d
	}
	share := sum / float64(b.all)
	spent := now.Sub(b.began)
	line := bar(share)
	if share > 0.005 {
		line += fmt.Sprintf("  %.1f%%/s  %s left", 100*share/spent.Seconds(), time.Duration(float64(spent)*(1-share)/share).Round(time.Second))
	}
	fmt.Fprintf(b.err, "\r\x1b[K%s  %s at %.1f d", line, policy, at.Hours()/24)
	b.shown = true
}

func (b *simBar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown {
		fmt.Fprint(b.err, "\r\x1b[K")
		b.shown = false
	}
}
