package main

import (
	"context"

	"github.com/spf13/cobra"
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
}

func newSystemGC(e *env) *cobra.Command {
	o := &systemOptions{env: e, path: "/v1/system/gc", done: "Garbage collection started"}
	return e.verb("gc [options]", "Run garbage collection now", "Remove ended jobs, evaluations and allocations and lost nodes now, regardless of their age.", `muster system gc`, 0, 0, o.run)
}

func newSystemReconcile(e *env) *cobra.Command {
	o := &systemOptions{env: e, path: "/v1/system/reconcile/summaries", done: "Job summaries reconciled"}
	return e.verb("summaries [options]", "Rebuild the summaries of all jobs", "", `muster system reconcile summaries`, 0, 0, o.run)
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
