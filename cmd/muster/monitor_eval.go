package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	pollWait  = 2 * time.Second        // maximum duration of one blocking query
	pollQuiet = 100 * time.Millisecond // between queries without news
	whyAfter  = time.Second            // waiting time before the reason is queried
)

// progress follows the effects of a request and prints them line by line:
//
//	queued -> placing (n/m) -> pulling -> starting (n/m) -> running
//
// Each phase is printed when it begins, with the time since the request. It ends when the evaluation is complete and, with follow set, no allocation that it placed is "pending".
type progress struct {
	*env
	api       *api
	namespace string
	jobID     string
	verbose   bool
	follow    bool // watch the allocations start
	wait      bool // continue until everything is placed, instead of ending with exit code 2
	service   bool // an allocation that fails while starting fails the command; of other jobs, one that failed for good

	allocs map[string]string // id -> last printed state
	phases map[string]string // id and task -> last printed phase of its start
	cut    func(string) string
	reason string

	update  bool // then follow a rolling update to its end
	gang    bool // a group is a gang
	since   time.Time
	stage   string // last printed phase
	waiting int64  // allocations without a place, by the newest answer
}

// enter prints the phase, if it is another one than before.
func (p *progress) enter(stage string) {
	if p.follow && stage != "" && stage != p.stage {
		p.stage = stage
		p.title("Phase %s, after %s", p.bold(stage), span(p.now().Sub(p.since)))
	}
}

// stageOf returns the phase in which the allocations of a request are; "" if none of them starts or runs.
func (p *progress) stageOf(list []*wire.AllocationListStub) string {
	var all, pending, running, pulling int64
	for _, a := range list {
		if a.DesiredStatus == "stop" || a.DesiredStatus == "evict" {
			continue
		}
		all++
		switch a.ClientStatus {
		case "pending":
			pending++
			if pulls(a) {
				pulling++
			}
		case "running":
			running++
		}
	}
	kind := ""
	if p.gang {
		kind = " gang"
	}
	switch {
	case p.waiting > 0:
		return fmt.Sprintf("placing (%d/%d%s)", all, all+p.waiting, kind)
	case pulling > 0:
		return "pulling"
	case pending > 0:
		return fmt.Sprintf("starting (%d/%d%s)", all-pending, all, kind)
	case running > 0:
		return "running"
	}
	return ""
}

// pulls reports whether a task of a pending allocation downloads its image or its files.
func pulls(a *wire.AllocationListStub) bool {
	for _, t := range a.TaskStates {
		if len(t.Events) == 0 {
			continue
		}
		if e := t.Events[len(t.Events)-1]; e.Type == "Downloading Artifacts" || e.Type == "Driver" && strings.HasPrefix(e.DisplayMessage, "Downloading ") {
			return true
		}
	}
	return false
}

// waitingIn returns how many allocations an evaluation found no place for.
func waitingIn(ev *wire.Evaluation) (n int64) {
	for _, m := range ev.FailedTGAllocs {
		n += int64(m.CoalescedFailures + 1)
	}
	return n
}

// step prints one progress line with its time.
func (p *progress) step(f string, args ...any) {
	p.printf("    %s: %s\n", p.now().Format(time.RFC3339), fmt.Sprintf(f, args...))
}

func (p *progress) title(f string, args ...any) {
	p.printf("%s %s: %s\n", p.bold("==>"), p.now().Format(time.RFC3339), fmt.Sprintf(f, args...))
}

// watch follows an evaluation to its end. evalID is "" if the request created none.
func (p *progress) watch(ctx context.Context, evalID string) error {
	if evalID == "" {
		return nil
	}
	p.allocs, p.phases = map[string]string{}, map[string]string{}
	err := p.run(ctx, evalID)
	if err != nil && ctx.Err() != nil {
		p.hint("\nDetached: the cluster continues without this command.")
		if p.jobID != "" {
			p.hint("Follow it with:  muster job status %s%s   or   muster job why %s%s", inNamespace(p.namespace), word(p.jobID), inNamespace(p.namespace), word(p.jobID))
		} else {
			p.hint("Follow it with:  muster eval status %s", shortID(evalID, false))
		}
		return exitCode(exitInterrupted)
	}
	return err
}

