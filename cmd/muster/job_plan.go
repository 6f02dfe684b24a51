package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// Exit codes of job plan.
const (
	planSame    = 0   // nothing would be created or destroyed
	planChanges = 1   // something would be
	planError   = 255 // the plan could not be made
)

type jobPlanOptions struct {
	*env
	file           jobFile
	form           format
	diff           bool
	verbose        bool
	policyOverride bool
	told           bool // the plan was printed; the error is only its exit code
}

func newJobPlan(e *env) *cobra.Command {
	o := &jobPlanOptions{env: e}
	c := e.verb("plan [options] FILE", "Show what submitting a job file would do",
		`Show what submitting a job file would do, without doing it: the difference to the running version, the nodes and GPUs
that it would get, what it would displace, and what its quota and queues would hold before and after. The last line submits
exactly what was planned (-check-index).

The exit code is 0 when no allocation would be created or destroyed, 1 when some would, 255 on errors.`, `
muster job plan example.muster.hcl
muster job plan -diff=false -var version=2 web.hcl`, 0, -1, o.run)
	o.form.template(c)
	o.file.flags(c)
	c.Flags().BoolVar(&o.diff, "diff", true, "show the difference to the running version")
	c.Flags().BoolVar(&o.verbose, "verbose", false, "every field of what is new or gone, and long ids")
	c.Flags().BoolVar(&o.policyOverride, "policy-override", false, "accepted for Nomad's scripts; there are no such policies")
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		e.hint("Error: %v (%s -help lists the flags)", err, c.CommandPath())
		return exitCode(planError)
	})
	return c
}

func (o *jobPlanOptions) run(ctx context.Context, args []string) error {
	err := o.plan(ctx, args)
	var code exitCode
	switch {
	case err == nil, errors.As(err, &code) && int(code) == planChanges && o.told:
		return err
	case !errors.As(err, &code):
		o.hint("Error: %v", err)
	}
	return exitCode(planError)
}

func (o *jobPlanOptions) plan(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("muster job plan takes one job file, got %d arguments", len(args))
	}
	job, _, err := o.file.read(ctx, o.env, args[0])
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp nomadlike.Plan
	req := wire.JobPlanRequest{Job: job, Diff: o.diff, PolicyOverride: o.policyOverride}
	if _, err := a.put(ctx, jobPath(*job.ID, "/plan"), ns(val(job.Namespace)), req, &resp); err != nil {
		return o.file.refused(o.env, err)
	}
	if done, err := o.form.done(o.env, &resp); err != nil {
		return err
	} else if !done {
		o.print(args[0], &resp)
	}
	o.told = true
	if planCode(&resp) != planSame {
		return exitCode(planChanges)
	}
	return nil
}

// planCode returns whether a plan creates or destroys anything, as an exit code.
func planCode(resp *nomadlike.Plan) int {
	if resp.Annotations != nil {
		for _, d := range resp.Annotations.DesiredTGUpdates {
			if d.Stop+d.Place+d.Migrate+d.DestructiveUpdate+d.Canary > 0 {
				return planChanges
			}
		}
	}
	return planSame
}

