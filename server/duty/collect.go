package duty

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Collect deletes objects that are no longer of use. It chooses them from a snapshot, by age; Apply checks each again,
// so a choice from an old state does no harm. Commands are small and come with pauses, so that a large collection
// delays neither heartbeats nor plans.
type Collect struct {
	limits CollectLimits
	next   structs.LogTime // when the next ordinary round begins
	forced int             // forced rounds not begun yet
	round  *collectRound   // nil between rounds
	at     structs.LogTime // when the round's next command is due
}

// collectRound is a round in progress.
type collectRound struct {
	began  structs.LogTime
	forced bool                      // ignore ages
	cmds   []*structs.CollectCommand // not written yet
}

// CollectLimits are the ages from which objects are collected, and the pace.
type CollectLimits struct {
	Interval   time.Duration // from the end of a round to the next one; default 5 min
	EvalAge    time.Duration // age of evaluations and of ended allocations of live jobs; default 1 h
	BatchAge   time.Duration // age of ended allocations of finished jobs; default 24 h
	JobAge     time.Duration // age of dead jobs, which are deleted with all their objects; default 4 h
	NodeAge    time.Duration // time that a node has been down; default 24 h
	AcctAge    time.Duration // age of accounting records; default structs.AcctAge
	AcctKept   int64         // accounting records kept; default structs.AcctKept
	EntryIDs   int           // IDs in one command; default 8,192 of 16 bytes: 128 KiB
	EntryPause time.Duration // between two commands; default 10 ms
}

// DefaultCollectLimits are the limits of servers.
var DefaultCollectLimits = CollectLimits{
	Interval: 5 * time.Minute, EvalAge: time.Hour, BatchAge: 24 * time.Hour, JobAge: 4 * time.Hour, NodeAge: 24 * time.Hour,
	AcctAge: structs.AcctAge, AcctKept: structs.AcctKept, EntryIDs: 8192, EntryPause: 10 * time.Millisecond,
}

// OrDefaults returns the limits with those of servers in place of what is 0.
func (l CollectLimits) OrDefaults() CollectLimits {
	d := &DefaultCollectLimits
	return CollectLimits{
		Interval: cmp.Or(l.Interval, d.Interval), EvalAge: cmp.Or(l.EvalAge, d.EvalAge), BatchAge: cmp.Or(l.BatchAge, d.BatchAge), JobAge: cmp.Or(l.JobAge, d.JobAge),
		NodeAge: cmp.Or(l.NodeAge, d.NodeAge), AcctAge: cmp.Or(l.AcctAge, d.AcctAge), AcctKept: cmp.Or(l.AcctKept, d.AcctKept),
		EntryIDs: cmp.Or(l.EntryIDs, d.EntryIDs), EntryPause: cmp.Or(l.EntryPause, d.EntryPause),
	}
}

// NewCollect returns the duty. Call Load first.
func NewCollect(l CollectLimits) *Collect { return &Collect{limits: l} }

// Load implements Duty. It ends a round in progress.
func (c *Collect) Load(_ *state.Snapshot, now structs.LogTime) {
	c.forced, c.round, c.next = 0, nil, now.Add(c.limits.Interval)
}

// Feed implements Duty.
func (c *Collect) Feed(*state.Snapshot, *structs.Delta, structs.LogTime) {}

// Force begins two rounds that ignore ages, for `system gc`. The second deletes objects that were kept for those that
// the first deleted. Accounting records are a history, so their limits apply all the same.
func (c *Collect) Force() { c.forced, c.round = 2, nil }

// Idle reports whether no round is in progress.
func (c *Collect) Idle() bool { return c.forced == 0 && c.round == nil }

// Due implements Duty.
func (c *Collect) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	if c.round == nil {
		if c.forced == 0 && now < c.next {
			return nil, c.next
		}
		force := c.forced > 0
		if force {
			c.forced--
		}
		c.round = &collectRound{began: now, forced: force, cmds: splitCollect(collectable(snap, c.limits, now, force), c.limits.EntryIDs)}
		c.at = now
	}
	if now < c.at {
		return nil, c.at
	}
	c.at = now.Add(c.limits.EntryPause)
	if r := c.round; len(r.cmds) > 0 {
		cmd := r.cmds[0]
		r.cmds = r.cmds[1:]
		return []Command{byCollector(cmd)}, c.at
	}
	if cmd := collectableAcct(snap, c.limits, c.round.began); cmd != nil {
		return []Command{byCollector(cmd)}, c.at
	}
	var secrets []structs.SecretID
	for t := range snap.OneTimeTokens() {
		if c.round.began >= t.ExpiresAt {
			secrets = append(secrets, t.Secret)
		}
	}
	for part := range slices.Chunk(secrets, c.limits.EntryIDs) {
		cmds = append(cmds, byCollector(&structs.OneTimeDeleteCommand{Secrets: part}))
	}
	if !c.round.forced {
		c.next = now.Add(c.limits.Interval)
	}
	c.round = nil
	if c.forced > 0 {
		return cmds, now
	}
	return cmds, c.next
}

