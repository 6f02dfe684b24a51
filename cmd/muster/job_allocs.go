package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobAllocsOptions struct {
	*env
	form         format
	all, verbose bool
}

func newJobAllocs(e *env) *cobra.Command {
	o := &jobAllocsOptions{env: e}
	c := e.verb("allocs [options] JOB", "List the allocations of a job", "", `
muster job allocs example
muster job allocs -o wide example
muster job allocs -all -json example`, 1, 1, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().BoolVar(&o.all, "all", false, "those of an earlier job of the same id, too")
	c.Flags().BoolVar(&o.verbose, "verbose", false, "long ids and exact times")
	return c
}

func (o *jobAllocsOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	q := ns(stub.Namespace)
	queryFlag(q, "all", o.all)
	var list []*wire.AllocationListStub
	if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), q, &list); err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "", func(s *wire.AllocationListStub) string { return s.ID }); done || err != nil {
		return err
	}
	o.allocTable(list, o.verbose, o.form.wide)
	return nil
}
