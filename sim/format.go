package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// Options are the settings of a simulation. A zero field takes the format's default.
type Options struct {
	Format    string   // "": detected from the trace
	Trace     string   // file; .gz is decompressed
	Nodes     string   // "8x8", "1000x8xH100-80GiB", several joined by +, or a file of the format
	Procs     int64    // swf: CPU units of the one node
	Policies  []string // at least one
	Seeds     int      // openb: random orders, 0 to Seeds-1 after the first
	Seed      uint64
	Durations string        // muri: "known" or "unknown"; "": the policy's own
	Limit     int64         // jobs to read; 0: all
	MTBF      time.Duration // of a node; 0: none fails
	MTTR      time.Duration
	// EstimateError spreads the submitters' run-time estimates: each is the true run time times e^(x N(0,1)). 0: those
	// of the trace.
	EstimateError float64
	Checkpoint    time.Duration // work since the last checkpoint is lost at preemption and failure; 0: nothing; negative: all
	RestartCost   time.Duration // time before resumed work makes progress
	Notice        bool          // victims hold their resources while they save their state
	Preemptible   bool          // all jobs may be preempted, even if the trace says otherwise
	Whole         bool          // every waiting job in every pass: slower, for comparison
	Parallel      int           // runs at a time; 0: 1
	Cluster       *Cluster      // what the operator configured; nil: nothing
	Progress      Progress      // called from time to time; nil: not at all
}

// Progress receives the progress of a run.
type Progress interface {
	// Report is called with how much of a policy's run (jobs, bytes of the trace; all 0: unknown) is complete, and the
	// virtual time.
	Report(policy string, done, all int64, at time.Duration)
}

// Format runs the traces of one kind with their own protocol.
type Format interface {
	// Name is the value of -format.
	Name() string
	// About describes the format and its policies in one line.
	About() string
	// Run replays the trace under one policy. It may be called from several goroutines.
	Run(ctx context.Context, o *Options, policy string) (*Result, error)
}

// formats are all formats, in the order of the documentation.
var formats = []Format{csvFormat{}, swfFormat{}, muriFormat{}, openbFormat{}, acctFormat{}, snapshotFormat{}}

// FormatByName finds a format.
func FormatByName(name string) (Format, error) {
	var names []string
	for _, f := range formats {
		if f.Name() == name {
			return f, nil
		}
		names = append(names, f.Name())
	}
	return nil, fmt.Errorf("no format is called %q; there are: %s", name, strings.Join(names, ", "))
}

// Formats lists all formats.
func Formats() []Format { return formats }

// Run replays a trace under each policy.
func Run(ctx context.Context, o *Options) ([]*Result, error) {
	name := o.Format
	if name == "" {
		var err error
		if name, err = guess(o.Trace); err != nil {
			return nil, err
		}
		if name == "swf" && o.Nodes != "" && o.Procs == 0 {
			name = "csv" // a processor log, replayed on nodes
		}
	}
	f, err := FormatByName(name)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Limit < 0:
		return nil, fmt.Errorf("%d is no number of jobs: want 0 for all, or more", o.Limit)
	case o.Seeds < 0:
		return nil, fmt.Errorf("%d is no number of seeds: want 0 for the format's own, or more", o.Seeds)
	}
	switch what := o.Cluster.given(); name {
	case "csv", "acct", "snapshot":
	default:
		if what == "queues" && name == "muri" {
			what = o.Cluster.beyondQueues()
		}
		if what != "" {
			return nil, fmt.Errorf("a trace of format %s is replayed with its own protocol, without %s: use csv, acct or snapshot", name, what)
		}
	}
	if flag, formats := o.unused(name); flag != "" {
		return nil, fmt.Errorf("a trace of format %s is replayed without %s: it is for %s", name, flag, strings.Join(formats, ", "))
	}
	if c := o.Cluster; c != nil && (c.CheckpointStorage != nil || c.MaxCheckpoints != 0) && !o.Notice {
		return nil, errors.New("-checkpoint-storage and -max-checkpoints limit the saves of work that is stopped with notice: give -notice, too")
	}
	if len(o.Policies) == 0 {
		o.Policies = []string{"default"}
	}
	// An error of one policy cancels the others, because there will be no result.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	out := make([]*Result, len(o.Policies))
	errs := make([]error, len(o.Policies))
	slots := make(chan struct{}, max(o.Parallel, 1))
	done := make(chan int)
	for i, p := range o.Policies {
		go func() {
			slots <- struct{}{}
			if ctx.Err() == nil {
				if out[i], errs[i] = f.Run(ctx, o, p); errs[i] != nil {
					stop()
				}
			} else {
				errs[i] = ctx.Err()
			}
			<-slots
			done <- i
		}()
	}
	for range o.Policies {
		<-done
	}
	return out, firstError(errs)
}

// unused returns the flag of an option that a format would ignore, and the formats that use it; "" if there is none.
func (o *Options) unused(format string) (flag string, formats []string) {
	cluster := []string{"csv", "acct", "snapshot"} // formats that replay on a cluster as servers have it
	for _, x := range []struct {
		flag    string
		given   bool
		formats []string
	}{
		{"-procs", o.Procs != 0, []string{"swf"}}, {"-seeds", o.Seeds != 0, []string{"openb"}}, {"-durations", o.Durations != "", []string{"muri"}},
		{"-nodes", o.Nodes != "", []string{"csv", "acct", "muri", "openb"}}, {"-limit", o.Limit != 0, []string{"csv", "acct", "swf", "muri"}},
		{"-mtbf", o.MTBF != 0, cluster}, {"-checkpoint", o.Checkpoint != 0, []string{"csv", "acct", "snapshot", "muri"}}, {"-restart-cost", o.RestartCost != 0, cluster}, {"-notice", o.Notice, []string{"snapshot"}}, // jobs of the others have no grace period
		{"-checkpoint-storage", o.Cluster != nil && o.Cluster.CheckpointStorage != nil, []string{"snapshot"}}, {"-max-checkpoints", o.Cluster != nil && o.Cluster.MaxCheckpoints != 0, []string{"snapshot"}},

		{"-preemptible", o.Preemptible, cluster}, {"-estimate-error", o.EstimateError != 0, cluster},
	} {
		if x.given && !slices.Contains(x.formats, format) {
			return x.flag, x.formats
		}
	}
	return "", nil
}

// firstError returns the first error that is not just a cancellation, if there is one.
func firstError(errs []error) (first error) {
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, context.Canceled)) {
			first = err
		}
	}
	return first
}

func unknownPolicy(format, policy string, known []string) error {
	known = append([]string(nil), known...)
	sort.Strings(known)
	return fmt.Errorf("format %s has no policy %q; it has: %s", format, policy, strings.Join(known, ", "))
}
