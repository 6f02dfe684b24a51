package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobCheckpointOptions struct {
	*env
	form   format
	group  string
	rank   int
	detach bool
	wait   time.Duration
}

func newJobCheckpoint(e *env) *cobra.Command {
	o := &jobCheckpointOptions{env: e}
	c := e.verb("checkpoint [options] JOB", "Ask the running tasks of a job to save their state now",
		"Ask the running allocations of a job to save their state now, by the signal, command or url of their checkpoint block,\nand wait for new checkpoints, at most for the block's grace. The job keeps running.", `
muster job checkpoint train
muster job checkpoint -rank 0 train      # only where rank 0 runs
muster job checkpoint -detach train      # do not wait for the checkpoints
muster job checkpoint train && muster job stop train`, 1, 1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.StringVar(&o.group, "group", "", "only the allocations of this group")
	f.IntVar(&o.rank, "rank", -1, "only the allocation that this rank of a gang runs in")
	f.BoolVar(&o.detach, "detach", false, "do not wait for new checkpoints")
	f.DurationVar(&o.wait, "timeout", 0, "wait at most this long for new checkpoints (default: the grace of the checkpoint block)")
	return c
}

// savedAlloc is one notified allocation, and its newest checkpoint since.
type savedAlloc struct {
	nomadlike.AllocCheckpoint
	Checkpoint *wire.SavedCheckpoint `json:",omitempty"` // newer than the notice
	over       bool                  // no further checkpoint is awaited
}

func (o *jobCheckpointOptions) run(ctx context.Context, args []string) error {
	if o.wait < 0 || o.rank < -1 {
		return fmt.Errorf("-timeout and -rank are not negative")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	req := nomadlike.CheckpointRequest{Group: o.group}
	if o.rank >= 0 {
		req.Rank = &o.rank
	}
	var resp struct{ Allocations []*savedAlloc }
	if _, err := a.put(ctx, jobPath(stub.ID, "/checkpoint"), ns(stub.Namespace), req, &resp); err != nil {
		return fmt.Errorf("checkpoint job %q: %w", stub.ID, err)
	}
	plain := !o.form.json && o.form.tmpl == ""
	said := func(s *savedAlloc, f string, args ...any) {
		if plain {
			o.printf("%s: %s\n", placeText(s), fmt.Sprintf(f, args...))
		}
	}
	failed, grace := 0, time.Duration(0)
	for _, s := range resp.Allocations {
		if s.over = !s.Told; s.over {
			failed++
			said(s, "not notified: %s", s.Error)
			continue
		}
		grace = max(grace, time.Duration(s.Grace))
		said(s, "notified by %s", s.How)
	}
	if o.wait > 0 {
		grace = o.wait
	}
	if !o.detach {
		if failed += o.await(ctx, a, stub, resp.Allocations, grace, said); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if done, err := o.form.done(o.env, resp); err != nil {
		return err
	} else if done {
		plain = false
	}
	if failed > 0 {
		return fmt.Errorf("%d of %s did not save their state, as far as is seen", failed, plural(int64(len(resp.Allocations)), "allocation"))
	}
	return nil
}

// checkpointLook is the interval of the search for new checkpoints.
const checkpointLook = 300 * time.Millisecond

// await waits for new checkpoints and prints them. It returns how many allocations have none.
func (o *jobCheckpointOptions) await(ctx context.Context, a *api, stub *wire.JobListStub, all []*savedAlloc, limit time.Duration, said func(*savedAlloc, string, ...any)) (without int) {
	began := time.Now()
	for wait := true; wait && ctx.Err() == nil; {
		last := time.Since(began) >= limit
		wait = false
		for _, s := range all {
			if s.over {
				continue
			}
			var al wire.Allocation
			if _, err := a.get(ctx, "/v1/allocation/"+s.AllocID, ns(stub.Namespace), &al); err != nil {
				s.over, s.Error = true, err.Error()
				without++
				said(s, "%s", s.Error)
				continue
			}
			why := checkpointError(&al, s.At)
			switch c := al.Checkpoint; {
			case c != nil && (s.Before == nil || c.Time > s.Before.Time):
				s.over, s.Checkpoint = true, c
				said(s, "saved %s", savedText(c))
			case why != "":
				s.over, s.Error = true, why
				without++
				said(s, "%s", why)
			case al.ClientStatus != "running":
				s.over, s.Error = true, "it is "+al.ClientStatus+" now, and no new checkpoint was seen"
				without++
				said(s, "%s", s.Error)
			case last:
				s.over, s.Error = true, "no new checkpoint was seen within "+span(limit)
				without++
				said(s, "%s", s.Error)
				if s.Before == nil {
					o.hint("Checkpoints are seen when the checkpoint block has path or dir, or the task writes $MUSTER_CHECKPOINT_DONE.")
				}
			default:
				wait = true
			}
		}
		if wait {
			select {
			case <-ctx.Done():
			case <-time.After(min(checkpointLook, max(limit-time.Since(began), time.Millisecond))):
			}
		}
	}
	return without
}

// placeText identifies an allocation by its rank and node.
func placeText(s *savedAlloc) string {
	if s.NodeRank >= 0 {
		return fmt.Sprintf("%s (node rank %d) on %s", shortID(s.AllocID, false), s.NodeRank, s.NodeName)
	}
	return fmt.Sprintf("%s on %s", shortID(s.AllocID, false), s.NodeName)
}

// savedText describes a checkpoint with its exact time.
func savedText(c *wire.SavedCheckpoint) string {
	text := "at " + time.Unix(0, c.Time).UTC().Format("15:04:05.000") + " UTC"
	if c.Path != "" {
		text += ", " + bytesText(uint64(c.Bytes)) + " in " + c.Path
	}
	return text
}

// checkpointError returns why a task could not be notified to save its state after a time, or "".
func checkpointError(al *wire.Allocation, after int64) string {
	for _, name := range sortedKeys(al.TaskStates) {
		for _, e := range al.TaskStates[name].Events {
			if e.Type == "Checkpoint" && e.Time >= after && e.Details["error"] != "" {
				return fmt.Sprintf("task %q could not save its state: %s", name, e.Details["error"])
			}
		}
	}
	return ""
}