func byCollector(body structs.CommandBody) Command {
	return Command{Subject: "collection", Command: structs.Command{By: structs.Submitter{Name: "gc"}, Body: body}}
}

// collectable chooses what to delete. With force it ignores ages.
func collectable(snap *state.Snapshot, l CollectLimits, now structs.LogTime, force bool) structs.CollectCommand {
	var c structs.CollectCommand
	old := func(t structs.LogTime, age time.Duration) bool { return force || now.Sub(t) >= age }
	gone := map[structs.JobKey]bool{}
	for j := range snap.Jobs("", "") {
		if j.Status != structs.JobDead || !j.Stop && (j.Type == structs.JobService || j.Type == structs.JobSystem || j.IsPeriodic() || j.IsParameterized()) {
			continue
		}
		last := j.SubmitTime
		over := true
		for _, a := range snap.AllocsByJob(j.Key()) {
			last = max(last, a.ModifyTime)
			over = over && a.ClientTerminal()
		}
		for _, e := range snap.EvalsByJob(j.Key()) {
			last = max(last, e.ModifyTime)
			over = over && e.Terminal()
		}
		if over && old(last, l.JobAge) {
			gone[j.Key()] = true
			c.Jobs = append(c.Jobs, j.Key())
		}
	}
	for a := range snap.Allocs() {
		if !a.ClientTerminal() || gone[a.JobKey()] {
			continue
		}
		age := l.EvalAge
		j := snap.JobByKey(a.JobKey())
		switch {
		case j == nil || j.Stop || a.ServerTerminal() || !a.Lineage().Next.IsZero() || a.JobVersion != j.Version:
		case j.Status == structs.JobDead:
			age = l.BatchAge
		default:
			continue // the scheduler still counts their results
		}
		if old(a.ModifyTime, age) {
			c.Allocs = append(c.Allocs, a.ID)
		}
	}
	leaving := make(map[structs.AllocID]bool, len(c.Allocs))
	for _, id := range c.Allocs {
		leaving[id] = true
	}
	for e := range snap.Evals() {
		if !e.Terminal() || gone[e.JobKey()] || !old(e.ModifyTime, l.EvalAge) {
			continue
		}
		// An evaluation holds the reasons for its allocations, so it stays as long as they do.
		if !slices.ContainsFunc(snap.AllocsByEval(e.ID), func(a *structs.Allocation) bool { return !leaving[a.ID] }) {
			c.Evals = append(c.Evals, e.ID)
		}
	}
	for n := range snap.Nodes() {
		if n.Status == structs.NodeDown && old(n.StatusAt, l.NodeAge) &&
			!slices.ContainsFunc(snap.AllocsByNode(n.ID), structs.Holds) {
			c.Nodes = append(c.Nodes, n.ID)
		}
	}
	for t := range snap.Tokens() {
		if t.Expired(now) {
			c.Tokens = append(c.Tokens, t.Accessor)
		}
	}
	return c
}

// splitCollect cuts a command into commands of at most n IDs: allocations first, because evaluations and nodes stay
// while they exist.
func splitCollect(c structs.CollectCommand, n int) (out []*structs.CollectCommand) {
	for part := range slices.Chunk(c.Allocs, n) {
		out = append(out, &structs.CollectCommand{Allocs: part})
	}
	for part := range slices.Chunk(c.Evals, n) {
		out = append(out, &structs.CollectCommand{Evals: part})
	}
	for part := range slices.Chunk(c.Jobs, max(n/16, 1)) { // keys are long, and each job takes all its objects along
		out = append(out, &structs.CollectCommand{Jobs: part})
	}
	for part := range slices.Chunk(c.Nodes, n) {
		out = append(out, &structs.CollectCommand{Nodes: part})
	}
	for part := range slices.Chunk(c.Tokens, n) {
		out = append(out, &structs.CollectCommand{Tokens: part})
	}
	return out
}

// collectableAcct returns the command that deletes accounting records beyond retention, or nil if there are none. Apply
// deletes a bounded number at a time.
func collectableAcct(snap *state.Snapshot, l CollectLimits, now structs.LogTime) *structs.AcctCollectCommand {
	for r := range snap.Acct() {
		if before := now.Add(-l.AcctAge); r.End < before || int64(snap.AcctCount()) > l.AcctKept {
			return &structs.AcctCollectCommand{Before: before, Keep: l.AcctKept}
		}
		break // they are sorted by end
	}
	return nil
}
