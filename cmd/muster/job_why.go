package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type jobWhyOptions struct {
	*env
	form    format
	verbose bool
	nodes   bool
}

func newJobWhy(e *env) *cobra.Command {
	o := &jobWhyOptions{env: e}
	c := e.verb("why [options] JOB", "Say why a job waits, or why it runs where it runs",
		"Say in words and numbers why a job waits: what it needs, which nodes refuse it and by how much, who is ahead, and what would cure it.", `
muster job why example
muster job why -nodes train
muster job why -json train`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.nodes, "nodes", false, "each node that cannot take an allocation now, by name, with the reason")
	c.Flags().BoolVar(&o.verbose, "verbose", false, "how the chosen nodes scored, too")
	return c
}

func (o *jobWhyOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	stub, err := a.job(ctx, args[0])
	if err != nil {
		return err
	}
	var w nomadlike.Why
	q := ns(stub.Namespace)
	queryFlag(q, "nodes", o.nodes)
	if _, err := a.get(ctx, jobPath(stub.ID, "/why"), q, &w); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &w); done || err != nil {
		return err
	}
	if w.Status == "dead" && stub.Status == "dead" {
		w.Status = "dead: " + jobState(stub)
	}
	o.print(&w)
	if err := o.tasks(ctx, a, stub); err != nil {
		return err
	}
	if w.Waiting == 0 && w.Reason == "" && len(w.Updating) == 0 {
		return o.retries(ctx, a, stub)
	}
	return nil
}

// whyTasks is how many allocations that start, and how many that failed, job why says more of.
const whyTasks = 3

// tasks says what allocations that are starting do, and how those that failed ended.
func (o *jobWhyOptions) tasks(ctx context.Context, a *api, stub *wire.JobListStub) error {
	n := sumOf(stub)
	var lines [][2]string
	for _, x := range []struct {
		n           int
		key, filter string
		text        func(*wire.AllocationListStub) string
	}{
		{n.Failed, "failed", `ClientStatus == "failed" and NextAllocation == ""`, howFailed},
		{n.Starting, "starting", `ClientStatus == "pending" and DesiredStatus == "run"`, lastOf},
	} {
		if x.n == 0 {
			continue
		}
		var list []*wire.AllocationListStub // an array may have 100,000
		q := ns(stub.Namespace)
		q.Set("filter", x.filter)
		q.Set("per_page", strconv.Itoa(whyTasks))
		if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), q, &list); err != nil {
			return err
		}
		for _, s := range list {
			if text := x.text(s); text != "" {
				lines = append(lines, [2]string{x.key, fmt.Sprintf("%s on %s: %s (muster alloc status %s)", s.Name, orDash(s.NodeName), text, shortID(s.ID, o.verbose))})
			}
		}
	}
	o.pairs("  ", lines)
	return nil
}

// lastOf returns what an allocation's tasks did last.
func lastOf(s *wire.AllocationListStub) string {
	var texts []string
	for _, name := range sortedKeys(s.TaskStates) {
		if events := s.TaskStates[name].Events; len(events) > 0 {
			e := events[len(events)-1]
			texts = append(texts, fmt.Sprintf("task %s: %s", name, cmp.Or(e.DisplayMessage, e.Message, e.Type)))
		}
	}
	return strings.Join(texts, "; ")
}

// howFailed returns how the task ended that made an allocation fail.
func howFailed(s *wire.AllocationListStub) string {
	for _, name := range sortedKeys(s.TaskStates) {
		st := s.TaskStates[name]
		if !st.Failed {
			continue
		}
		for _, e := range slices.Backward(st.Events) {
			switch {
			case e.Type == "Terminated" && e.ExitCode != 0:
				return fmt.Sprintf("task %s ended with exit code %d", name, e.ExitCode)
			case e.FailsTask && e.Type != "Not Restarting" && e.Type != "Terminated":
				return fmt.Sprintf("task %s: %s", name, cmp.Or(e.Details["kill_reason"], e.DisplayMessage, e.Message, e.Type))
			}
		}
	}
	return s.ClientDescription
}

