package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// pollWait is how long the servers may hold a poll without news.
const pollWait = 5 * time.Minute

// pollHaste: an answer without news that comes sooner means that the server did not hold the poll.
const pollHaste = 50 * time.Millisecond

// pollLoop polls for the allocations of this node.
func (c *Client) pollLoop(ctx context.Context) {
	for _, first := range []chan struct{}{c.joined, c.launched} { // an unregistered node has no allocations
		select {
		case <-first:
		case <-ctx.Done():
			return
		}
	}
	bo := retry{min: 50 * time.Millisecond, max: 5 * time.Second}
	after := structs.Index(0) // 0: the full list
	known, epoch := uint64(0), uint64(0)
	for ctx.Err() == nil {
		asked := time.Now()
		resp, err := c.poll(ctx, after, known)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			var again bool
			if again, err = c.obey(ctx, resp); err == nil && !again && !c.noteObeyed(resp) {
				err = errors.New("the server's state is older than the registration of this node")
			}
			switch {
			case err != nil:
			case again && after != 0:
				after, known = 0, 0
				continue
			case again:
				err = errors.New("the full list lacks an allocation that it names")
			case resp.Index <= after && resp.RestoreEpoch == epoch && time.Since(asked) < pollHaste: // a new history begins with other indexes
				err = errors.New("the server answered a waiting poll at once, without news")
			default:
				after, known, epoch = max(resp.Index, 1), resp.Known, resp.RestoreEpoch
				bo.reset()
				continue
			}
		}
		wait := bo.next()
		c.log.Warn("the servers did not answer which allocations belong here; running allocations continue", "error", err, "retry_in", wait.Round(time.Millisecond))
		if !pause(ctx, wait) {
			return
		}
	}
}

// noteObeyed records that the agent has obeyed an answer which is not older than its registration. It returns false if
// no such answer has come yet.
func (c *Client) noteObeyed(resp *methods.NodePollResponse) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.obeyed:
		return true
	default:
	}
	if resp.StateIndex < c.registered {
		return false
	}
	close(c.obeyed)
	return true
}

func (c *Client) poll(ctx context.Context, after structs.Index, known uint64) (*methods.NodePollResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, pollWait+30*time.Second)
	defer cancel()
	seen := c.seen()
	req := methods.NodePollRequest{NodeAuth: c.Auth(), RestoreEpoch: seen.Epoch, SeenState: seen.Index, Known: known}
	req.MinIndex, req.MaxWait, req.Stale = after, pollWait, true
	resp, err := rpc.Invoke(ctx, c.conn, methods.NodePoll, c.header(), &req)
	switch structs.CodeOf(err) {
	case structs.CodeFenced:
		c.claim()
	case structs.CodeTimeout, structs.CodeNoLeader:
		if err != nil {
			c.conn.Failed(err)
		}
	}
	return resp, err
}

// errStale means that a server's state is older than what this node has already obeyed.
type errStale struct{ got, have agentstore.History }

func (e *errStale) Error() string {
	return fmt.Sprintf("a server answered from epoch %d, index %d; this node has seen epoch %d, index %d", e.got.Epoch, e.got.Index, e.have.Epoch, e.have.Index)
}

// obey applies the servers' answer. An answer from an older history is refused (D14): a server that lags or was
// restored must not stop what newer ones started. again asks for the full list.
func (c *Client) obey(ctx context.Context, resp *methods.NodePollResponse) (again bool, err error) {
	got := agentstore.History{Cluster: resp.Cluster, Epoch: resp.RestoreEpoch, Index: resp.StateIndex}
	have := c.seen()
	if err := foreign(got.Cluster, have); err != nil {
		c.refuse(err)
		c.conn.Failed(err)
		return false, err
	}
	if got.Older(have) {
		err := &errStale{got, have}
		c.conn.Failed(err)
		return false, err
	}
	restored := got.Epoch > have.Epoch && !have.Cluster.IsZero()
	if restored {
		c.log.Warn("the servers were restored from a backup; allocations that they forgot go on for a while", "epoch", got.Epoch, "grace", c.cfg.UnknownGrace)
	}
	again, err = c.apply(ctx, resp, have, restored)
	if again || err != nil {
		return again, err
	}
	if restored { // the backup lacks what was reported since
		for _, r := range c.Allocs() {
			r.Report()
		}
	}
	if got != have {
		if err := c.store.PutHistory(got); err != nil {
			return false, fmt.Errorf("store how much of the servers' history was obeyed: %w", err)
		}
		c.mu.Lock()
		c.history = got
		c.mu.Unlock()
	}
	c.accept()
	return false, nil
}

