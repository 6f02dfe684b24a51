package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// watchEvery is the interval at which a watched list is read again.
const watchEvery = time.Second

// follow shows a job, or the list of jobs, again whenever it changes. A terminal shows the whole state in place; a file
// gets one line for each change.
func (o *jobStatusOptions) follow(ctx context.Context, a *api, args []string) error {
	if o.form.json || o.form.tmpl != "" || o.form.quiet {
		return errors.New("-watch prints for people: leave out -json, -t and -q, or read  muster event stream")
	}
	w := &jobWatch{jobStatusOptions: o, api: a, last: map[string]string{}}
	if len(args) == 1 {
		stub, err := a.job(ctx, args[0])
		if err != nil {
			return err
		}
		w.one = &jobWaiter{env: o.env, api: a, namespace: stub.Namespace, id: stub.ID}
	}
	away := waiting{adhoc: &adhoc{env: o.env}}
	for {
		over, err := w.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (notFound(err) || !away.passing(err)):
			return err
		case err == nil:
			away.reached()
		}
		if over || !sleepFor(ctx, watchEvery) {
			return nil
		}
	}
}

type jobWatch struct {
	*jobStatusOptions
	api  *api
	one  *jobWaiter        // reads the job; nil for the list
	last map[string]string // what was shown last, by job
}

// look reads and shows what there is. over means that nothing will change any more.
func (w *jobWatch) look(ctx context.Context) (over bool, err error) {
	var jobs []*wire.JobListStub
	if w.one != nil {
		stub, err := w.one.stub(ctx)
		if err != nil {
			return false, err
		}
		over = stub.Status == "dead"
		jobs = append(jobs, stub)
	} else if jobs, err = w.jobs(ctx, w.api); err != nil {
		return false, err
	}
	if w.tty {
		return over, w.redraw(ctx, jobs)
	}
	for _, j := range jobs {
		key, text := j.Namespace+"/"+j.ID, watchLine(j)
		if w.last[key] != text {
			w.last[key] = text
			name := j.ID
			if w.api.namespace == "*" {
				name = key
			}
			w.printf("%s  %s  %s\n", w.now().Format(time.RFC3339), name, text)
		}
	}
	return over, nil
}

// redraw shows the state in place of what was there before.
func (w *jobWatch) redraw(ctx context.Context, jobs []*wire.JobListStub) error {
	var page bytes.Buffer
	e := *w.env
	e.out, e.err, e.forceCol = &page, &page, w.colour()
	again := *w.jobStatusOptions
	again.env = &e
	var err error
	if w.one != nil {
		err = again.show(ctx, w.api, jobs[0])
	} else {
		err = again.list(ctx, w.api)
	}
	if err == nil && page.String() != w.last[""] {
		w.last[""] = page.String()
		w.printf("\x1b[H\x1b[2J\x1b[3J%s", page.String())
	}
	return err
}

// watchLine is the state of a job in one line.
func watchLine(j *wire.JobListStub) string {
	text := jobState(j)
	n := sumOf(j)
	for _, c := range []struct {
		n    int
		word string
	}{{n.Queued, "queued"}, {n.Starting, "starting"}, {n.Running, "running"}, {n.Complete, "complete"}, {n.Failed, "failed"}, {n.Lost, "lost"}} {
		if c.n > 0 {
			text += fmt.Sprintf(", %d %s", c.n, c.word)
		}
	}
	return text
}
