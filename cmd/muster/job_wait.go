package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobWaitOptions struct {
	*env
	form    format
	until   string
	timeout time.Duration
	quiet   bool
}

func newJobWait(e *env) *cobra.Command {
	o := &jobWaitOptions{env: e}
	c := e.verb("wait [options] JOB...", "Wait until jobs have ended, or run",
		`Wait until jobs have ended, or with -for running until all that they ask for runs. Meanwhile it prints what a job waits for. Ctrl-C ends
only the waiting.

The exit code is 0 when all jobs ended well. When one did not, it is the exit code of the task that failed, or 3 where there is none: the job was
stopped, preempted, lost, or over a limit. Of several jobs it is that of the first argument that failed. 124 means that -timeout was over.`, `
muster job wait train
muster job wait -timeout 2h train eval
muster job wait -for running -timeout 5m web`, 1, -1, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.StringVar(&o.until, "for", "end", "until when: end or running")
	f.DurationVar(&o.timeout, "timeout", 0, "at most this long; 0: for ever")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print nothing but errors")
	return c
}

func (o *jobWaitOptions) run(ctx context.Context, args []string) error {
	if o.until != "end" && o.until != "running" {
		return fmt.Errorf("-for %q: want end or running", o.until)
	}
	if o.timeout < 0 {
		return fmt.Errorf("-timeout %s is negative", o.timeout)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if o.timeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, o.timeout)
		defer stop()
	}
	jobs := make([]*wire.JobListStub, len(args))
	for i, arg := range args {
		if jobs[i], err = a.job(ctx, arg); err != nil {
			return err
		}
		if jobs[i].Periodic || jobs[i].ParameterizedJob {
			return fmt.Errorf("job %q is a template, which itself neither runs nor ends: wait for one of the jobs that  muster job status %s%s  lists", jobs[i].ID, inNamespace(jobs[i].Namespace), word(jobs[i].ID))
		}
	}
	first := exitOK
	form := o.form.json || o.form.tmpl != ""
	for i, j := range jobs {
		w := &jobWaiter{env: o.env, api: a, namespace: j.Namespace, id: j.ID, running: o.until == "running", quiet: o.quiet || form}
		code, err := w.wait(ctx)
		if err != nil {
			return err
		}
		if first == exitOK {
			first = code
		}
		if form && ctx.Err() == nil {
			if jobs[i], err = w.stub(ctx); err != nil {
				return err
			}
		}
	}
	if _, err := o.form.done(o.env, jobs); err != nil {
		return err
	}
	if first != exitOK {
		return exitCode(first)
	}
	return nil
}

// jobWaiter waits for one job.
type jobWaiter struct {
	*env
	api           *api
	namespace, id string
	running       bool
	quiet         bool
}

// blockFor is the longest duration of one blocking query of a wait.
const blockFor = 30 * time.Second

// wait returns the exit code of the job, exitTimeout, or exitInterrupted.
func (w *jobWaiter) wait(ctx context.Context) (int, error) {
	job := &wire.Job{ID: &w.id, Namespace: &w.namespace}
	reason := waiting{adhoc: &adhoc{env: w.env}, api: w.api, job: job, since: w.now()}
	for index := uint64(0); ; {
		state, m, err := w.look(ctx, index)
		switch {
		case ctx.Err() != nil:
			return w.ended(ctx), nil
		case err == nil && state.done:
			if !w.quiet {
				w.printf("Job %q %s\n", w.id, state.text)
			}
			return state.code, nil
		case err == nil:
			reason.reached()
			if state.queued && !w.quiet {
				reason.tell(ctx)
			}
			index = m.Index
			if state.queued || w.running {
				index = 0 // the reason and the summary change without the job
			}
		case notFound(err):
			if !w.quiet {
				w.printf("Job %q was purged\n", w.id)
			}
			return exitFailed, nil
		case !reason.passing(err):
			return 0, err
		default:
			index = 0
		}
		if !sleepFor(ctx, pollEvery) {
			return w.ended(ctx), nil
		}
	}
}

// report is wait with the exit code as an error.
func (w *jobWaiter) report(ctx context.Context) error {
	code, err := w.wait(ctx)
	if err == nil && code != exitOK {
		err = exitCode(code)
	}
	return err
}

func (w *jobWaiter) ended(ctx context.Context) int {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		w.hint("The time is up; job %q goes on:  muster job status %s%s", w.id, inNamespace(w.namespace), word(w.id))
		return exitTimeout
	}
	return exitInterrupted
}

// waitState is what a look at a job has found.
type waitState struct {
	done, queued bool
	text         string
	code         int
}

// look reads the job: at once with index 0, else when it has changed since.
func (w *jobWaiter) look(ctx context.Context, index uint64) (s waitState, m meta, err error) {
	q := ns(w.namespace)
	if index > 0 {
		q.Set("index", strconv.FormatUint(index, 10))
		q.Set("wait", blockFor.String())
	}
	var job wire.Job
	if m, err = w.api.get(ctx, jobPath(w.id), q, &job); err != nil {
		return s, m, err
	}
	if val(job.Status) == "dead" {
		stub, err := w.stub(ctx)
		if err != nil {
			return s, m, err
		}
		s.done, s.text, s.code = true, endText(stub, w.now()), endCode(stub)
		return s, m, nil
	}
	if val(job.Status) != "pending" && !w.running {
		return s, m, nil
	}
	var sum wire.JobSummary
	if _, err := w.api.get(ctx, jobPath(w.id, "/summary"), ns(w.namespace), &sum); err != nil {
		return s, m, err
	}
	active, idle := 0, 0
	for _, g := range sum.Summary {
		active += g.Running
		idle += g.Starting + g.Unknown
		s.queued = s.queued || g.Queued > 0
	}
	if w.running && !s.queued && idle == 0 && active > 0 {
		s.done, s.text = true, fmt.Sprintf("runs: %s", plural(int64(active), "allocation"))
	}
	return s, m, nil
}

// stub reads the job as lists show it, with how it ended.
func (w *jobWaiter) stub(ctx context.Context) (*wire.JobListStub, error) {
	a := *w.api
	a.namespace = w.namespace
	stub, err := a.job(ctx, w.id)
	if err != nil {
		return nil, fmt.Errorf("read how job %q ended: %w", w.id, err)
	}
	return stub, nil
}