func (o *jobPlanOptions) print(file string, resp *nomadlike.Plan) {
	if resp.Diff != nil {
		d := differ{o.env, o.verbose}
		d.job(resp.Diff, resp.Annotations)
		o.println()
	} else if resp.Annotations != nil {
		o.println(o.bold("Changes:"))
		for _, g := range sortedKeys(resp.Annotations.DesiredTGUpdates) {
			o.printf("- Task group %q%s\n", g, updatesText(resp.Annotations.DesiredTGUpdates[g]))
		}
		o.println()
	}
	o.println(o.bold("Scheduler dry run:"))
	if len(resp.FailedTGAllocs) == 0 {
		o.println(o.paint("32", "- Everything can be placed."))
		if w := resp.Why; w != nil {
			for _, g := range sortedKeys(w.Topology) {
				o.printf("    * Gang %q: %s\n", g, w.Topology[g])
			}
		}
	} else if w := resp.Why; w != nil {
		o.waits(w)
	} else { // an agent that reports no more
		o.println(o.paint("33", "- WARNING: not everything can be placed now."))
		for _, g := range sortedKeys(resp.FailedTGAllocs) {
			m := resp.FailedTGAllocs[g]
			o.printf("  Task group %q: %s without a place\n", g, plural(int64(m.CoalescedFailures+1), "allocation"))
			for _, l := range metricLines(m, resp.NeverFits) {
				o.printf("    * %s\n", l)
			}
		}
	}
	o.places(resp)
	if resp.NeverFits != "" {
		o.println(o.paint("33", "- It can never be placed here: ") + resp.NeverFits)
	}
	if len(resp.Suggestions) > 0 {
		o.println("- Everything could be placed with:")
		for i, s := range resp.Suggestions {
			if i > 0 {
				s = "or " + s
			}
			o.printf("    * %s\n", s)
		}
	}
	if n := resp.NextPeriodicLaunch; !n.IsZero() && n.UnixNano() > 0 {
		o.printf("- It would be launched next at %s (in %s).\n", date(n), span(n.Sub(o.now())))
	}
	if resp.Annotations != nil && len(resp.Annotations.PreemptedAllocs) > 0 {
		o.println(o.paint("33", "- It would displace:"))
		rows, why := [][]string{}, []string{}
		for _, p := range resp.Annotations.PreemptedAllocs {
			rows = append(rows, []string{shortID(p.ID, o.verbose), p.JobID, p.TaskGroup, orNone(p.NodeName)})
			if text := p.JobID + ": " + p.DesiredDescription; p.DesiredDescription != "" && !slices.Contains(why, text) {
				why = append(why, text)
			}
		}
		o.table("Allocation|Job|Task Group|Node", rows)
		for _, w := range why {
			o.printf("    * %s\n", w)
		}
		if n := resp.LostGPUSeconds; n > 0 {
			o.printf("    * In all, %.1f GPU hours of work have no checkpoint yet and would be lost, unless it is saved before it stops.\n", float64(n)/3600)
		}
	}
	o.limits(resp.Use)
	o.risk(resp.Risk)
	o.println()
	o.file.warn(o.env, resp.Warnings)
	o.printf("%s %d\n", o.bold("Job Modify Index:"), resp.JobModifyIndex)
	var flags []string
	for _, v := range o.file.vars {
		flags = append(flags, fmt.Sprintf(" -var %q", v))
	}
	for _, v := range o.file.varFiles {
		flags = append(flags, fmt.Sprintf(" -var-file=%q", v))
	}
	o.printf("Submit exactly this, refused if the job changes in between:\n\n  muster job run -check-index %d%s %s\n", resp.JobModifyIndex, strings.Join(flags, ""), file)
}

// places prints where allocations would run, and on which GPUs: a line for each group and node.
func (o *jobPlanOptions) places(resp *nomadlike.Plan) {
	if len(resp.Places) == 0 {
		return
	}
	type line struct {
		group, node string
		indexes     []int
		gpus        []string
	}
	var lines []*line
	for _, p := range resp.Places {
		i := slices.IndexFunc(lines, func(l *line) bool { return l.group == p.Group && l.node == p.NodeID })
		if i < 0 {
			i, lines = len(lines), append(lines, &line{group: p.Group, node: p.NodeID})
		}
		l := lines[i]
		l.indexes = append(l.indexes, p.Index)
		if gpus := plannedGPUs(p.GPUs); gpus != "" && !slices.Contains(l.gpus, gpus) {
			l.gpus = append(l.gpus, gpus)
		}
	}
	o.println("- It would run on:")
	rows := [][]string{}
	for _, l := range lines {
		name := l.node
		for _, p := range resp.Places {
			if p.NodeID == l.node && p.NodeName != "" {
				name = p.NodeName
			}
		}
		slices.Sort(l.indexes)
		rows = append(rows, []string{l.group, indexText(l.indexes), name, orDash(strings.Join(l.gpus, "; "))})
	}
	o.table("Task Group|Allocations|Node|GPUs", rows)
	if n := resp.MorePlaces; n > 0 {
		o.printf("    * and %s more\n", plural(n, "allocation"))
	}
}

