package client

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// healthLoop runs the operator's health command: once before anything is started, then again and again. When it begins to
// fail the node is drained; whoever cured it makes it eligible again. One that is made eligible while the command still
// fails is drained again, but only by a run that began after that: one that was under way may tell of what was just cured.
//
//	succeeds ---- fails: drain --> fails <-------------------------- node still out of service: wait
//	   ^                             |  `--- fails: the servers are asked --'  |
//	   |                             |                                        node takes work: run at once
//	   `----------- succeeds --------'<------------- fails: drain -------------'
func (c *Client) healthLoop(ctx context.Context) {
	h := c.cfg.Hooks.Health
	if h == nil {
		return
	}
	opened, failing, enabled := false, false, false
	asked := make(chan struct{}) // closed once the servers have drained the node, or are not asked any more
	for {
		out, err := h.Run(ctx, "MUSTER_HOOK=health", "MUSTER_NODE_ID="+c.id.id.String())
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			if failing {
				c.log.Info("the operator's health command succeeds again; the node stays drained until somebody says otherwise")
			}
			failing, enabled = false, false
			if !opened {
				opened = true
				close(c.healthy)
			}
		case !failing || enabled:
			if enabled {
				c.log.Error("the node was enabled and the operator's health command still fails; the node drains again", "error", err, "output", out)
			} else {
				c.log.Error("the operator's health command failed; the node drains", "error", err, "output", out)
			}
			failing, enabled = true, false
			why := fmt.Sprintf("the health command of the node failed: %v", err)
			if out != "" {
				why += ": " + out
			}
			asked = c.fault(why)
		default:
			select {
			case <-asked:
				enabled = c.enabled(ctx)
			default: // nobody has drained it yet
			}
		}
		if enabled {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.cfg.Hooks.HealthEvery):
		}
	}
}

// enabled reports whether the servers place work on this node. One that does not learn it says no, and is asked again.
func (c *Client) enabled(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	resp, err := rpc.Invoke(ctx, c.conn, methods.NodeLeave, c.header(), &methods.NodeLeaveRequest{NodeAuth: c.Auth(), Look: true})
	if err != nil {
		c.log.Debug("the servers did not say whether the node takes work", "error", err)
		return false
	}
	return resp.Eligible
}

// faultPatience is how long the servers are asked again to drain the node.
const faultPatience = 10 * time.Minute

// fault has the servers drain this node: what runs may end, services move, nothing new comes. It does not wait; done is closed
// when they have done it, or when they are not asked any more.
func (c *Client) fault(reason string) (done chan struct{}) {
	done = make(chan struct{})
	c.threads.start(func() {
		defer close(done)
		c.mu.Lock()
		ctx := c.ctx
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(ctx, faultPatience)
		defer cancel()
		select {
		case <-c.joined:
		case <-ctx.Done():
			return
		}
		req := methods.NodeLeaveRequest{NodeAuth: c.Auth(), Strategy: structs.DrainStrategy{Meta: map[string]string{"message": reason}}}
		for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
			_, err := rpc.Invoke(ctx, c.conn, methods.NodeLeave, c.header(), &req)
			if err == nil {
				return
			}
			c.log.Warn("the node could not be drained; it is tried again", "reason", reason, "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
	})
	return done
}
