package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

type jobWhyOptions struct {
	*env
	form    format
	verbose bool
}

func newJobWhy(e *env) *cobra.Command {
	o := &jobWhyOptions{env: e}
	c := e.verb("why [options] JOB", "Say why a job waits, or why it runs where it runs",
		"Say in words and numbers why a job waits: what it needs, which nodes refuse it and by how much, who is ahead, and what would cure it.", `
muster job why example
muster job why -json train`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.verbose, "verbose", false, "how the chosen nodes scored, too")
	return e.complete(c, "jobs")
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
	if _, err := a.get(ctx, jobPath(stub.ID, "/why"), ns(stub.Namespace), &w); err != nil {
		return err
	}
	if done, err := o.form.done(o.env, &w); done || err != nil {
		return err
	}
	o.print(&w)
	return nil
}

func (o *jobWhyOptions) print(w *nomadlike.Why) {
	if w.Reason == "" && len(w.Groups) > 0 && w.Groups[0].Reason == "PREEMPTION_PENDING" {
		w.Reason = w.Groups[0].Reason // it has its places, and others are still in them
	}
	waits := w.Waiting > 0 || w.Reason != ""
	head := fmt.Sprintf("Job %s (ns %s, prio %d) is %s", o.bold(w.JobID), w.Namespace, w.Priority, o.paint(stateColour(w.Status), w.Status))
	if waits {
		head = fmt.Sprintf("Job %s (ns %s, prio %d) is %s", o.bold(w.JobID), w.Namespace, w.Priority, o.paint("33", "pending"))
		if w.SubmitTime > 0 {
			head += " for " + span(o.now().Sub(time.Unix(0, w.SubmitTime)))
		}
	}
	if w.Position > 0 {
		head += fmt.Sprintf("; position %d of %d", w.Position, w.QueueLength)
	}
	if w.Queue != "" && waits {
		head += "; queue " + w.Queue
	}
	if w.Reason != "" {
		head += fmt.Sprintf(" [reason: %s]", o.paint("33", w.Reason))
	}
	o.println(head)
	lines := o.lines(w, waits)
	if waits {
		adviceLines(w.Advice, func(k, f string, args ...any) { lines = append(lines, [2]string{k, fmt.Sprintf(f, args...)}) })
	}
	o.pairs("  ", lines)
	if waits && len(w.Groups) == 0 {
		o.hint("The scheduler has not looked at it yet; ask again in a moment.")
	}
}

// pairs prints lines with their names in front, each name once.
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

// lines tell why a job waits, with a name for each.
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
	if s := w.Summary; s != nil && !waits {
		for _, g := range sortedKeys(s.Summary) {
			t := s.Summary[g]
			add("now", "group %s: %d running, %d starting, %d complete, %d failed, %d lost", g, t.Running, t.Starting, t.Complete, t.Failed, t.Lost)
		}
	}
	if s := w.Saving; s != nil {
		add("saving", "%s that must end first: %d save their state, %d wait for their turn (%s lets %d do so at a time)", plural(s.Now+s.Waiting, "allocation"), s.Now, s.Waiting, s.Where, s.Limit)
	}
	if s := w.Suspended; s != nil {
		text := "for " + span(o.now().Sub(time.Unix(0, s.Since)))
		if s.Allocs > 0 {
			text += ": " + plural(s.Allocs, "allocation") + " standing still"
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
	switch at := time.Unix(0, w.StartEstimate); {
	case w.Starts != "" && w.StartEstimate > 0:
		add("starts", "%s: in about %s (%s), if there is room then", w.Starts, span(at.Sub(o.now())), at.UTC().Format("2006-01-02 15:04"))
	case w.Starts != "":
		add("starts", "%s", w.Starts)
	case w.StartEstimate > 0:
		add("starts", "in about %s (%s), if nothing changes", span(at.Sub(o.now())), at.UTC().Format("2006-01-02 15:04"))
	}
	return lines
}

// orderText says what a place in line is made of.
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
			reason = " [" + g.Reason + "]"
		}
		if gated(g) { // no node was asked
			add("blocked", "group %s: %d of %d placed%s", g.Name, g.Placed, g.Wanted, reason)
			for _, r := range g.Refusals {
				add("blocked", "  %s", gateText(r.Reason, r.Dimension, r.Short, r.Unit))
				if c := cure(r); c != "" {
					add("fits if", "group %s: %s", g.Name, c)
				}
			}
			return
		}
		add("blocked", "group %s: %d of %d placed%s; %s in the pool, %d looked at, %d excluded, %d full", g.Name, g.Placed, g.Wanted, reason, plural(g.InPool, "node"), g.Considered, g.Filtered, g.Exhausted)
		for _, r := range g.Refusals {
			add("blocked", "  %s", refusalLine(r.Reason, r.Dimension, r.Nodes, r.Short, r.Unit, "")+slotText(r.Largest, r.Unit))
		}
		for _, dc := range sortedKeys(g.Available) {
			if g.Available[dc] == 0 {
				add("blocked", "  no ready node in datacenter %s", dc)
			}
		}
		if g.InPool == 0 {
			add("fits if", "group %s: a node joins the pool", g.Name)
		}
		var cures []string
		for _, r := range g.Refusals {
			if never && r.CuredBy != "node-joined" {
				continue // nothing that comes free would do
			}
			if c := cure(r); c != "" && !slices.Contains(cures, c) {
				cures = append(cures, c)
			}
		}
		for _, c := range cures {
			add("fits if", "group %s: %s", g.Name, c)
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
				terms = append(terms, fmt.Sprintf("%s %.3f", t, s.Terms[t]))
			}
			add("scores", "group %s: %s %.3f (%s)", g.Name, name, s.Score, strings.Join(terms, ", "))
		}
	}
}