func (p *progress) run(ctx context.Context, evalID string) error {
	start := p.now()
	p.since = start
	p.title("Monitoring evaluation %q", shortID(evalID, p.verbose))
	p.enter("queued")
	first := true
	var index uint64
	var ev wire.Evaluation
	last := ""
	for {
		q := ns(p.namespace)
		if index > 0 {
			q.Set("index", strconv.FormatUint(index, 10))
			q.Set("wait", pollWait.String())
		}
		ev = wire.Evaluation{}
		m, err := p.api.get(ctx, "/v1/evaluation/"+evalID, q, &ev)
		if err != nil {
			if notFound(err) && first {
				if err := pause(ctx); err != nil { // a follower may not have it yet
					return err
				}
				if p.now().Sub(start) < 5*time.Second {
					continue
				}
			}
			return fmt.Errorf("read evaluation %s: %w", evalID, err)
		}
		if first {
			first = false
			by := ev.TriggeredBy
			if ev.JobID != "" {
				p.step("Evaluation was triggered by %s of job %q", by, ev.JobID)
				if p.jobID == "" {
					p.jobID = ev.JobID
				}
			} else {
				p.step("Evaluation was triggered by %s", by)
			}
			if ev.NodeID != "" && strings.HasPrefix(by, "node") {
				p.step("It concerns node %q", shortID(ev.NodeID, p.verbose))
			}
			last = ev.Status
		}
		p.waiting = waitingIn(&ev)
		if err := p.evalAllocs(ctx, &ev); err != nil {
			return err
		}
		if ev.Status != last {
			p.step("Evaluation went from %s to %s", last, ev.Status)
			last = ev.Status
		}
		if ev.Status == "canceled" && ev.Successor != "" && ev.Successor != evalID {
			p.step("Evaluation %q answers for it", shortID(ev.Successor, p.verbose))
			evalID, index, first = ev.Successor, 0, true
			continue
		}
		if terminal(ev.Status) || ev.Status == "blocked" {
			break
		}
		if p.now().Sub(start) >= whyAfter {
			p.tellWhy(ctx)
		}
		if m.Index == index {
			if err := pause(ctx); err != nil {
				return err
			}
		}
		index = m.Index
	}
	unplaced := len(ev.FailedTGAllocs) > 0
	if done := ev.Status == "complete" || ev.Status == "blocked"; unplaced && done {
		p.title("Evaluation %q: %s", shortID(ev.ID, p.verbose), placedText(len(p.allocs), &ev))
	} else {
		p.title("Evaluation %q finished with status \"%s\"", shortID(ev.ID, p.verbose), p.paint(stateColour(ev.Status), ev.Status))
	}
	if ev.Status == "failed" || ev.Status == "canceled" {
		if ev.StatusDescription != "" {
			p.step("%s", ev.StatusDescription)
		}
		return exitCode(exitError)
	}
	if unplaced {
		p.failed(ctx, &ev)
		if !p.wait {
			if ev.BlockedEval != "" {
				p.step("Evaluation %q waits to place the rest", shortID(ev.BlockedEval, p.verbose))
			}
			p.hint("Not everything was placed. Why, and what would cure it:  muster job why %s%s", inNamespace(p.namespace), word(p.jobID))
			return exitCode(exitNotPlaced)
		}
	}
	if !p.follow {
		return nil
	}
	err := p.start(ctx, &ev, unplaced)
	if code := exitCode(0); p.update && (err == nil || errors.As(err, &code)) {
		return p.rollout(ctx, err)
	}
	return err
}

func terminal(status string) bool {
	return status == "complete" || status == "failed" || status == "canceled"
}

// placedText says how much of what an evaluation wanted found a place. "complete" would sound as if all of it had.
func placedText(placed int, ev *wire.Evaluation) string {
	waiting := waitingIn(ev)
	if placed == 0 {
		return "nothing placed; " + plural(waiting, "allocation") + " waiting"
	}
	return fmt.Sprintf("%s placed, %d waiting", plural(int64(placed), "allocation"), waiting)
}