// retries says when what failed of a job is tried again.
func (o *jobWhyOptions) retries(ctx context.Context, a *api, stub *wire.JobListStub) error {
	if s := stub.JobSummary; s == nil || !slices.ContainsFunc(slices.Collect(maps.Values(s.Summary)), func(g wire.TaskGroupSummary) bool { return g.Failed+g.Lost > 0 }) {
		return nil
	}
	var evals []*wire.Evaluation
	if _, err := a.get(ctx, jobPath(stub.ID, "/evaluations"), ns(stub.Namespace), &evals); err != nil {
		return err
	}
	evals = slices.DeleteFunc(evals, func(ev *wire.Evaluation) bool { return ev.Status != "pending" || !ev.WaitUntil.After(o.now()) })
	if len(evals) == 0 {
		return nil
	}
	next := slices.MinFunc(evals, func(x, y *wire.Evaluation) int { return x.WaitUntil.Compare(y.WaitUntil) })
	o.pairs("  ", [][2]string{{"retries", fmt.Sprintf("in %s (%s), by evaluation %s, triggered by %s", span(next.WaitUntil.Sub(o.now())), next.WaitUntil.UTC().Format(time.RFC3339), shortID(next.ID, o.verbose), next.TriggeredBy)}})
	return nil
}

func (o *jobWhyOptions) print(w *nomadlike.Why) {
	if w.Reason == "" && len(w.Groups) > 0 && w.Groups[0].Reason == structs.ReasonPreemptionPending {
		w.Reason = w.Groups[0].Reason // it has its places, and other work still occupies them
	}
	waits := w.Waiting > 0 || w.Reason != ""
	head := fmt.Sprintf("Job %s (ns %s, prio %d) is %s", o.bold(w.JobID), w.Namespace, w.Priority, o.paint(stateColour(w.Status), w.Status))
	if waits {
		head = fmt.Sprintf("Job %s (ns %s, prio %d) is %s", o.bold(w.JobID), w.Namespace, w.Priority, o.paint("33", "pending"))
		head += o.pendingFor(w)
	}
	if w.Position > 0 {
		head += fmt.Sprintf("; position %d of %d", w.Position, w.QueueLength)
	}
	if w.Queue != "" && waits {
		head += "; queue " + w.Queue
	}
	if w.Reason != "" {
		head += fmt.Sprintf(" [reason: %s]", o.paint("33", string(w.Reason)))
	}
	o.println(head)
	lines := o.lines(w, waits)
	if waits {
		adviceLines(w.Advice, func(k, f string, args ...any) { lines = append(lines, [2]string{k, fmt.Sprintf(f, args...)}) })
	}
	o.pairs("  ", lines)
	o.excluded(w)
	if waits && len(w.Groups) == 0 {
		o.hint("The scheduler has not looked at it yet; ask again in a moment.")
	}
}

// pendingFor says for how long a job has been pending and, if it ran before, how long ago it was submitted.
func (o *jobWhyOptions) pendingFor(w *nomadlike.Why) string {
	if w.SubmitTime == 0 {
		return ""
	}
	submitted := time.Unix(0, w.SubmitTime)
	if w.PendingSince-w.SubmitTime < int64(time.Second) {
		return " for " + span(o.now().Sub(submitted))
	}
	return fmt.Sprintf(" for %s (submitted %s ago)", span(o.now().Sub(time.Unix(0, w.PendingSince))), span(o.now().Sub(submitted)))
}

// excluded lists the nodes that cannot take an allocation now.
func (o *jobWhyOptions) excluded(w *nomadlike.Why) {
	if len(w.Excluded) == 0 {
		return
	}
	rows := [][]string{}
	for i := range w.Excluded {
		x := &w.Excluded[i]
		rows = append(rows, []string{shortID(x.NodeID, o.verbose), x.NodeName, x.Group, strings.TrimPrefix(refusalLine(x.Why.ToStructs()), "1 node: ")})
	}
	o.println()
	o.table("Node ID|Name|Task Group|Why not", rows)
}

// pairs prints lines with a name in front. A repeated name is left out.
func (e *env) pairs(indent string, lines [][2]string) {
	last := ""
	for _, l := range lines {
		k := l[0]
		if k == last {
			k = ""
		}
		last = l[0]
		e.printf("%s%-8s %s\n", indent, k, l[1])
	}
}