// gated reports whether a group waits for something that no node has to do with.
func gated(g *nomadlike.WhyGroup) bool {
	return len(g.Refusals) > 0 && g.Considered == 0 && !slices.ContainsFunc(g.Refusals, func(r nomadlike.Refusal) bool { return r.Nodes > 0 || r.CuredBy == "node-joined" })
}

// gateText says in words what stands in the way whatever single nodes offer.
func gateText(code, dimension string, short int64, unit string) string {
	who, what, _ := strings.Cut(dimension, ": ")
	lack := lackText(short, unit, dimension)
	if dimension == structs.DimensionSpares {
		return fmt.Sprintf("it runs, and is short of %s, for which nothing is free", lack)
	}
	if dimension == structs.DimensionGrowth {
		if code == "PRIORITY" {
			return fmt.Sprintf("it has its minimum and may grow by %s, but others come first", lack)
		}
		return fmt.Sprintf("it has its minimum and may grow by %s, for which nothing is free", lack)
	}
	switch code {
	case "QUOTA":
		if unit == "jobs" || unit == "minutes" {
			return fmt.Sprintf("%s: the cap on %s would be passed by %d", who, what, short)
		}
		return fmt.Sprintf("%s: the limit of %s would be passed by %s", who, what, lack)
	case "BEGIN_TIME":
		return "it " + dimension
	case "HELD":
		return "it is " + dimension
	case "RATE_LIMIT":
		return fmt.Sprintf("others would make room, but %s are limited to so many an hour", dimension)
	case "PREEMPTION_PENDING":
		return fmt.Sprintf("%s (%s)", dimension, lack)
	case "RESERVATION":
		if strings.HasPrefix(dimension, structs.DimensionOwn) {
			return dimension + " is promised to it"
		}
	case "GANG":
		return dimension
	case "TOPOLOGY":
		return dimension
	case "PRIORITY":
		if unit == "GPU seconds" {
			return fmt.Sprintf("%s, by %s", dimension, lack)
		}
		return dimension
	case "DEPENDENCY", "CONSTRAINT":
		return dimension
	}
	if short > 0 {
		return fmt.Sprintf("%s, short by %s", dimension, lack)
	}
	return dimension
}

// lackText is an amount with its unit; whole devices are GPUs where the dimension says so.
func lackText(n int64, unit, dimension string) string {
	switch {
	case unit == "MiB":
		return mib(n)
	case unit == "%":
		return fmt.Sprintf("%d%%", n)
	case unit == "devices" && strings.Contains(dimension, "gpu"), unit == "GPUs":
		return plural(n, "GPU")
	case n == 1:
		unit = strings.TrimSuffix(unit, "s")
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", n, unit))
}

// aheadShown is how many jobs ahead are named.
const aheadShown = 5

// adviceLines prints what would start a job.
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
	for i, c := range a.Changes {
		or := ""
		if i > 0 {
			or = "or "
		}
		add("try", "%s%s", or, c.Text)
	}
}

// askText is an amount in words, "" for nothing.
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

// slotText tells the largest amount that is free on one GPU; "" for nothing.
func slotText(largest int64, unit string) string {
	switch {
	case largest <= 0:
		return ""
	case unit == "MiB":
		return "; the largest free slot is " + mib(largest)
	}
	return fmt.Sprintf("; the most that is free on one GPU is %d%s", largest, unit)
}