// pause waits before the next query. It returns the reason if ctx ended.
func pause(ctx context.Context) error {
	t := time.NewTimer(pollQuiet)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// failed prints for each group why it was not placed.
func (p *progress) failed(ctx context.Context, ev *wire.Evaluation) {
	never := p.api.neverFits(ctx, ev.JobID, ev.Namespace)
	for _, g := range sortedKeys(ev.FailedTGAllocs) {
		m := ev.FailedTGAllocs[g]
		p.step("Task group %q: %s not placed", g, plural(int64(m.CoalescedFailures+1), "allocation"))
		for _, l := range metricLines(m, never) {
			p.printf("      * %s\n", l)
		}
	}
	if never != "" {
		p.step("It can never be placed here: %s", never)
	}
}

// evalAllocs prints the allocations of an evaluation.
func (p *progress) evalAllocs(ctx context.Context, ev *wire.Evaluation) error {
	var list []*wire.AllocationListStub
	if _, err := p.api.get(ctx, "/v1/evaluation/"+ev.ID+"/allocations", ns(p.namespace), &list); err != nil {
		return fmt.Errorf("read the allocations of evaluation %s: %w", ev.ID, err)
	}
	p.tell(ev, list)
	return nil
}

// tell prints what is new about allocations.
func (p *progress) tell(ev *wire.Evaluation, list []*wire.AllocationListStub) {
	all := sortedKeys(p.allocs)
	for _, a := range list {
		all = append(all, a.ID)
	}
	p.cut = abbreviate(p.verbose, all)
	for _, a := range list {
		was, known := p.allocs[a.ID]
		node := a.NodeName
		if node == "" || p.verbose {
			node = shortID(a.NodeID, p.verbose)
		}
		switch {
		case !known && a.CreateIndex < ev.CreateIndex && slices.Contains([]string{"complete", "failed", "lost"}, a.ClientStatus):
			// it ended before
		case !known && a.CreateIndex < ev.CreateIndex:
			p.step("Allocation %q on node %q keeps running, group %q", p.cut(a.ID), node, a.TaskGroup)
		case !known:
			from := ""
			if a.ResumeFrom != nil {
				from = ", resumes from the checkpoint of " + p.saved(a.ResumeFrom)
			}
			p.step("Allocation %q placed on node %q, group %q%s", p.cut(a.ID), node, a.TaskGroup, from)
			if a.ClientStatus != "pending" {
				p.step("Allocation %q%s is %s%s", p.cut(a.ID), which(a, list), a.ClientStatus, p.because(a))
			}
		case was != a.ClientStatus:
			p.step("Allocation %q%s went from %s to %s%s", p.cut(a.ID), which(a, list), was, a.ClientStatus, p.because(a))
		}
		p.allocs[a.ID] = a.ClientStatus
		if a.ClientStatus == "pending" && len(list) <= phasesMax {
			p.phase(a)
		}
	}
	p.enter(p.stageOf(list))
}

// which says which one of several failed, or was lost: " (sweep[3])". An id says nothing about an index of an array.
func which(a *wire.AllocationListStub, list []*wire.AllocationListStub) string {
	if len(list) < 2 || a.ClientStatus != "failed" && a.ClientStatus != "lost" {
		return ""
	}
	return " (" + strings.TrimPrefix(a.Name, a.JobID+".") + ")"
}

// phasesMax is how many allocations a job may have for the monitor to print how each of them starts.
const phasesMax = 8

// startEvents are the types of task events that say what a task does before it runs.
var startEvents = []string{"Downloading Artifacts", "Driver", "Template", "Prolog Failed", "GPU Memory Held", "Identity"}

// phase prints what the tasks of a pending allocation do or wait for, once for each message.
func (p *progress) phase(a *wire.AllocationListStub) {
	for _, name := range sortedKeys(a.TaskStates) {
		events := a.TaskStates[name].Events
		if len(events) == 0 {
			continue
		}
		e, key := events[len(events)-1], a.ID+"/"+name
		if slices.Contains(startEvents, e.Type) && e.DisplayMessage != "" && p.phases[key] != e.DisplayMessage {
			p.phases[key] = e.DisplayMessage
			p.step("Allocation %q, task %q: %s", p.cut(a.ID), name, e.DisplayMessage)
		}
	}
}

// because returns what failed an allocation's failed task.
func (p *progress) because(a *wire.AllocationListStub) string {
	if a.ClientStatus != "failed" && a.ClientStatus != "lost" {
		return ""
	}
	for _, name := range sortedKeys(a.TaskStates) {
		t := a.TaskStates[name]
		if !t.Failed {
			continue
		}
		verdict := ""
		for _, e := range slices.Backward(t.Events) {
			switch {
			case e.DisplayMessage == "":
			case e.Type != "Not Restarting": // that only says that there is no further attempt, not what failed
				return fmt.Sprintf(": task %q: %s", name, e.DisplayMessage)
			case verdict == "":
				verdict = e.DisplayMessage
			}
		}
		if verdict != "" {
			return fmt.Sprintf(": task %q: %s", name, verdict)
		}
	}
	if a.ClientDescription != "" {
		return ": " + a.ClientDescription
	}
	return ""
}

// tellWhy prints why a job waits, if the reason has changed since it was last printed.
func (p *progress) tellWhy(ctx context.Context) {
	if p.jobID == "" {
		return
	}
	var w nomadlike.Why
	if _, err := p.api.get(ctx, jobPath(p.jobID, "/why"), ns(p.namespace), &w); err != nil {
		return // the reason is only an addition to the other lines
	}
	reason := string(w.Reason)
	if w.Position > 0 {
		reason += fmt.Sprintf(", position %d of %d", w.Position, w.QueueLength)
	}
	if reason != "" && reason != p.reason {
		p.step("Waiting: %s", reason)
	}
	p.reason = reason
}

// start watches allocations until none is pending; with unplaced set, also until all are placed.
func (p *progress) start(ctx context.Context, ev *wire.Evaluation, unplaced bool) error {
	if len(p.allocs) == 0 && !unplaced {
		return nil
	}
	var index uint64
	placed := !unplaced // nothing waited for a place before the list was read
	for {
		q := ns(p.namespace)
		if index > 0 {
			q.Set("index", strconv.FormatUint(index, 10))
			q.Set("wait", pollWait.String())
		}
		var list []*wire.AllocationListStub
		m, err := p.api.get(ctx, jobPath(ev.JobID, "/allocations"), q, &list)
		if err != nil {
			return fmt.Errorf("read the allocations of job %q: %w", ev.JobID, err)
		}
		var mine []*wire.AllocationListStub
		var pending, running, failed, lost, complete int // lost: failed, without a replacement
		for _, a := range list {
			if _, ok := p.allocs[a.ID]; !ok && a.EvalID != ev.ID && !p.wait {
				continue
			}
			mine = append(mine, a)
			switch a.ClientStatus {
			case "pending":
				if a.DesiredStatus == "run" {
					pending++
				}
			case "running":
				running++
			case "complete":
				complete++
			default:
				failed++
				if a.NextAllocation == "" && a.FollowupEvalID == "" {
					lost++
				}
			}
		}
		if unplaced {
			var sum wire.JobSummary
			if _, err := p.api.get(ctx, jobPath(ev.JobID, "/summary"), ns(p.namespace), &sum); err != nil {
				return fmt.Errorf("read the summary of job %q: %w", ev.JobID, err)
			}
			queued := 0
			for _, g := range sum.Summary {
				queued += g.Queued
			}
			p.waiting = int64(queued)
			if queued > 0 {
				p.tellWhy(ctx)
				pending += queued
			}
		}
		p.tell(ev, mine)
		if pending == 0 && !placed { // what was placed between the two answers is not in the list
			placed, index = true, 0
			continue
		}
		placed = !unplaced || p.waiting == 0
		if pending == 0 {
			var parts []string
			for _, x := range []struct {
				n    int
				what string
			}{{running, "running"}, {complete, "complete"}, {failed, "failed"}} {
				if x.n > 0 {
					parts = append(parts, fmt.Sprintf("%d %s", x.n, p.paint(stateColour(x.what), x.what)))
				}
			}
			p.title("Job %q: %s", ev.JobID, strings.Join(parts, ", "))
			p.nextStep(mine)
			if failed > 0 && p.service || lost > 0 {
				return exitCode(exitError)
			}
			return nil
		}
		if m.Index == index {
			if err := pause(ctx); err != nil {
				return err
			}
		}
		index = m.Index
	}
}

// nextStep prints the most useful next command.
func (p *progress) nextStep(list []*wire.AllocationListStub) {
	var first *wire.AllocationListStub
	for _, a := range list {
		if first == nil || (a.ClientStatus == "failed" && first.ClientStatus != "failed") {
			first = a
		}
	}
	if first == nil {
		return
	}
	if first.ClientStatus == "failed" || first.ClientStatus == "lost" {
		p.hint("See what happened:  muster alloc status %s%s", inNamespace(p.namespace), p.cut(first.ID))
		return
	}
	p.hint("Follow its logs:  muster alloc logs -f %s%s", inNamespace(p.namespace), p.cut(first.ID))
}

// neverFits returns why not even an empty cluster could hold a waiting job; "" if it could, or the reason is unknown.
func (a *api) neverFits(ctx context.Context, jobID, namespace string) string {
	var w nomadlike.Why
	if _, err := a.get(ctx, jobPath(jobID, "/why"), ns(namespace), &w); err != nil || w.Advice == nil {
		return ""
	}
	return w.Advice.Never
}

// metricLines describes why allocations of a group were not placed. never says why they never will be, or "".
func metricLines(m *wire.AllocationMetric, never string) []string {
	var out []string
	if m.NodesInPool == 0 && m.NodesEvaluated == 0 && len(m.Refusals) == 0 {
		pool := ""
		if m.NodePool != "" {
			pool = fmt.Sprintf(" in node pool %q", m.NodePool)
		}
		return append(out, "There is no node"+pool+" (muster node status)")
	}
	for _, dc := range sortedKeys(m.NodesAvailable) {
		if m.NodesAvailable[dc] == 0 {
			out = append(out, fmt.Sprintf("No ready node in datacenter %q", dc))
		}
	}
	if len(m.Refusals) > 0 {
		for _, r := range m.Refusals {
			line := refusalLine(r.ToStructs()) + slotText(r.ToStructs())
			if c := cureOf(r.ToStructs(), never != ""); c != "" && r.Nodes > 0 {
				line += "; waits until " + c
			}
			out = append(out, line)
		}
	} else {
		for _, c := range sortedKeys(m.ConstraintFiltered) {
			out = append(out, fmt.Sprintf("Constraint %q excludes %s", c, plural(int64(m.ConstraintFiltered[c]), "node")))
		}
		for _, d := range sortedKeys(m.DimensionExhausted) {
			out = append(out, fmt.Sprintf("Too little %s left on %s", d, plural(int64(m.DimensionExhausted[d]), "node")))
		}
	}
	for _, q := range m.QuotaExhausted {
		out = append(out, fmt.Sprintf("Quota is used up: %s", q))
	}
	if len(out) == 0 {
		out = append(out, fmt.Sprintf("%s looked at, %d excluded, %d full", plural(int64(m.NodesEvaluated), "node"), m.NodesFiltered, m.NodesExhausted))
	}
	return out
}

// monitorOptions are the flags of commands that create an evaluation and follow it.
type monitorOptions struct {
	detach  bool
	verbose bool
}

// follow follows an evaluation or, with -detach, prints its id.
func (e *env) follow(ctx context.Context, a *api, o monitorOptions, namespace, jobID, evalID string, set func(*progress)) error {
	if evalID == "" {
		return nil
	}
	if o.detach {
		e.printf("Evaluation ID: %s\n", evalID)
		return nil
	}
	p := &progress{env: e, api: a, namespace: namespace, jobID: jobID, verbose: o.verbose}
	if set != nil {
		set(p)
	}
	return p.watch(ctx, evalID)
}

// queryFlag adds a true flag to a query.
func queryFlag(q url.Values, name string, on bool) {
	if on {
		q.Set(name, "true")
	}
}
