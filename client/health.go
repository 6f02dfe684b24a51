package client

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// healthLoop runs the operator's health command: once before any task starts, then at intervals. The node is drained
// when the command begins to fail; an operator makes it eligible again. If the command still fails then, the node is
// drained again, but only by a run that began later: an earlier one may have seen what has been repaired since.
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
	asked := make(chan struct{}) // closed once the servers have drained the node, or the attempt has ended
	for {
		out, err := h.Run(ctx, "MUSTER_HOOK=health", "MUSTER_NODE_ID="+c.id.id.String())
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			if failing {
				c.log.Info("the operator's health command succeeds again; the node stays drained until it is made eligible")
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
			default: // the node is not drained yet
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

// enabled reports whether the servers place work on this node. It is false if they do not answer; the caller asks
// again.
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

// faultPatience limits how long draining the node is retried.
const faultPatience = 10 * time.Minute

// fault asks the servers to drain this node: batch work may end, services move, nothing new is placed. It does not
// block. done is closed when the node is drained or the attempts have ended.
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