// apply starts, changes and stops allocations.
func (c *Client) apply(ctx context.Context, resp *methods.NodePollResponse, have agentstore.History, restored bool) (again bool, err error) {
	jobs := make(map[jobVersion]*structs.Job, len(resp.Jobs))
	for _, j := range resp.Jobs {
		if c.cfg.ShareJob != nil {
			j = c.cfg.ShareJob(j)
		}
		jobs[jobVersion{j.Key(), j.Version}] = j
	}
	changed := make(map[structs.AllocID]*structs.Allocation, len(resp.Changed))
	for _, a := range resp.Changed {
		a.Job = jobs[jobVersion{a.JobKey(), a.JobVersion}]
		changed[a.ID] = a
	}
	listed := make(map[structs.AllocID]bool, len(resp.Refs))
	var fresh []*structs.Allocation
	for _, ref := range resp.Refs {
		listed[ref.ID] = true
		a := changed[ref.ID]
		if a == nil && ref.AllocIndex > resp.Index {
			continue // answers are limited in size; this change comes with the next one
		}
		full, add, err := c.applyOne(ref, a)
		if err != nil {
			return false, err
		}
		again = again || full
		if add {
			fresh = append(fresh, a)
		}
	}
	if err := c.add(ctx, fresh); err != nil {
		return false, err
	}
	c.notifyRosters(resp.Rosters)
	if resp.Partial { // nothing was removed
		c.mu.Lock()
		for id := range listed {
			delete(c.gone, id)
		}
		c.mu.Unlock()
		if !again {
			c.cleanLeftovers(ctx)
		}
		return again, nil
	}
	c.mu.Lock()
	for id := range c.recent {
		if !listed[id] {
			delete(c.recent, id)
		}
	}
	for id := range c.gone {
		if listed[id] || c.allocs[id] == nil {
			delete(c.gone, id)
		}
	}
	c.mu.Unlock()
	c.dropUnlisted(ctx, resp, listed, have, restored)
	if !again {
		c.cleanLeftovers(ctx)
	}
	return again, nil
}

// notifyRosters passes the rosters to the allocations of their gangs.
func (c *Client) notifyRosters(rosters []*structs.Roster) {
	for _, ro := range rosters {
		for i := range ro.Members {
			if r := c.Alloc(ro.Members[i].Alloc); r != nil {
				r.Roster(ro)
			}
		}
	}
}

type jobVersion struct {
	key     structs.JobKey
	version uint64
}

// applyOne applies the desired state of one allocation. again asks for the full list if the answer lacks the
// allocation.
func (c *Client) applyOne(ref methods.AllocRef, a *structs.Allocation) (again, add bool, err error) {
	c.mu.Lock()
	r, collected := c.allocs[ref.ID], c.recent[ref.ID]
	c.mu.Unlock()
	switch {
	case r != nil && r.Alloc().AllocIndex >= ref.AllocIndex:
		return false, false, nil
	case r == nil && collected:
		return false, false, nil
	case a == nil:
		return true, false, nil // it changed before the index that the poll waited for, and that change was missed
	case r != nil:
		if a.Job == nil {
			a.Job = r.Alloc().Job
		}
		c.noteLimit(a)
		return false, false, r.Update(a)
	case a.ClientTerminal():
		return false, false, nil // it ended here earlier: never run it again
	case a.Job == nil:
		return false, false, fmt.Errorf("the server sent allocation %s without its job", a.ID)
	case a.ServerTerminal() && a.Client == structs.ClientPending:
		// Stopped before it arrived; the servers wait for the report that nothing of it runs. If a driver holds tasks
		// of it anyway, cleanLeftovers ends them by their ids.
		c.observed.add(&structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete, ClientDesc: "stopped before it started", FinishedAt: structs.LogTimeOf(time.Now())})
		return false, false, nil
	}
	return false, true, nil
}