// indexText formats sorted indexes, runs of them as a range: "0-3, 7".
func indexText(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		} else {
			parts = append(parts, strconv.Itoa(list[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// plannedGPUs formats GPUs by model: "H100 0-3", "A100 2 (20 GiB)".
func plannedGPUs(gpus []nomadlike.PlannedGPU) string {
	var parts []string
	for i := 0; i < len(gpus); {
		j := i
		var indexes []int
		for ; j < len(gpus) && gpus[j].Model == gpus[i].Model && gpus[j].ShareMiB == gpus[i].ShareMiB; j++ {
			indexes = append(indexes, int(gpus[j].Index))
		}
		text := gpus[i].Model
		if gpus[i].Index >= 0 {
			text += " " + indexText(indexes)
		} else {
			text = fmt.Sprintf("%d %s", j-i, text)
		}
		if gpus[i].ShareMiB > 0 {
			text += " (" + mib(gpus[i].ShareMiB) + " of it)"
		}
		parts = append(parts, text)
		i = j
	}
	return strings.Join(parts, ", ")
}

// limits prints what quota and queues hold before and after, where they limit it.
func (o *jobPlanOptions) limits(list []nomadlike.PlannedUse) {
	rows := [][]string{}
	for _, u := range list {
		add := func(what string, before, after, limit *float64) {
			if limit == nil {
				return
			}
			text := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
			note := ""
			if val(after) > *limit {
				note = "exceeds it by " + text(val(after)-*limit)
			}
			rows = append(rows, []string{u.Kind + " " + u.Name, what, text(val(before)), text(val(after)), text(*limit), note})
		}
		float := func(n *int64) *float64 {
			if n == nil {
				return nil
			}
			f := float64(*n)
			return &f
		}
		add("GPUs", u.Before.GPUs, u.After.GPUs, u.Limit.GPUs)
		add("GPU memory (MiB)", float(u.Before.GPUMemoryMB), float(u.After.GPUMemoryMB), float(u.Limit.GPUMemoryMB))
		add("CPU (MHz)", float(u.Before.CPU), float(u.After.CPU), float(u.Limit.CPU))
		add("Memory (MiB)", float(u.Before.MemoryMB), float(u.After.MemoryMB), float(u.Limit.MemoryMB))
	}
	if len(rows) > 0 {
		o.println("- Of its limits it would use, with all that it asks for:")
		o.table("Limit|Resource|Before|After|Of|", rows)
	}
}

// risk prints what interruptions are expected to cost, by group.
func (o *jobPlanOptions) risk(r *nomadlike.PlanRisk) {
	if r == nil {
		return
	}
	lost := "no allocation was lost"
	if r.Lost > 0 {
		lost = plural(r.Lost, "allocation") + " lost"
	}
	o.printf("- Risk, from the last 30 days (%s with a node in %.0f h of running, %s in %.0f h of jobs of its queue):\n",
		lost, time.Duration(r.AllocTime).Hours(), plural(r.Preempted, "preemption"), time.Duration(r.JobTime).Hours())
	for _, g := range r.Groups {
		o.printf("    * Group %q: in %s, %.2g losses of a node and %.2g preemptions are expected, and %.1f GPU hours of work lost by them\n",
			g.Group, span(time.Duration(g.ExpectedRun)), g.NodeLosses, g.Preemptions, float64(g.LostGPUSeconds)/3600)
		best, interval := time.Duration(g.BestInterval), time.Duration(g.CheckpointInterval)
		switch {
		case best == 0 || best >= time.Duration(g.ExpectedRun):
		case interval == 0:
			o.printf("      if it saves nothing by itself; a checkpoint every %s would lose least (checkpoint interval)\n", span(best))
		case interval > 2*best || interval < best/2:
			o.printf("      with a checkpoint every %s; one every %s would lose least\n", span(interval), span(best))
		}
		if w := g.WorstNode; w != nil && w.ExpectedLoss < w.TypicalLoss {
			o.printf("      of its nodes, %s is the least reliable: %s\n", cmp.Or(w.NodeName, w.NodeID), reliability(&w.NodeReliability))
		}
	}
}

// waits prints what prevents placement, in the words of job why.
func (o *jobPlanOptions) waits(w *nomadlike.Why) {
	head := "- WARNING: not everything can be placed now; it would wait in queue " + cmp.Or(w.Queue, string(structs.QueueDefault))
	if w.Position > 0 {
		head += fmt.Sprintf(", at position %d of %d", w.Position, w.QueueLength)
	}
	if w.Reason != "" {
		head += " [reason: " + string(w.Reason) + "]"
	}
	o.println(o.paint("33", head))
	o.pairs("    ", (&jobWhyOptions{env: o.env}).lines(w, true))
}

func updatesText(u *wire.DesiredUpdates) string {
	var parts []string
	for _, x := range []struct {
		n    uint64
		what string
	}{{u.Place, "create"}, {u.Stop, "destroy"}, {u.InPlaceUpdate, "in-place update"}, {u.DestructiveUpdate, "create/destroy update"},
		{u.Migrate, "migrate"}, {u.Canary, "canary"}, {u.RescheduleNow, "reschedule now"}, {u.RescheduleLater, "reschedule later"},
		{u.Preemptions, "preemption"}, {u.Disconnect, "disconnect"}, {u.Reconnect, "reconnect"}, {u.Ignore, "ignore"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// differ prints the difference between two versions of a job, as an indented tree with marks.
type differ struct {
	*env
	verbose bool // also print the fields of added and deleted objects
}

func (d differ) mark(typ string) string {
	switch typ {
	case "Added":
		return d.paint("32", "+ ")
	case "Deleted":
		return d.paint("31", "- ")
	case "Edited":
		return d.paint("33", "+/- ")
	}
	return ""
}

func (d differ) line(depth int, typ, f string, args ...any) {
	d.printf("%s%s%s\n", strings.Repeat("  ", depth), d.mark(typ), fmt.Sprintf(f, args...))
}

func (d differ) job(j *wire.JobDiff, an *wire.PlanAnnotations) {
	d.line(0, j.Type, "%s %q", d.bold("Job:"), j.ID)
	if j.Type == "Edited" || d.verbose {
		d.body(0, j.Fields, j.Objects)
	}
	for _, g := range j.TaskGroups {
		if g.Type == "None" && !hasUpdates(an, g.Name) && len(g.Tasks) == 0 {
			continue
		}
		updates := updatesMap(g.Updates)
		if updates == "" && an != nil && an.DesiredTGUpdates[g.Name] != nil {
			updates = updatesText(an.DesiredTGUpdates[g.Name])
		}
		d.line(0, g.Type, "%s %q%s", d.bold("Task Group:"), g.Name, updates)
		if g.Type == "Edited" || d.verbose {
			d.body(1, g.Fields, g.Objects)
		}
		for _, t := range g.Tasks {
			if t.Type == "None" && len(t.Annotations) == 0 {
				continue
			}
			d.line(1, t.Type, "%s %q%s", d.bold("Task:"), t.Name, annotations(t.Annotations))
			if t.Type == "Edited" || d.verbose {
				d.body(2, t.Fields, t.Objects)
			}
		}
	}
}

func hasUpdates(an *wire.PlanAnnotations, group string) bool {
	return an != nil && an.DesiredTGUpdates[group] != nil && updatesText(an.DesiredTGUpdates[group]) != ""
}

func updatesMap(m map[string]uint64) string {
	var parts []string
	for _, k := range sortedKeys(m) {
		if m[k] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", m[k], k))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

func annotations(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// durationFields are printed in human-readable form; in a difference they are nanoseconds.
var durationFields = []string{"Delay", "HealthyDeadline", "Interval", "KillTimeout", "LostAfter", "MaxDelay", "MaxRunDuration", "MinHealthyTime",
	"ProgressDeadline", "ShutdownDelay", "Splay", "Stagger", "StopOnClientAfter", "Timeout", "TTL"}

func fieldText(name, value string) string {
	if slices.Contains(durationFields, name) {
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			return time.Duration(n).String()
		}
	}
	return value
}

// body prints fields and blocks.
func (d differ) body(depth int, fields []*wire.FieldDiff, objects []*wire.ObjectDiff) {
	width := 0
	for _, f := range fields {
		if f.Type != "None" {
			width = max(width, len(f.Name))
		}
	}
	for _, f := range fields {
		pad := strings.Repeat(" ", max(0, width-len(f.Name)))
		switch f.Type {
		case "Added":
			d.line(depth, f.Type, "%s:%s %q%s", f.Name, pad, fieldText(f.Name, f.New), annotations(f.Annotations))
		case "Deleted":
			d.line(depth, f.Type, "%s:%s %q%s", f.Name, pad, fieldText(f.Name, f.Old), annotations(f.Annotations))
		case "Edited":
			d.line(depth, f.Type, "%s:%s %q => %q%s", f.Name, pad, fieldText(f.Name, f.Old), fieldText(f.Name, f.New), annotations(f.Annotations))
		}
	}
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b *wire.ObjectDiff) int { return strings.Compare(a.Name, b.Name) })
	for _, o := range sorted {
		if o.Type == "None" {
			continue
		}
		d.line(depth, o.Type, "%s {", o.Name)
		d.body(depth+2, o.Fields, o.Objects)
		d.printf("%s}\n", strings.Repeat("  ", depth+1))
	}
}
