package server

import (
	"context"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Garbage collection deletes what nobody asks about any more. What to delete is chosen here, from a snapshot, by age;
// Apply checks each object again, so a choice from an old state harms nothing. Commands are small and paced, so that a
// large collection does not delay heartbeats or plans (bugs 36, 40).

// CollectLimits are the ages from which things are collected, and the pace.
type CollectLimits struct {
	Interval   time.Duration // between two rounds; default 5 min
	EvalAge    time.Duration // evaluations and the ended allocations of live jobs; default 1 h
	BatchAge   time.Duration // of finished batch jobs' evaluations and allocations: until the job goes; default 24 h
	JobAge     time.Duration // dead jobs, with all that is theirs; default 4 h
	NodeAge    time.Duration // nodes that are down; default 24 h
	AcctAge    time.Duration // accounting records; default structs.AcctAge
	AcctKept   int64         // of them; default structs.AcctKept
	EntryIDs   int           // ids in one command; default 8,192 of 16 bytes: 128 KiB
	EntryPause time.Duration // between two commands; default 10 ms
}

// DefaultCollectLimits are in force.
var DefaultCollectLimits = CollectLimits{
	Interval: 5 * time.Minute, EvalAge: time.Hour, BatchAge: 24 * time.Hour, JobAge: 4 * time.Hour, NodeAge: 24 * time.Hour,
	AcctAge: structs.AcctAge, AcctKept: structs.AcctKept, EntryIDs: 8192, EntryPause: 10 * time.Millisecond,
}

// collector is the door to the service.
type collector struct {
	force chan chan error
}

// collectRound chooses what goes. With force ages do not count, as in `system gc`. It is pure; everything is in the
// order of the tables.
func collectRound(snap *state.Snapshot, l CollectLimits, now structs.LogTime, force bool) structs.CollectCommand {
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
		case j == nil || j.Stop || a.ServerTerminal() || !a.Next.IsZero() || a.JobVersion != j.Version:
		case j.Status == structs.JobDead:
			age = l.BatchAge
		default:
			continue // the scheduler still counts how it ended
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
		// An evaluation stays as long as an allocation of it, whose reasons it holds.
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

// split cuts a command into ones of at most n ids, allocations first, because evaluations and nodes wait for them.
func splitCollect(c structs.CollectCommand, n int) []structs.CollectCommand {
	var out []structs.CollectCommand
	for part := range slices.Chunk(c.Allocs, n) {
		out = append(out, structs.CollectCommand{Allocs: part})
	}
	for part := range slices.Chunk(c.Evals, n) {
		out = append(out, structs.CollectCommand{Evals: part})
	}
	for part := range slices.Chunk(c.Jobs, max(n/16, 1)) { // keys are long, and each takes everything of a job along
		out = append(out, structs.CollectCommand{Jobs: part})
	}
	for part := range slices.Chunk(c.Nodes, n) {
		out = append(out, structs.CollectCommand{Nodes: part})
	}
	for part := range slices.Chunk(c.Tokens, n) {
		out = append(out, structs.CollectCommand{Tokens: part})
	}
	return out
}

// collectNow is Hooks.Collect: a round without ages, awaited.
func (s *Server) collectNow(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case s.decide.collect.force <- answer:
	case <-ctx.Done():
		return structs.Errorf(structs.CodeBusy, "a collection is under way; retry in a few seconds")
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return structs.Errorf(structs.CodeTimeout, "the collection has not ended yet; it goes on")
	}
}

// runCollect is the service.
func (s *Server) runCollect(ctx context.Context, _ uint64) error {
	l := DefaultCollectLimits
	timer := time.NewTimer(l.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case answer := <-s.decide.collect.force:
			// Twice: what the first round deletes may be what the second one's objects were kept for.
			err := s.collect(ctx, l, true)
			if err == nil {
				err = s.collect(ctx, l, true)
			}
			answer <- err
		case <-timer.C:
			if err := s.collect(ctx, l, false); err != nil && ctx.Err() == nil {
				s.log.Warn("garbage collection", "error", err)
			}
			timer.Reset(l.Interval)
		}
	}
}

// collect runs one round.
func (s *Server) collect(ctx context.Context, l CollectLimits, force bool) error {
	snap, now := s.Published().Snapshot, s.logNow()
	by := structs.Submitter{Name: "gc"}
	for _, c := range splitCollect(collectRound(snap, l, now, force), l.EntryIDs) {
		if _, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: by, Body: &c}); err != nil {
			return err
		}
		if !pause(ctx, l.EntryPause) {
			return ctx.Err()
		}
	}
	if err := s.collectAcct(ctx, l, now); err != nil {
		return err
	}
	var secrets []structs.SecretID
	for t := range snap.OneTimeTokens() {
		if now >= t.ExpiresAt {
			secrets = append(secrets, t.Secret)
		}
	}
	for part := range slices.Chunk(secrets, l.EntryIDs) {
		if _, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: by, Body: &structs.OneTimeDeleteCommand{Secrets: part}}); err != nil {
			return err
		}
	}
	return nil
}

// collectAcct deletes the accounting records beyond retention, a bounded number in each entry. A forced round leaves them
// alone: they are a history, not something that nobody asks about any more.
func (s *Server) collectAcct(ctx context.Context, l CollectLimits, now structs.LogTime) error {
	for {
		c := acctRound(s.Published().Snapshot, l, now)
		if c == nil {
			return nil
		}
		if _, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: structs.Submitter{Name: "gc"}, Body: c}); err != nil {
			return err
		}
		if !pause(ctx, l.EntryPause) {
			return ctx.Err()
		}
	}
}

// acctRound is the command that deletes records beyond retention, or nil when there are none.
func acctRound(snap *state.Snapshot, l CollectLimits, now structs.LogTime) *structs.AcctCollectCommand {
	for r := range snap.Acct() {
		if before := now.Add(-l.AcctAge); r.End < before || int64(snap.AcctCount()) > l.AcctKept {
			return &structs.AcctCollectCommand{Before: before, Keep: l.AcctKept}
		}
		break // they are in the order of their ends
	}
	return nil
}
