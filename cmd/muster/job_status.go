package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type jobStatusOptions struct {
	*env
	form                             format
	short, evals, allAllocs, verbose bool
	watch                            bool
	filter                           string
}

func newJobStatus(e *env) *cobra.Command {
	o := &jobStatusOptions{env: e}
	c := e.verb("status [options] [JOB]", "List jobs, or show one",
		"List jobs, or show one: its groups, what waits and why, its gangs with who is in them and who is missing, and its\nallocations. The beginning of an id is enough. -watch shows it again whenever it changes: on a terminal in place,\nelsewhere as one more line for each change; of one job until it has ended.", `
muster job status
muster job status example
muster job status -watch example
muster job status -evals -all-allocs example
muster job status -o wide
muster job status -namespace '*' -filter 'Status == "pending"'`, 0, 1, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	f := c.Flags()
	f.BoolVar(&o.watch, "watch", false, "show it again whenever it changes, until Ctrl-C or the end of the job")
	f.BoolVar(&o.short, "short", false, "leave out groups and allocations")
	f.BoolVar(&o.evals, "evals", false, "show evaluations too")
	f.BoolVar(&o.allAllocs, "all-allocs", false, "show the allocations of an earlier job of the same id too")
	f.BoolVar(&o.verbose, "verbose", false, "long ids, exact times, evaluations")
	f.StringVar(&o.filter, "filter", "", "only jobs for which an expression holds")
	ofList(c, "filter")
	ofOne(c, "short", "evals", "all-allocs")
	return c
}

func (o *jobStatusOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	if o.watch {
		return o.follow(ctx, a, args)
	}
	if len(args) == 0 {
		return o.list(ctx, a)
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	return o.show(ctx, a, stub)
}

// jobs lists the jobs that the filter lets through.
func (o *jobStatusOptions) jobs(ctx context.Context, a *api) (list []*wire.JobListStub, err error) {
	q := url.Values{}
	if o.filter != "" {
		q.Set("filter", o.filter)
	}
	_, err = a.get(ctx, "/v1/jobs", q, &list)
	return list, err
}

func (o *jobStatusOptions) list(ctx context.Context, a *api) error {
	list, err := o.jobs(ctx, a)
	if err != nil {
		return err
	}
	if err := a.inNoNamespace(ctx, len(list)); err != nil {
		return err
	}
	if done, err := listed(&o.form, o.env, list, "", func(j *wire.JobListStub) string { return j.ID }); done || err != nil {
		return err
	}
	if len(list) == 0 {
		o.println("No jobs")
		o.hint("Write an example with  muster job init  and run it with  muster job run example.muster.hcl")
		return nil
	}
	head, rows := "ID|Type|Priority|Status|User|Submitted|Ended", [][]string{}
	all := a.namespace == "*"
	if all {
		head = "ID|Namespace|Type|Priority|Status|User|Submitted|Ended"
	}
	if o.form.wide {
		head += jobWideHead
	}
	for _, j := range list {
		ended := "-"
		if j.End != nil {
			ended = o.ageNanos(j.End.Time, o.verbose)
		}
		r := []string{j.ID, jobType(j), strconv.Itoa(j.Priority), jobState(j), orDash(j.User), o.ageNanos(j.SubmitTime, o.verbose), ended}
		if all {
			r = slices.Insert(r, 1, j.Namespace)
		}
		if o.form.wide {
			r = append(r, jobWide(j)...)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
	return nil
}

// jobWideHead and jobWide are the further columns of jobs with -o wide.
const jobWideHead = "|Queue|Node Pool|Queued|Starting|Running|Failed|Complete|Lost|Version"

func jobWide(j *wire.JobListStub) []string {
	n := sumOf(j)
	r := []string{orDash(j.Queue), j.NodePool}
	for _, v := range []int{n.Queued, n.Starting, n.Running, n.Failed, n.Complete, n.Lost} {
		r = append(r, strconv.Itoa(v))
	}
	return append(r, strconv.FormatUint(j.Version, 10))
}

func jobType(j *wire.JobListStub) string {
	t := j.Type
	if j.Periodic {
		t += "/periodic"
	}
	if j.ParameterizedJob {
		t += "/parameterized"
	}
	return t
}

func (o *jobStatusOptions) show(ctx context.Context, a *api, stub *wire.JobListStub) error {
	q := ns(stub.Namespace)
	var job wire.Job
	if _, err := a.get(ctx, jobPath(stub.ID), q, &job); err != nil {
		return err
	}
	gangs, err := a.gangsOf(ctx, stub, &job)
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &statusJSON{&job, gangs}); done || err != nil {
		return err
	}
	if o.form.quiet {
		o.println(stub.ID)
		return nil
	}
	status := jobState(stub)
	periodic := job.Periodic != nil && (job.Periodic.Enabled == nil || *job.Periodic.Enabled)
	parameterized := job.ParameterizedJob != nil && !job.Dispatched
	rows := [][2]string{
		{"ID", stub.ID}, {"Name", val(job.Name)}, {"Submit Date", date(time.Unix(0, val(job.SubmitTime)))}, {"Type", val(job.Type)},
		{"Priority", strconv.Itoa(val(job.Priority))}, {"Datacenters", strings.Join(job.Datacenters, ",")}, {"Namespace", stub.Namespace},
		{"Node Pool", val(job.NodePool)}, {"Status", status}, {"Periodic", strconv.FormatBool(periodic)}, {"Parameterized", strconv.FormatBool(parameterized)},
	}
	if q := val(job.Queue); q != "" {
		rows = append(rows, [2]string{"Queue", q})
	}
	if s := job.Submitter; s != nil && s.Name != "" {
		rows = append(rows, [2]string{"Submitter", s.Name})
	}
	if e := stub.End; e != nil {
		rows = append(rows, [2]string{"Ended", fmt.Sprintf("%s (%s)", date(time.Unix(0, e.Time)), o.ageNanos(e.Time, false))})
	}
	rows = append(rows, workRows(&job, o.now())...)
	if r := job.Requeue; r != nil && val(job.Status) != "dead" {
		var w nomadlike.Why
		if _, err := a.get(ctx, jobPath(stub.ID, "/why"), q, &w); err == nil {
			if n := structs.RequeueCounts(w.Returned); n != (structs.RequeueCounts{}) {
				rows = append(rows, [2]string{"Requeued", fmt.Sprintf("%s (each piece of work at most %d times)", n.By(), val(r.Max))})
			}
			if w.GivenUp != "" {
				rows = append(rows, [2]string{"Given Up", w.GivenUp})
			}
		}
	}
	if o.verbose {
		rows = append(rows, [2]string{"Version", strconv.FormatUint(val(job.Version), 10)}, [2]string{"Job Modify Index", strconv.FormatUint(val(job.JobModifyIndex), 10)})
	}
	if job.UI != nil && job.UI.Description != "" {
		rows = append(rows, [2]string{"Description", job.UI.Description})
	}
	if periodic && !val(job.Stop) {
		if next := nextLaunch(job.Periodic, o.now()); !next.IsZero() {
			rows = append(rows, [2]string{"Next Launch", fmt.Sprintf("%s (in %s)", date(next), span(next.Sub(o.now())))})
		}
	}
	o.kv(rows)
	if o.short {
		return nil
	}
	if periodic || parameterized {
		return o.children(ctx, a, stub, parameterized)
	}
	return o.details(ctx, a, stub, &job, gangs)
}

// children lists what a periodic or parameterized job launched.
func (o *jobStatusOptions) children(ctx context.Context, a *api, stub *wire.JobListStub, dispatched bool) error {
	var sum wire.JobSummary
	if _, err := a.get(ctx, jobPath(stub.ID, "/summary"), ns(stub.Namespace), &sum); err != nil {
		return err
	}
	if c := sum.Children; c != nil {
		o.heading("Children Job Summary")
		o.table("Pending|Running|Dead", [][]string{{fmt.Sprint(c.Pending), fmt.Sprint(c.Running), fmt.Sprint(c.Dead)}})
	}
	q := ns(stub.Namespace)
	q.Set("prefix", stub.ID)
	var list []*wire.JobListStub
	if _, err := a.get(ctx, "/v1/jobs", q, &list); err != nil {
		return err
	}
	rows := [][]string{}
	for _, j := range list {
		if j.ParentID == stub.ID {
			rows = append(rows, []string{j.ID, j.Status, date(time.Unix(0, j.SubmitTime))})
		}
	}
	title := "Previously Launched Jobs"
	if dispatched {
		title = "Dispatched Jobs"
	}
	o.heading(title)
	if len(rows) == 0 {
		o.println("None yet")
		return nil
	}
	o.table("ID|Status|Submit Date", rows)
	return nil
}

func (o *jobStatusOptions) details(ctx context.Context, a *api, stub *wire.JobListStub, job *wire.Job, gangs []nomadlike.Gang) error {
	q := ns(stub.Namespace)
	var sum wire.JobSummary
	if _, err := a.get(ctx, jobPath(stub.ID, "/summary"), q, &sum); err != nil {
		return err
	}
	o.heading("Summary")
	rows := [][]string{}
	queued := 0
	for _, g := range sortedKeys(sum.Summary) {
		s := sum.Summary[g]
		queued += s.Queued
		rows = append(rows, []string{g, fmt.Sprint(s.Queued), fmt.Sprint(s.Starting), fmt.Sprint(s.Running), fmt.Sprint(s.Failed), fmt.Sprint(s.Complete), fmt.Sprint(s.Lost), fmt.Sprint(s.Unknown)})
	}
	o.table("Task Group|Queued|Starting|Running|Failed|Complete|Lost|Unknown", rows)

	var evals []*wire.Evaluation
	if _, err := a.get(ctx, jobPath(stub.ID, "/evaluations"), ns(stub.Namespace), &evals); err != nil {
		return err
	}
	slices.SortStableFunc(evals, func(x, y *wire.Evaluation) int { return int(int64(y.CreateIndex) - int64(x.CreateIndex)) })
	if o.evals || o.verbose {
		o.heading("Evaluations")
		rows := [][]string{}
		for _, ev := range evals {
			rows = append(rows, []string{shortID(ev.ID, o.verbose), strconv.Itoa(ev.Priority), ev.TriggeredBy, orNone(shortID(ev.NodeID, o.verbose)), ev.Status, strconv.FormatBool(len(ev.FailedTGAllocs) > 0)})
		}
		if len(rows) == 0 {
			o.println("None")
		} else {
			o.table("ID|Priority|Triggered By|Node ID|Status|Placement Failures", rows)
		}
	}
	if queued > 0 && !val(job.Stop) {
		o.waiting(ctx, a, stub, evals)
	}
	for i := range gangs {
		o.gangStatus(&gangs[i])
	}
	aq := ns(stub.Namespace)
	queryFlag(aq, "all", o.allAllocs)
	var allocs []*wire.AllocationListStub
	if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), aq, &allocs); err != nil {
		return err
	}
	o.updating(ctx, a, stub, job, allocs)
	o.later(evals)
	if job.Array != nil {
		o.indices(job, &sum, allocs)
		return nil
	}
	o.heading("Allocations")
	o.allocTable(allocs, o.verbose, o.form.wide)
	return nil
}

// waiting prints why allocations are not placed.
func (o *jobStatusOptions) waiting(ctx context.Context, a *api, stub *wire.JobListStub, evals []*wire.Evaluation) {
	var w nomadlike.Why
	_, err := a.get(ctx, jobPath(stub.ID, "/why"), ns(stub.Namespace), &w)
	if err == nil && w.Waiting == 0 && w.Reason == "" {
		return // the job itself holds them back: indices of an array beyond its concurrency, a rolling update
	}
	o.heading("Placement Failure")
	never := ""
	if err == nil && w.Advice != nil {
		never = w.Advice.Never
	}
	for _, ev := range evals {
		if len(ev.FailedTGAllocs) == 0 {
			continue
		}
		for _, g := range sortedKeys(ev.FailedTGAllocs) {
			m := ev.FailedTGAllocs[g]
			o.printf("Task Group %q: %s without a place\n", g, plural(int64(m.CoalescedFailures+1), "allocation"))
			for _, l := range metricLines(m, never) {
				o.printf("  * %s\n", l)
			}
		}
		break
	}
	if never != "" {
		o.printf("It can never be placed here: %s\n", never)
	}
	if err == nil && w.Reason != "" {
		o.printf("Reason %s", w.Reason)
		if w.Position > 0 {
			o.printf(", position %d of %d", w.Position, w.QueueLength)
		}
		o.println()
	}
	o.hint("More:  muster job why %s%s", inNamespace(stub.Namespace), word(stub.ID))
}

// later lists evaluations with a start time in the future: delayed rescheduling.
func (o *jobStatusOptions) later(evals []*wire.Evaluation) {
	rows := [][]string{}
	for _, ev := range evals {
		if ev.Status == "pending" && ev.TriggeredBy == "alloc-failure" && ev.WaitUntil.After(o.now()) {
			rows = append(rows, []string{shortID(ev.ID, o.verbose), ev.TriggeredBy, span(ev.WaitUntil.Sub(o.now())) + " from now"})
		}
	}
	if len(rows) > 0 {
		o.heading("Future Rescheduling Attempts")
		o.table("Eval ID|Triggered By|Eval Time", rows)
	}
}

// allocTable lists allocations, newest first.
func (e *env) allocTable(list []*wire.AllocationListStub, verbose, wide bool) {
	if len(list) == 0 {
		e.println("No allocations placed")
		return
	}
	slices.SortStableFunc(list, func(x, y *wire.AllocationListStub) int {
		if x.CreateIndex != y.CreateIndex {
			return int(int64(y.CreateIndex) - int64(x.CreateIndex))
		}
		return strings.Compare(x.Name, y.Name)
	})
	all := make([]string, 0, len(list))
	for _, s := range list {
		all = append(all, s.ID)
	}
	cut := abbreviate(verbose, all)
	head := "ID|Node ID|Task Group|Version|Desired|Status|Created|Modified"
	if verbose {
		head = "ID|Eval ID|Node ID|Node Name|Task Group|Version|Desired|Status|Created|Modified"
	}
	if wide {
		head += "|Index|Exit|GPUs|Node"
	}
	rows := [][]string{}
	for _, s := range list {
		r := []string{cut(s.ID)}
		if verbose {
			r = append(r, s.EvalID)
		}
		r = append(r, shortID(s.NodeID, verbose))
		if verbose {
			r = append(r, s.NodeName)
		}
		r = append(r, s.TaskGroup, strconv.FormatUint(s.JobVersion, 10), s.DesiredStatus, allocState(s.ClientStatus, s.Suspension), e.ageNanos(s.CreateTime, verbose), e.ageNanos(s.ModifyTime, verbose))
		if wide {
			r = append(r, strconv.Itoa(nameIndex(s.Name)), allocExit(s), gpusHeld(s.AllocatedResources), s.NodeName)
		}
		rows = append(rows, r)
	}
	e.table(head, rows)
}
