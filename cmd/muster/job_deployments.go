package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type deploymentOptions struct {
	*env
	form    format
	latest  bool
	verbose bool
}

// ofServices says what is listed, and where to find the rest.
const ofServices = "Rolling updates of services, and how they ended. What one waits for is shown by  muster job status JOB\nand  muster job why JOB."

func newJobDeployments(e *env) *cobra.Command {
	o := &deploymentOptions{env: e}
	c := e.verb("deployments [options] JOB", "List the deployments of a job", ofServices, `
muster job deployments example
muster job deployments -latest example`, 1, 1, o.ofJob)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().BoolVar(&o.latest, "latest", false, "only the newest")
	c.Flags().BoolVar(&o.verbose, "verbose", false, "long ids")
	return c
}

func (o *deploymentOptions) ofJob(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	var list []*wire.Deployment
	if o.latest {
		var d *wire.Deployment
		if _, err := a.get(ctx, jobPath(stub.ID, "/deployment"), ns(stub.Namespace), &d); err != nil {
			return err
		}
		if d != nil {
			list = append(list, d)
		}
	} else if _, err := a.get(ctx, jobPath(stub.ID, "/deployments"), ns(stub.Namespace), &list); err != nil {
		return err
	}
	return o.print(list)
}

func (o *deploymentOptions) print(list []*wire.Deployment) error {
	if done, err := listed(&o.form, o.env, list, "No deployments found", func(d *wire.Deployment) string { return d.ID }); done || err != nil {
		if err == nil && len(list) == 0 && !o.form.json && !o.form.quiet && o.form.tmpl == "" {
			o.hint("What a rolling update waits for:  muster job status JOB")
		}
		return err
	}
	head, rows := "ID|Job ID|Job Version|Status|Description", [][]string{}
	if o.form.wide {
		head += "|Namespace|Created|Modified|Desired|Placed|Healthy|Unhealthy|Canaries|Progress By"
	}
	for _, d := range list {
		r := []string{shortID(d.ID, o.verbose), d.JobID, fmt.Sprint(d.JobVersion), d.Status, d.StatusDescription}
		if o.form.wide {
			r = append(r, d.Namespace, o.ageNanos(d.CreateTime, o.verbose), o.ageNanos(d.ModifyTime, o.verbose))
			r = append(r, rollout(d)...)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

// rollout sums the groups of a deployment: how many allocations are wanted, placed, healthy and unhealthy, its canaries, and by
// when the first of its groups must make progress.
func rollout(d *wire.Deployment) []string {
	var sum wire.DeploymentState
	canaries := 0
	var by time.Time
	for _, g := range d.TaskGroups {
		sum.DesiredTotal += g.DesiredTotal
		sum.PlacedAllocs += g.PlacedAllocs
		sum.HealthyAllocs += g.HealthyAllocs
		sum.UnhealthyAllocs += g.UnhealthyAllocs
		canaries += len(g.PlacedCanaries)
		if t := g.RequireProgressBy; by.IsZero() || t.Before(by) && !t.IsZero() {
			by = t
		}
	}
	var out []string
	for _, n := range []int{sum.DesiredTotal, sum.PlacedAllocs, sum.HealthyAllocs, sum.UnhealthyAllocs, canaries} {
		out = append(out, strconv.Itoa(n))
	}
	return append(out, date(by))
}

func newDeployment(e *env) *cobra.Command {
	return e.group("deployment", "Look at deployments", "", `muster deployment list`, newDeploymentList)
}

func newDeploymentList(e *env) *cobra.Command {
	o := &deploymentOptions{env: e}
	c := e.verb("list [options]", "List deployments", ofServices, `muster deployment list -json`, 0, 0, o.all)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	c.Flags().BoolVar(&o.verbose, "verbose", false, "long ids")
	return c
}

func (o *deploymentOptions) all(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var list []*wire.Deployment
	if _, err := a.get(ctx, "/v1/deployments", nil, &list); err != nil {
		return err
	}
	if err := a.inNoNamespace(ctx, len(list)); err != nil {
		return err
	}
	return o.print(list)
}

type jobPromoteOptions struct {
	*env
	form    format
	groups  []string
	monitor monitorOptions
}

func newJobPromote(e *env) *cobra.Command {
	o := &jobPromoteOptions{env: e}
	c := e.verb("promote [options] JOB", "Promote the canaries of a job", "Promote the canaries of a job's newest deployment.", `
muster job promote example
muster job promote -group web example`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().StringArrayVar(&o.groups, "group", nil, "only this group; may be repeated")
	c.Flags().BoolVar(&o.monitor.detach, "detach", false, "only ask for it; print the evaluation's id and end")
	c.Flags().BoolVar(&o.monitor.verbose, "verbose", false, "long ids")
	return c
}

func (o *jobPromoteOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	var d *wire.Deployment
	if _, err := a.get(ctx, jobPath(stub.ID, "/deployment"), ns(stub.Namespace), &d); err != nil {
		return err
	}
	if d == nil {
		return fmt.Errorf("job %q has no deployment to promote", stub.ID)
	}
	req := map[string]any{"DeploymentID": d.ID, "All": len(o.groups) == 0, "Groups": o.groups}
	var resp struct {
		EvalID                string
		DeploymentModifyIndex uint64
	}
	if _, err := a.put(ctx, "/v1/deployment/promote/"+d.ID, ns(stub.Namespace), req, &resp); err != nil {
		return fmt.Errorf("promote deployment %s: %w", d.ID, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	return o.follow(ctx, a, o.monitor, stub.Namespace, stub.ID, resp.EvalID, func(p *progress) { p.follow = true })
}
