package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// callPatience limits a call that does not wait for an event.
const callPatience = 10 * time.Second

// registerGather is how long changes of the node are collected before it registers again.
const registerGather = 500 * time.Millisecond

// heartbeatLoop registers the node, then sends heartbeats, each well within the TTL that the servers give. While they
// do not answer it retries with a backoff.
func (c *Client) heartbeatLoop(ctx context.Context) {
	bo := retry{min: 100 * time.Millisecond, max: 5 * time.Second}
	ttl := time.Duration(0)
	registered, format := false, structs.Format(0) // format is at most that in which the registration was written
	for ctx.Err() == nil {
		var err error
		if !registered {
			ttl, format, err = c.register(ctx)
			registered = err == nil
		} else {
			ttl, registered, err = c.beat(ctx, ttl, format)
		}
		if ctx.Err() != nil {
			return
		}
		code := structs.CodeOf(err)
		if err != nil && code == structs.CodeFenced && !registered {
			c.yield(ctx, err)
			return
		}
		if err != nil {
			wait := bo.next()
			if ttl > 0 {
				wait = min(wait, c.hasten(ttl)/8)
			}
			c.log.Warn("the servers did not accept the node's call", "error", err, "retry_in", wait.Round(time.Millisecond))
			if code == structs.CodeFenced {
				registered = false // only a registration decides which agent speaks for the node
			} else if code != structs.CodeBusy {
				c.conn.Failed(err)
			}
			if !pause(ctx, wait) {
				return
			}
			continue
		}
		bo.reset()
		if !registered {
			continue // the servers no longer know the node, or not all of it
		}
		wait := ttl/2 + rand.N(ttl/6+1) // after a lost heartbeat a third of the TTL, and the servers' grace, are left for the next one
		wait = c.hasten(wait)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-c.beatNow:
		case <-c.reregister:
			if pause(ctx, registerGather) {
				drain(c.reregister)
				registered = false
			}
		}
		timer.Stop()
	}
}

// claim makes the agent register again, because the servers refuse its calls in favour of another agent.
func (c *Client) claim() {
	select {
	case c.reregister <- struct{}{}:
	default:
	}
}

// yieldPatience is how much longer than their kill timeout tasks may take to end before the agent ends.
const yieldPatience = 10 * time.Second

// yield ends this agent, because another one speaks for the node. What this agent runs, it stops: the servers count only
// on what the other one runs. An agent that was never accepted has started nothing, and touches nothing.
func (c *Client) yield(ctx context.Context, why error) {
	err := fmt.Errorf("this agent ends, because another one has the same node id: %w. If this machine or its data directory was copied from another, "+
		"remove %s and start the agent again: it then registers as a new node", why, c.cfg.Storage.DataDir)
	c.log.Error(err.Error())
	c.observed.mute()
	select {
	case <-c.joined:
		for _, r := range c.Allocs() {
			if r.Final() == nil {
				r.Kill("another agent speaks for this node", false)
			}
		}
		wctx, cancel := context.WithTimeout(ctx, c.cfg.Tasks.MaxKillTimeout+yieldPatience)
		defer cancel()
		if werr := c.waitAll(wctx, func(*runner.Runner) bool { return true }); werr != nil {
			c.log.Error("not all tasks ended in time; their supervisor keeps them", "error", werr)
		}
	default:
	}
	c.yielded = err
	c.stop()
}

func drain(ch chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

// ttlMin limits the heartbeat rate if a server answers nonsense.
const ttlMin = 100 * time.Millisecond

// register sends the node's description to the servers.
func (c *Client) register(ctx context.Context) (ttl time.Duration, format structs.Format, err error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	sent := supervisor.Boottime()
	resp, err := rpc.Invoke(ctx, c.conn, methods.NodeRegister, c.header(),
		&methods.NodeRegisterRequest{Node: c.node.current(), Introduction: c.cfg.Node.IntroToken, RPC: feature.RPC, Cluster: c.seen().Cluster})
	if err == nil {
		err = feature.CheckCalls("the server", resp.RPC)
	}
	if err != nil {
		return 0, 0, err
	}
	c.heard(sent)
	c.clock.heard(sent, resp.Now)
	c.conn.SetServers(resp.Servers)
	c.advised(resp.Gossip)
	c.judge(resp.Cluster, 0)
	if c.id.moved {
		if err := c.id.settle(c.cfg.Storage.DataDir); err != nil {
			return 0, 0, err
		}
		c.id.moved = false
	}
	c.mu.Lock()
	c.registered = resp.Index
	select {
	case <-c.joined:
	default:
		close(c.joined)
		c.log.Info("node registered", "node", c.id.id, "name", c.node.current().Name, "heartbeat_ttl", resp.HeartbeatTTL)
	}
	c.mu.Unlock()
	return max(resp.HeartbeatTTL, ttlMin), resp.Format, nil
}

// advised passes on whether the servers want this agent to gossip.
func (c *Client) advised(a methods.GossipAdvice) {
	if c.cfg.OnGossip != nil {
		c.cfg.OnGossip(a)
	}
}

// beat sends one heartbeat. known is false when the servers no longer know the node, or when their format is newer than
// that of the registration: they left out what older servers would not have understood.
func (c *Client) beat(ctx context.Context, ttl time.Duration, format structs.Format) (next time.Duration, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(callPatience, max(c.hasten(ttl)/3, time.Second)))
	defer cancel()
	sent := supervisor.Boottime()
	resp, err := rpc.Invoke(ctx, c.conn, methods.NodeHeartbeat, c.header(), c.heartbeat())
	if err != nil {
		if structs.CodeOf(err) == structs.CodeNotFound {
			return ttl, false, nil
		}
		return ttl, true, err
	}
	c.heard(sent)
	c.clock.heard(sent, resp.Now)
	if len(resp.Servers) > 0 {
		c.conn.SetServers(resp.Servers)
	}
	c.advised(resp.Gossip)
	c.judge(structs.ClusterID{}, resp.Index)
	return max(resp.HeartbeatTTL, ttlMin), !resp.Unknown && resp.Format <= format, nil
}