// lines describes why a job waits, as lines with names.
func (o *jobWhyOptions) lines(w *nomadlike.Why, waits bool) (lines [][2]string) {
	add := func(k, f string, args ...any) { lines = append(lines, [2]string{k, fmt.Sprintf(f, args...)}) }
	if w.Waiting > 0 {
		needs := "a place for " + plural(w.Waiting, "more allocation")
		if a := askText(w.Asks); a != "" {
			needs += ": " + a
		}
		add("needs", "%s", needs)
	}
	for _, g := range w.Groups {
		o.group(&g, waits, w.Advice != nil && w.Advice.Never != "", add)
	}
	for _, text := range w.OtherQueues {
		add("others", "%s", text)
	}
	if s := w.Summary; s != nil && !waits {
		for _, g := range sortedKeys(s.Summary) {
			t := s.Summary[g]
			text := ""
			if t.Queued > 0 { // held back by the job itself: the concurrency of an array, a rolling update
				text = fmt.Sprintf(", %d to start later", t.Queued)
			}
			add("now", "group %s: %d running, %d starting, %d complete, %d failed, %d lost%s", g, t.Running, t.Starting, t.Complete, t.Failed, t.Lost, text)
		}
	}
	for i := range w.Updating {
		for _, l := range o.updatingLines(w.JobID, w.Namespace, &w.Updating[i]) {
			add("update", "%s", l)
		}
	}
	for _, g := range sortedKeys(w.Topology) {
		add("topology", "gang %s: %s", g, w.Topology[g])
	}
	if w.Refused != "" {
		add("launches", "none: %s", w.Refused)
	}
	if s := w.Saving; s != nil {
		add("saving", "%s that must end first: %d save their state, %d wait for their turn (%s lets %d do so at a time)", plural(s.Now+s.Waiting, "allocation"), s.Now, s.Waiting, s.Where, s.Limit)
	}
	if s := w.Silent; s != nil {
		add("silent", "%s on %s, which may still run; replaced after %s, because stop_on_client_after is %s", plural(s.Allocs, "allocation"), strings.Join(s.Nodes, ", "),
			time.Unix(0, s.Until).UTC().Format(time.RFC3339), time.Duration(s.StopOnClientAfter))
	}
	if s := w.Suspended; s != nil {
		text := "for " + span(o.now().Sub(time.Unix(0, s.Since)))
		if s.Allocs > 0 {
			text += ": " + plural(s.Allocs, "allocation") + " suspended"
		}
		if s.Frozen < s.Allocs {
			text += fmt.Sprintf(" (%d so far)", s.Frozen)
		}
		if s.By != "" {
			text += ", by " + s.By
		}
		if s.Reason != "" {
			text += ": " + s.Reason
		}
		add("suspended", "%s", text)
		if s.All {
			add("suspended", "nothing more of it is placed; muster job resume %s lets it go on", w.JobID)
		}
	}
	if n := structs.RequeueCounts(w.Returned); n != (structs.RequeueCounts{}) {
		add("returned", "to the queue: %s", n.By())
	}
	if w.GivenUp != "" {
		add("given up", "%s", w.GivenUp)
	}
	if at := time.Unix(0, w.Deadline); w.DeadlineMissed {
		add("deadline", "missed %s ago (%s)", span(o.now().Sub(at)), at.UTC().Format("2006-01-02 15:04"))
	} else if w.Deadline > 0 {
		add("deadline", "in %s (%s)", span(at.Sub(o.now())), at.UTC().Format("2006-01-02 15:04"))
	}
	if len(w.Ahead) > 0 {
		names := []string{}
		for i, name := range w.Ahead[:min(len(w.Ahead), aheadShown)] {
			if i < len(w.AheadAsks) {
				if a := askText(w.AheadAsks[i]); a != "" {
					name += " (" + a + ")"
				}
			}
			names = append(names, name)
		}
		more := ""
		if n := w.Position - 1 - int64(len(names)); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		add("ahead", "%s%s", strings.Join(names, ", "), more)
	}
	if len(w.Order) > 0 {
		add("order", "%s", orderText(w.Order))
	}
	switch {
	case w.Starts != "" && w.StartEstimate > 0:
		add("starts", "%s: %s, if there is room then", w.Starts, o.startTime(w.StartEstimate))
	case w.Starts != "":
		add("starts", "%s", w.Starts)
	case w.StartEstimate > 0:
		add("starts", "%s, if nothing changes", o.startTime(w.StartEstimate))
	}
	return lines
}

// startTime says when a job is expected to start.
func (o *jobWhyOptions) startTime(at int64) string {
	t := time.Unix(0, at)
	if left := t.Sub(o.now()); left >= time.Second {
		return fmt.Sprintf("in about %s (%s)", span(left), t.UTC().Format("2006-01-02 15:04"))
	}
	return "at any moment"
}

// orderText describes the parts of a place in the queue.
func orderText(terms []nomadlike.OrderTerm) string {
	var out []string
	for _, t := range terms {
		name, value := t.Name, strconv.FormatFloat(math.Round(t.Value*1000)/1000, 'f', -1, 64)
		if n, ok := strings.CutSuffix(name, "_seconds"); ok && !strings.HasSuffix(n, "_gpu") {
			name, value = n, span(time.Duration(t.Value*float64(time.Second)))
		}
		out = append(out, strings.ReplaceAll(name, "_", " ")+" "+value)
	}
	return strings.Join(out, ", ")
}