// cure says what would have to happen for one kind of refusal to end.
func cure(r nomadlike.Refusal) string {
	switch r.Reason {
	case "HELD":
		if strings.HasPrefix(r.Dimension, "suspended") {
			return "somebody resumes it (muster job resume)"
		}
		return "somebody releases it (muster job release)"
	case "QUOTA":
		if strings.HasPrefix(r.Dimension, "quota ") {
			return "others of its namespaces end, or the quota is raised (muster quota apply)"
		}
		return "others of the queue end, or its limit is raised (muster queue apply)"
	case "POWER":
		if r.Unit == "W" {
			return "work on GPUs of the pool ends, or its budget is raised (muster node pool apply -power-budget-w)"
		}
		return "the pool has no budget, or their driver tells a limit"
	case "BEGIN_TIME":
		return "the time comes"
	case "DEPENDENCY":
		return "that job gets there"
	case "RATE_LIMIT":
		return "an hour has passed since others made room, or preempt_rate is raised (muster queue apply)"
	case "GANG", "TOPOLOGY":
		if r.Unit == "members" {
			return plural(r.Short, "more member") + " would find a place at the same time"
		}
	case "PREEMPTION_PENDING":
		return "they have ended"
	case "RESERVATION":
		switch {
		case strings.HasPrefix(r.Dimension, structs.DimensionOwn):
			return ""
		case strings.HasPrefix(r.Dimension, structs.DimensionReserved):
			return r.Dimension + " is over, or deleted (muster reservation list)"
		}
		return "it promises to end before that (runtime.limit), or the other job has run or is gone"
	case "PRIORITY":
		if r.Unit == "GPU seconds" {
			return ""
		}
		if strings.HasPrefix(r.Dimension, "nobody passes ") {
			return "that job starts or is gone, or the queue's backfill lets others pass (muster queue apply)"
		}
	}
	switch {
	case strings.HasPrefix(r.Dimension, structs.DimensionNear):
		return "some of them run there: " + r.Dimension
	case strings.HasPrefix(r.Dimension, structs.DimensionAway), strings.Contains(r.Dimension, structs.DimensionKeepsAway):
		return "those end, or the job may lie beside them: " + r.Dimension
	}
	amount := fmt.Sprintf("%d %s of %s", r.Short, r.Unit, r.Dimension)
	switch r.Unit {
	case "MiB":
		amount = mib(r.Short) + " of " + r.Dimension
		if r.Largest > 0 && r.CuredBy == "node-joined" {
			return fmt.Sprintf("a node with GPUs of at least %s joins, or the job asks for %s less", mib(r.Largest+r.Short), mib(r.Short))
		}
		if r.Largest > 0 && r.CuredBy == "alloc-stopped" {
			return fmt.Sprintf("another %s comes free on one GPU that has %s free now, or the job asks for %s less", amount, mib(r.Largest), mib(r.Short))
		}
	case "devices", "":
		amount = fmt.Sprintf("%d %s", r.Short, r.Dimension)
		if r.Short > 1 && r.CuredBy == "alloc-stopped" {
			return fmt.Sprintf("another %s come free on %s", amount, nodesText(r.Nodes))
		}
	}
	where := nodesText(r.Nodes)
	switch r.CuredBy {
	case "alloc-stopped":
		if r.Short > 0 {
			return fmt.Sprintf("another %s comes free on %s", amount, where)
		}
		return fmt.Sprintf("%s comes free on %s", r.Dimension, where)
	case "node-joined":
		if what, ok := strings.CutPrefix(r.Dimension, "missing "); ok {
			what, hint, _ := strings.Cut(what, "; ")
			if strings.Contains(hint, structs.MIGCouldBe) {
				return "an operator makes such an instance, or a node with " + what + " becomes ready"
			}
			return "a node with " + what + " becomes ready"
		}
		if r.Reason == "NODE_INELIGIBLE" {
			return "a node becomes ready"
		}
		if taint, ok := strings.CutPrefix(r.Dimension, "taint "); ok {
			return fmt.Sprintf("a node without taint %s becomes ready, or the job has a toleration { key = %q }", taint, strings.SplitN(taint, "=", 2)[0])
		}
		return "a node with " + r.Dimension + " becomes ready"
	case "job-changed":
		return fmt.Sprintf("the job asks for less or other %s", r.Dimension)
	}
	if c := cureText(r.CuredBy); c != "" {
		return strings.TrimSuffix(strings.TrimSuffix(c, " would cure it"), " will cure it") + ": " + r.Dimension
	}
	return ""
}

func nodesText(n int64) string {
	if n > 1 {
		return fmt.Sprintf("one of those %d nodes", n)
	}
	return "that node"
}
