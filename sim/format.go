package sim

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"
)

// Options are what a caller asks for. A zero field takes the format's default.
type Options struct {
	Format    string   // "" is guessed from the trace
	Trace     string   // file; .gz is unpacked
	Nodes     string   // "8x8", "1000x8xH100-80GiB", several joined by +, or a file of the format
	Procs     int64    // swf: units of the one node
	Policies  []string // at least one
	Seeds     int      // openb: random orders, 0 to Seeds-1 after the first
	Seed      uint64
	Durations string        // muri: "known" or "unknown"; "" as the policy has it
	Limit     int64         // jobs to read; 0: all
	MTBF      time.Duration // of a node; 0: none fails
	MTTR      time.Duration
	// EstimateError spreads the submitters' run-time estimates: each is the true run time times e^(x N(0,1)). 0: as the
	// trace says.
	EstimateError float64
	Checkpoint    time.Duration // work since the last checkpoint is lost at preemption and failure; 0: nothing; negative: all
	RestartCost   time.Duration // before resumed work goes on
	Notice        bool          // victims hold on for their grace
	Preemptible   bool          // jobs may be preempted although the trace does not say so
	Whole         bool          // every waiting job in every pass: slower, for comparison
	Parallel      int           // runs at a time; 0: 1
	Progress      Progress      // told now and then; nil: nobody
}

// Progress is told how far a run is.
type Progress interface {
	// Report says that done of all things (jobs, bytes of the trace; all 0: unknown) are behind a policy's run, at a
	// virtual time.
	Report(policy string, done, all int64, at time.Duration)
}

// Format runs the traces of one kind by their own protocol.
type Format interface {
	// Name as given to -format.
	Name() string
	// About says in a line what the format is, and names the policies it knows.
	About() string
	// Run replays the trace under one policy. It may be called from several goroutines.
	Run(ctx context.Context, o *Options, policy string) (*Result, error)
}

// formats are all there are, in the order of the documentation.
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
			name = "csv" // a log of processors, replayed on nodes
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
	if len(o.Policies) == 0 {
		o.Policies = []string{"default"}
	}
	// One policy that cannot be replayed ends the others: there will be no result.
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

// firstError tells what went wrong, once. Errors that are about a policy name it.
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