func (o *jobWhyOptions) group(g *nomadlike.WhyGroup, waits, never bool, add func(k, f string, args ...any)) {
	missing := g.Wanted - g.Placed
	if missing > 0 || (waits && g.Reason != "") {
		reason := ""
		if g.Reason != "" {
			reason = " [" + string(g.Reason) + "]"
		}
		if gated(g) { // nodes were not considered
			add("blocked", "group %s: %d of %d placed%s", g.Name, g.Placed, g.Wanted, reason)
			for _, r := range g.Refusals {
				add("blocked", "  %s", preconditionText(r.ToStructs()))
				if c := cure(r.ToStructs()); c != "" {
					add("waits", "group %s: until %s", g.Name, c)
				}
			}
			return
		}
		add("blocked", "group %s: %d of %d placed%s; %s in the pool, %d looked at, %d excluded, %d full", g.Name, g.Placed, g.Wanted, reason, plural(g.InPool, "node"), g.Considered, g.Filtered, g.Exhausted)
		for _, r := range g.Refusals {
			add("blocked", "  %s", refusalLine(r.ToStructs())+slotText(r.ToStructs()))
		}
		for _, dc := range sortedKeys(g.Available) {
			if g.Available[dc] == 0 {
				add("blocked", "  no ready node in datacenter %s", dc)
			}
		}
		if g.InPool == 0 {
			add("waits", "group %s: until a node joins the pool", g.Name)
		}
		var cures []string
		for _, r := range g.Refusals {
			if c := cureOf(r.ToStructs(), never); c != "" && !slices.Contains(cures, c) {
				cures = append(cures, c)
			}
		}
		for _, c := range cures {
			add("waits", "group %s: until %s", g.Name, c)
		}
	}
	if o.verbose || !waits {
		for _, s := range g.Scores {
			name := s.NodeName
			if name == "" {
				name = shortID(s.NodeID, o.verbose)
			}
			terms := []string{}
			for _, t := range sortedKeys(s.Terms) {
				terms = append(terms, t+" "+scoreText(s.Terms[t], 'f'))
			}
			add("scores", "group %s: %s %.3f (%s)", g.Name, name, s.Score, strings.Join(terms, ", "))
		}
	}
}

// aheadShown limits the listed jobs ahead.
const aheadShown = 5

// adviceLines prints which changes would start a job.
func adviceLines(a *nomadlike.Advice, add func(k, f string, args ...any)) {
	if a == nil {
		return
	}
	if a.Starts {
		add("try", "nothing: there is room now, and the next decision places it")
	}
	if a.Never != "" {
		add("never", "%s", a.Never)
	}
	if h := a.Holders; h != nil {
		names := ""
		if len(h.Names) > 0 {
			names = " (" + strings.Join(h.Names, ", ")
			if int64(len(h.Names)) < h.Jobs {
				names += fmt.Sprintf(" and %d more", h.Jobs-int64(len(h.Names)))
			}
			names += ")"
		}
		add("held by", "%s of %s%s, only because they are not preemptible", plural(h.Allocations, "allocation"), plural(h.Jobs, "job"), names)
		ends := "no end is known"
		if h.Until > 0 {
			ends = "it should have ended by " + time.Unix(0, h.Until).UTC().Format("2006-01-02 15:04")
		}
		add("held by", "  mark such work preemptible (preemptible = true, muster run -preemptible), or wait: %s", ends)
	}
	for i, c := range a.Changes {
		or := ""
		if i > 0 {
			or = "or "
		}
		add("try", "%s%s", or, c.Text)
	}
}

// askText formats an amount, "" for nothing.
func askText(a nomadlike.Ask) string {
	parts := []string{}
	if a.GPUs > 0 {
		unit := " GPUs"
		if a.GPUs == 1 {
			unit = " GPU"
		}
		parts = append(parts, strconv.FormatFloat(a.GPUs, 'f', -1, 64)+unit)
	}
	if a.GPUMemoryMiB > 0 {
		parts = append(parts, mib(a.GPUMemoryMiB)+" of GPU memory")
	}
	if a.CPU > 0 {
		parts = append(parts, fmt.Sprintf("%d MHz", a.CPU))
	}
	if a.MemoryMiB > 0 {
		parts = append(parts, mib(a.MemoryMiB))
	}
	return strings.Join(parts, ", ")
}
