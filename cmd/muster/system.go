package main

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newSystem(e *env) *cobra.Command {
	return e.group("system", "Housekeeping", "", `
muster system gc
muster system reconcile summaries`, newSystemGC, func(e *env) *cobra.Command {
		return e.group("reconcile", "Rebuild what is derived", "", `muster system reconcile summaries`, newSystemReconcile)
	})
}

type systemOptions struct {
	*env
	path, done string
	yes        bool
}

func newSystemGC(e *env) *cobra.Command {
	o := &systemOptions{env: e, path: "/v1/system/gc", done: "Garbage collection started"}
	c := e.verb("gc [options]", "Run garbage collection now", "Remove ended jobs, evaluations and allocations and lost nodes now, regardless of their age. It asks first, because what has ended is also what\npeople look at to see why.", `
muster system gc
muster system gc -yes`, 0, 0, o.collect)
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return c
}

func newSystemReconcile(e *env) *cobra.Command {
	o := &systemOptions{env: e, path: "/v1/system/reconcile/summaries", done: "Job summaries reconciled"}
	return e.verb("summaries [options]", "Rebuild the summaries of all jobs", "", `muster system reconcile summaries`, 0, 0, o.run)
}

// collect asks before what has ended is removed.
func (o *systemOptions) collect(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if !o.yes {
		var jobs []*wire.JobListStub
		if _, err := a.get(ctx, "/v1/jobs", url.Values{"namespace": {"*"}, "filter": {`Status == "dead"`}}, &jobs); err != nil {
			return err
		}
		var nodes []*wire.NodeListStub
		if _, err := a.get(ctx, "/v1/nodes", url.Values{"filter": {`Status == "down"`}}, &nodes); err != nil {
			return err
		}
		if err := o.confirm(ctx, false, "Remove %s that ended, with their allocations, and %s that %s down, of all namespaces?",
			plural(int64(len(jobs)), "job"), plural(int64(len(nodes)), "node"), map[bool]string{true: "is", false: "are"}[len(nodes) == 1]); err != nil {
			return err
		}
	}
	return o.run(ctx, nil)
}

func (o *systemOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if _, err := a.put(ctx, o.path, nil, nil, nil); err != nil {
		return err
	}
	o.println(o.done)
	return nil
}
