package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

type dumpOptions struct {
	*env
	form format
	pool string
}

func newSchedulerDump(e *env) *cobra.Command {
	o := &dumpOptions{env: e}
	c := e.verb("dump [options] FILE", "Save what the newest decision depended on",
		"Save everything that the newest decision about a node pool depended on to a file, which must not exist. `muster operator scheduler\nreplay` decides it again anywhere. It needs a management token: the file holds jobs of all namespaces.", `
muster operator scheduler dump decision.bin
muster operator scheduler dump -node-pool gpu decision.bin`, 1, 1, o.dump)
	c.Flags().StringVar(&o.pool, "node-pool", "default", "the node pool; all for decisions about several")
	return files(c)
}

func (o *dumpOptions) dump(ctx context.Context, args []string) error {
	name := args[0]
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already; move it away or give another name", name)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	rc, _, err := a.stream(ctx, http.MethodGet, "/v1/operator/scheduler/input", url.Values{"pool": {o.pool}}, nil)
	if err != nil {
		return err
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	in, pol, err := scheduler.Load(b)
	if err != nil {
		return fmt.Errorf("what came cannot be replayed: %w", err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		return err
	}
	o.printf("Decision written to %s (index %d, %d jobs, policy %s, %s)\n", name, in.View.Index(), len(in.Pending), pol, bytesText(uint64(len(b))))
	return nil
}

func newSchedulerReplay(e *env) *cobra.Command {
	o := &dumpOptions{env: e}
	c := e.verb("replay [options] FILE", "Decide again what was saved by dump", "Decide again what `muster operator scheduler dump` saved, and print the result. No agent is asked; the same file always\ngives the same plan.", `
muster operator scheduler replay decision.bin
muster operator scheduler replay -json decision.bin`, 1, 1, o.replay)
	o.form.flags(c)
	return files(c)
}

// replayed is the result of a decision.
type replayed struct {
	Index  uint64
	Policy string
	Steps  int
	Plan   string // SHA-256 of the plan's canonical bytes
	Jobs   []replayedJob
}

type replayedJob struct {
	Namespace, JobID, Group, Reason string
	Wanted, Placed                  int64
}

func (o *dumpOptions) replay(_ context.Context, args []string) error {
	b, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	in, pol, err := queue.Load(b)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	if _, ok := policy.Builtin[pol]; !ok {
		return fmt.Errorf("%s was decided by policy %q, which this build does not have", args[0], pol)
	}
	index := in.View.Index()
	plan, report := scheduler.Schedule(in, policy.For(nil, structs.SchedulerConfig{Algorithm: pol}))
	r := &replayed{Index: uint64(index), Policy: pol, Steps: report.Steps, Plan: fmt.Sprintf("%x", sha256.Sum256(scheduler.AppendPlan(nil, plan))), Jobs: []replayedJob{}}
	for _, w := range report.Workloads {
		if w.Refused != "" {
			r.Jobs = append(r.Jobs, replayedJob{Namespace: w.Key.Namespace, JobID: w.Key.ID, Reason: w.Refused})
		}
		for _, g := range w.Groups {
			r.Jobs = append(r.Jobs, replayedJob{w.Key.Namespace, w.Key.ID, string(g.Group), string(g.Code), g.Wanted, g.Placed})
		}
	}
	if done, err := o.form.done(o.env, r); done || err != nil {
		return err
	}
	o.kv([][2]string{{"Index", strconv.FormatUint(r.Index, 10)}, {"Policy", pol}, {"Steps", strconv.Itoa(r.Steps)}, {"Plan", r.Plan}})
	rows := [][]string{}
	for _, j := range r.Jobs {
		rows = append(rows, []string{j.Namespace, j.JobID, j.Group, strconv.FormatInt(j.Wanted, 10), strconv.FormatInt(j.Placed, 10), orNone(j.Reason)})
	}
	o.println()
	o.table("Namespace|Job|Task Group|Wanted|Placed|Reason", rows)
	return nil
}
