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
// fail the node is drained; whoever cured it makes it eligible again.
func (c *Client) healthLoop(ctx context.Context) {
	h := c.cfg.Hooks.Health
	if h == nil {
		return
	}
	opened, failing := false, false
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
			failing = false
			if !opened {
				opened = true
				close(c.well)
			}
		case !failing:
			failing = true
			c.log.Error("the operator's health command failed; the node drains", "error", err, "output", out)
			why := fmt.Sprintf("the health command of the node failed: %v", err)
			if out != "" {
				why += ": " + out
			}
			c.fault(why)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.cfg.Hooks.HealthEvery):
		}
	}
}

// faultPatience is how long the servers are asked again to drain the node.
const faultPatience = 10 * time.Minute

// fault has the servers drain this node: what runs may end, services move, nothing new comes. It does not wait.
func (c *Client) fault(reason string) {
	c.threads.start(func() {
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
		req := methods.NodeLeaveRequest{NodeAuth: c.auth(), Strategy: structs.DrainStrategy{Meta: map[string]string{"message": reason}}}
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
}
