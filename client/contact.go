package client

import (
	"context"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/structs"
)

// Groups with stop_on_client_after run only while the node is in contact with the servers. What counts is when the last
// heartbeat that they answered was *sent*: the servers' knowledge of the contact is not older, and they count from when
// they miss the next one. leaseLoop reports it to the node's supervisor, which ends the tasks without the agent; the agent does
// the same for allocations of which nothing runs just now (endSilent). Both clocks are the same, which suspend does not
// stop.

// contact records when the servers last heard from the node.
type contact struct {
	mu   sync.Mutex
	last time.Duration // supervisor.Boottime just before the last answered heartbeat was sent; 0 for none
}

func newContact() *contact { return &contact{} }

// heard records an answered heartbeat, and returns the time since the one before; 0 for the first.
func (c *contact) heard(sent time.Duration) (gap time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != 0 {
		gap = max(0, sent-c.last)
	}
	c.last = max(c.last, sent)
	return gap
}

// at returns when the last answered heartbeat was sent; 0 for none.
func (c *contact) at() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// silent returns how long the servers have not heard from the node; 0 if they never have.
func (c *contact) silent() time.Duration {
	at := c.at()
	if at == 0 {
		return 0
	}
	return supervisor.Boottime() - at
}

// Leases keep tasks with stop_on_client_after running, and know those whose time was over (supervisor.Client).
type Leases interface {
	Renew(ctx context.Context, at time.Duration) error
	Lapsed(ctx context.Context, alloc string) (bool, error)
}

// heard acts on an answer to a heartbeat that was sent at a time.
func (c *Client) heard(sent time.Duration) {
	c.endSilent(c.connected.heard(sent)) // before a task starts again: an agent that was stopped has not looked meanwhile
	select {
	case c.renewal <- struct{}{}:
	default:
	}
}

// leaseLoop reports answered heartbeats to the supervisor while tasks need it.
func (c *Client) leaseLoop(ctx context.Context) {
	for c.cfg.Host.Leases != nil {
		select {
		case <-ctx.Done():
			return
		case <-c.renewal:
		}
		if c.shortestSilence() == 0 {
			continue
		}
		rctx, cancel := context.WithTimeout(ctx, callPatience)
		err := c.cfg.Host.Leases.Renew(rctx, c.connected.at())
		cancel()
		if err != nil && ctx.Err() == nil {
			c.log.Error("the supervisor does not know of the contact with the servers; it ends tasks with stop_on_client_after when their time is over", "error", err)
		}
	}
}

// noteLimit notes whether an allocation may run only for a time without contact. The first one makes the agent look at all
// of them at each heartbeat and every second, for good. Most nodes never have one.
func (c *Client) noteLimit(a *structs.Allocation) {
	if g := a.Job.Group(a.Group); g != nil {
		if _, ok := g.StopOnClient(); ok {
			c.limited.Store(true)
		}
	}
}

// shortestSilence returns the shortest stop_on_client_after of the allocations that have not ended; 0 for none.
func (c *Client) shortestSilence() (shortest time.Duration) {
	if !c.limited.Load() {
		return 0
	}
	for _, r := range c.Allocs() {
		if limit, ok := r.StopOnClient(); ok && (shortest == 0 || limit < shortest) {
			shortest = limit
		}
	}
	return shortest
}

// leaseBeatMin is the shortest interval between heartbeats that renew a lease.
const leaseBeatMin = time.Second

// hasten shortens the interval between heartbeats where tasks may not run for long without one.
func (c *Client) hasten(every time.Duration) time.Duration {
	if s := c.shortestSilence(); s > 0 {
		return min(every, max(leaseBeatMin, s/3))
	}
	return every
}

// endSilent ends the allocations that may not run for as long as the servers have been silent.
func (c *Client) endSilent(silent time.Duration) {
	if !c.limited.Load() {
		return
	}
	for _, r := range c.Allocs() {
		if limit, ok := r.StopOnClient(); ok && silent >= limit {
			r.Lapse()
		}
	}
}

// contactLook is the pause between two looks at the contact.
const contactLook = 50 * time.Millisecond

// inContact waits until a task that may run for limit without contact may start: the servers have answered lately, and
// the agent has obeyed them since it registered, so that it knows whether they have replaced the allocation.
func (c *Client) inContact(ctx context.Context, limit time.Duration) error {
	select {
	case <-c.obeyed:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		c.beatSoon() // also if contact is recent: the pause since then was chosen without this task
		if c.connected.silent() < limit/2 {
			break
		}
		if !pause(ctx, contactLook) {
			return ctx.Err()
		}
	}
	if c.cfg.Host.Leases == nil {
		return nil
	}
	return c.cfg.Host.Leases.Renew(ctx, c.connected.at())
}

// lapsed asks the supervisor whether it ended an allocation.
func (c *Client) lapsed(ctx context.Context, id structs.AllocID) bool {
	if c.cfg.Host.Leases == nil {
		return false
	}
	yes, err := c.cfg.Host.Leases.Lapsed(ctx, id.String())
	if err != nil && ctx.Err() == nil {
		c.log.Warn("the supervisor does not say whether it ended an allocation", "alloc", id.Short(), "error", err)
	}
	return yes
}