// add stores new allocations in one write, then starts them.
func (c *Client) add(ctx context.Context, list []*structs.Allocation) error {
	if len(list) == 0 {
		return nil
	}
	recs := make([]*agentstore.AllocRecord, len(list))
	if c.lost() {
		ids, err := c.running(ctx)
		if err != nil {
			return fmt.Errorf("tasks of an earlier agent could not be listed: %w", err)
		}
		for i, a := range list {
			recs[i] = runner.Found(a, ids)
		}
	}
	if err := c.store.PutAlloc(list...); err != nil {
		return fmt.Errorf("store allocations %s and %d more: %w", list[0].ID, len(list)-1, err)
	}
	for i, a := range list {
		c.noteLimit(a)
		r := runner.New(c.run, a, recs[i])
		c.mu.Lock()
		c.allocs[a.ID] = r
		c.mu.Unlock()
		c.launch(r)
	}
	return nil
}

// dropUnlisted stops allocations that the servers do not list. It does so only if the servers' state is newer than the
// allocation itself, and an empty list must be newer than anything seen before. Servers that were restored from a
// backup may have lost the allocation: then it is reported first and stopped after a grace.
func (c *Client) dropUnlisted(ctx context.Context, resp *methods.NodePollResponse, listed map[structs.AllocID]bool, have agentstore.History, restored bool) {
	same := resp.RestoreEpoch == have.Epoch || have.Cluster.IsZero()
	var events []structs.NodeEvent
	for _, r := range c.Allocs() {
		id := r.ID()
		if listed[id] {
			continue
		}
		if r.Final() != nil {
			if same && resp.StateIndex >= r.Alloc().AllocIndex {
				c.remove(r) // collected by the servers
			}
			continue
		}
		c.mu.Lock()
		since, marked := c.gone[id]
		if restored && !marked {
			since, marked = time.Now(), true
			c.gone[id] = since
			events = append(events, structs.NodeEvent{
				Subsystem: "Cluster", Time: structs.LogTimeOf(since),
				Message: fmt.Sprintf("allocation %s of job %q is unknown to the restored servers and will be stopped in %s", id.Short(), r.Alloc().JobID, c.cfg.UnknownGrace),
				Details: map[string]string{"alloc_id": id.String()},
			})
		}
		c.mu.Unlock()
		switch {
		case marked:
			if time.Since(since) >= c.cfg.UnknownGrace {
				r.Kill("unknown to the servers since they were restored from a backup", false)
			}
		case len(resp.Refs) == 0 && resp.StateIndex <= have.Index, resp.StateIndex < r.Alloc().AllocIndex:
			// The answer is not recent enough.
		default:
			r.Kill("no longer known to the servers", false)
		}
	}
	c.sendEvents(ctx, events)
}

// killForgotten ends allocations that restored servers lost, when their grace is over.
func (c *Client) killForgotten() {
	c.mu.Lock()
	none := len(c.gone) == 0
	c.mu.Unlock()
	if none {
		return
	}
	for _, r := range c.Allocs() {
		c.mu.Lock()
		since, marked := c.gone[r.ID()]
		c.mu.Unlock()
		if marked && r.Final() == nil && time.Since(since) >= c.cfg.UnknownGrace {
			r.Kill("unknown to the servers since they were restored from a backup", false)
		}
	}
}

// saveTurn asks the servers whether an allocation may save its state now, before it stops or, periodic, while it runs.
func (c *Client) saveTurn(ctx context.Context, id structs.AllocID, periodic bool) (*methods.SaveTurn, error) {
	return rpc.Invoke(ctx, c.conn, methods.NodeSaveTurn, rpc.Header{}, &methods.NodeSaveTurnRequest{NodeAuth: c.Auth(), AllocID: id, Periodic: periodic})
}
