package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newEval(e *env) *cobra.Command {
	return e.group("eval", "Look at evaluations", "An evaluation is a request to decide about a job.", `
muster eval list -status pending
muster eval status 26cfc69e`, newEvalList, newEvalStatus, newEvalDelete)
}

type evalListOptions struct {
	*env
	form                           format
	job, status, filter, pageToken string
	perPage                        int
	verbose                        bool
}

func newEvalList(e *env) *cobra.Command {
	o := &evalListOptions{env: e}
	c := e.verb("list [options]", "List evaluations", "", `
muster eval list
muster eval list -o wide
muster eval list -status blocked -job example
muster eval list -filter 'TriggeredBy == "node-update"' -per-page 20`, 0, 0, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	f := c.Flags()
	f.StringVar(&o.job, "job", "", "only evaluations of this job")
	f.StringVar(&o.status, "status", "", "only with this status: pending, blocked, complete, failed or canceled")
	f.StringVar(&o.filter, "filter", "", "only those for which an expression holds")
	f.IntVar(&o.perPage, "per-page", 0, "at most so many")
	f.StringVar(&o.pageToken, "page-token", "", "where the page begins")
	f.BoolVar(&o.verbose, "verbose", false, "long ids")
	return c
}

func (o *evalListOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	q := url.Values{}
	for k, v := range map[string]string{"job": o.job, "status": o.status, "filter": o.filter, "next_token": o.pageToken} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if o.perPage > 0 {
		q.Set("per_page", strconv.Itoa(o.perPage))
	}
	var list []*wire.Evaluation
	m, err := a.get(ctx, "/v1/evaluations", q, &list)
	if err != nil {
		return err
	}
	if err := a.inNoNamespace(ctx, len(list)); err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "No evaluations found", func(ev *wire.Evaluation) string { return ev.ID }); done || err != nil {
		return err
	}
	if o.perPage == 0 {
		slices.SortStableFunc(list, func(x, y *wire.Evaluation) int { return int(int64(y.CreateIndex) - int64(x.CreateIndex)) })
	}
	head, rows := "ID|Priority|Triggered By|Job ID|Namespace|Node ID|Status|Placement Failures", [][]string{}
	if o.form.wide {
		head += "|Type|Created|Modified|Waits Until|Waiting Allocs|Blocked Eval|Deployment"
	}
	for _, ev := range list {
		node := ""
		if ev.NodeID != "" {
			node = shortID(ev.NodeID, o.verbose)
		}
		failures := strconv.FormatBool(len(ev.FailedTGAllocs) > 0)
		if ev.Status == "pending" {
			failures = "N/A - In Progress"
		}
		r := []string{shortID(ev.ID, o.verbose), strconv.Itoa(ev.Priority), ev.TriggeredBy, orNone(ev.JobID), ev.Namespace, orNone(node), ev.Status, failures}
		if o.form.wide {
			waiting := 0
			for _, n := range ev.QueuedAllocations {
				waiting += n
			}
			r = append(r, ev.Type, o.ageNanos(ev.CreateTime, o.verbose), o.ageNanos(ev.ModifyTime, o.verbose), date(ev.WaitUntil), strconv.Itoa(waiting),
				orDash(shortID(ev.BlockedEval, o.verbose)), orDash(shortID(ev.DeploymentID, o.verbose)))
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	if m.NextToken != "" {
		o.hint("\nThere are more. The next page:  muster eval list -page-token %s", m.NextToken)
	}
	return nil
}

type evalStatusOptions struct {
	*env
	form             format
	verbose, monitor bool
}

func newEvalStatus(e *env) *cobra.Command {
	o := &evalStatusOptions{env: e}
	c := e.verb("status [options] EVALUATION", "Show an evaluation", "Show an evaluation: why it was made, what came of it, and what could not be placed.", `
muster eval status 26cfc69e
muster eval status -monitor 26cfc69e`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.monitor, "monitor", false, "follow it to its end")
	c.Flags().BoolVar(&o.verbose, "verbose", false, "long ids, exact times, related evaluations")
	return c
}

func (o *evalStatusOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	ev, err := a.evaluation(ctx, args[0], true)
	if err != nil {
		return err
	}
	if o.monitor {
		return o.follow(ctx, a, monitorOptions{verbose: o.verbose}, ev.Namespace, ev.JobID, ev.ID, nil)
	}
	if done, err := o.form.done(o.env, ev); done || err != nil {
		return err
	}
	status := ev.Status
	rows := [][2]string{{"ID", shortID(ev.ID, o.verbose)}, {"Create Time", o.ageNanos(ev.CreateTime, o.verbose)}, {"Modify Time", o.ageNanos(ev.ModifyTime, o.verbose)},
		{"Status", status}, {"Status Description", ev.StatusDescription}, {"Type", ev.Type}, {"TriggeredBy", ev.TriggeredBy}, {"Job ID", ev.JobID},
		{"Namespace", ev.Namespace}, {"Node ID", shortID(ev.NodeID, o.verbose)}, {"Priority", strconv.Itoa(ev.Priority)}, {"Placement Failures", strconv.FormatBool(len(ev.FailedTGAllocs) > 0)},
		{"Previous Eval", shortID(ev.PreviousEval, o.verbose)}, {"Next Eval", shortID(ev.NextEval, o.verbose)}, {"Blocked Eval", shortID(ev.BlockedEval, o.verbose)}}
	if ev.Successor != "" {
		rows = append(rows, [2]string{"Successor", shortID(ev.Successor, o.verbose)})
	}
	if ev.WaitUntil.After(o.now()) {
		rows = append(rows, [2]string{"Wait Until", date(ev.WaitUntil) + " (in " + span(ev.WaitUntil.Sub(o.now())) + ")"})
	}
	o.kv(slices.DeleteFunc(rows, func(r [2]string) bool {
		return r[1] == "" && slices.Contains([]string{"Node ID", "Previous Eval", "Next Eval", "Blocked Eval"}, r[0])
	}))
	if len(ev.RelatedEvals) > 0 {
		o.heading("Related Evaluations")
		rows := [][]string{}
		for _, r := range ev.RelatedEvals {
			rows = append(rows, []string{shortID(r.ID, o.verbose), strconv.Itoa(r.Priority), r.TriggeredBy, orNone(shortID(r.NodeID, o.verbose)), r.Status, orNone(r.StatusDescription)})
		}
		o.table("ID|Priority|Triggered By|Node ID|Status|Description", rows)
	}
	var allocs []*wire.AllocationListStub
	if _, err := a.get(ctx, "/v1/evaluation/"+ev.ID+"/allocations", ns(ev.Namespace), &allocs); err != nil {
		return err
	}
	if len(allocs) > 0 {
		o.heading("Placed Allocations")
		o.allocTable(allocs, o.verbose, false)
	}
	if len(ev.FailedTGAllocs) > 0 {
		o.heading("Failed Placements")
		never := a.neverFits(ctx, ev.JobID, ev.Namespace)
		for _, g := range sortedKeys(ev.FailedTGAllocs) {
			m := ev.FailedTGAllocs[g]
			o.printf("Task Group %q (failed to place %s):\n", g, plural(int64(m.CoalescedFailures+1), "allocation"))
			for _, l := range metricLines(m, never) {
				o.printf("  * %s\n", l)
			}
		}
		if ev.BlockedEval != "" {
			o.printf("\nEvaluation %q waits to place the remainder\n", shortID(ev.BlockedEval, o.verbose))
		}
	}
	return nil
}

type evalDeleteOptions struct {
	*env
	form   format
	filter string
	yes    bool
}

func newEvalDelete(e *env) *cobra.Command {
	o := &evalDeleteOptions{env: e}
	c := e.verb("delete [options] [EVALUATION...]", "Delete evaluations", "Delete evaluations by id or by filter. The servers refuse it unless the broker is paused (operator scheduler set-config -pause-eval-broker=true).", `
muster eval delete 26cfc69e
muster eval delete -yes -filter 'Status == "complete"'`, 0, -1, o.run)
	o.form.flags(c)
	c.Flags().StringVar(&o.filter, "filter", "", "those for which an expression holds")
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return c
}

func (o *evalDeleteOptions) run(ctx context.Context, args []string) error {
	if (o.filter == "") == (len(args) == 0) {
		return errors.New("name evaluations or give -filter, and not both")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	req := wire.EvalDeleteRequest{Filter: o.filter}
	what := strings.Join(args, ", ")
	for _, arg := range args {
		ev, err := a.evaluation(ctx, arg, false)
		if err != nil {
			return err
		}
		req.EvalIDs = append(req.EvalIDs, ev.ID)
	}
	if o.filter != "" {
		var count wire.EvalCountResponse
		if _, err := a.get(ctx, "/v1/evaluations/count", url.Values{"filter": {o.filter}}, &count); err != nil {
			return err
		}
		if count.Count == 0 {
			o.println("No evaluation matches the filter")
			return nil
		}
		what = plural(int64(count.Count), "evaluation")
	}
	if err := o.confirm(ctx, o.yes, "Delete %s?", what); err != nil {
		return err
	}
	var resp wire.EvalDeleteResponse
	if _, err := a.call(ctx, "DELETE", "/v1/evaluations", nil, req, &resp); err != nil {
		return fmt.Errorf("delete evaluations: %w", err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Deleted %s\n", plural(int64(resp.Count), "evaluation"))
	return nil
}
