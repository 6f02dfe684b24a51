package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type jobScaleOptions struct {
	*env
	form       format
	monitor    monitorOptions
	checkIndex uint64
	message    string
}

func newJobScale(e *env) *cobra.Command {
	o := &jobScaleOptions{env: e}
	c := e.verb("scale [options] JOB [GROUP] COUNT", "Change how many allocations of a group run",
		"Change how many allocations of a group run. The group may be left out when the job has only one.", `
muster job scale example 3
muster job scale -detach web frontend 10`, 2, 3, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	f.BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	f.Uint64Var(&o.checkIndex, "check-index", 0, "scale only if the job's modify index is this one")
	f.StringVar(&o.message, "message", "submitted using the muster CLI", "a note for the scaling events")
	return c
}

func (o *jobScaleOptions) run(ctx context.Context, args []string) error {
	count, err := strconv.ParseInt(args[len(args)-1], 10, 64)
	if err != nil || count < 0 {
		return fmt.Errorf("count %q is not a whole number, 0 or more", args[len(args)-1])
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	group := ""
	if len(args) == 3 {
		group = args[1]
	} else {
		var st wire.JobScaleStatusResponse
		if _, err := a.get(ctx, jobPath(stub.ID, "/scale"), ns(stub.Namespace), &st); err != nil {
			return err
		}
		names := sortedKeys(st.TaskGroups)
		if len(names) != 1 {
			return fmt.Errorf("job %q has %d groups: say which of %v", stub.ID, len(names), names)
		}
		group = names[0]
	}
	req := wire.ScalingRequest{Count: &count, Target: map[string]string{"Job": stub.ID, "Group": group, "Namespace": stub.Namespace}, Message: o.message, JobModifyIndex: o.checkIndex}
	var resp wire.JobRegisterResponse
	if _, err := a.put(ctx, jobPath(stub.ID, "/scale"), ns(stub.Namespace), req, &resp); err != nil {
		return fmt.Errorf("scale group %q of job %q to %d: %w", group, stub.ID, count, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.warn(resp.Warnings)
	if resp.EvalID == "" {
		o.printf("Group %q of job %q has count %d\n", group, stub.ID, count)
		return nil
	}
	return o.follow(ctx, a, o.monitor, stub.Namespace, stub.ID, resp.EvalID, func(p *progress) { p.follow = true })
}
