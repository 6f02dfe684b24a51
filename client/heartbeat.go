package client

import (
	"context"
	"math/rand/v2"
	"time"

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
	registered := false
	for ctx.Err() == nil {
		var err error
		if !registered {
			ttl, err = c.register(ctx)
			registered = err == nil
		} else {
			ttl, registered, err = c.beat(ctx, ttl)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			wait := bo.next()
			if ttl > 0 {
				wait = min(wait, c.hasten(ttl)/8)
			}
			c.log.Warn("the servers did not answer", "error", err, "retry_in", wait.Round(time.Millisecond))
			c.conn.Failed()
			if !pause(ctx, wait) {
				return
			}
			continue
		}
		bo.reset()
		if !registered {
			continue // the servers no longer know the node
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

func drain(ch chan struct{}) {
	select {
	case <-ch:
	default:
	}
}

// ttlMin limits the heartbeat rate if a server answers nonsense.
const ttlMin = 100 * time.Millisecond

// register sends the node's description to the servers.
func (c *Client) register(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	sent := supervisor.Boottime()
	resp, err := rpc.Invoke(ctx, c.conn, methods.NodeRegister, c.header(), &methods.NodeRegisterRequest{Node: c.node.current(), RPC: feature.RPC})
	if err == nil {
		err = feature.CheckCalls("the server", resp.RPC)
	}
	if err != nil {
		return 0, err
	}
	c.heard(sent)
	c.clock.heard(sent, resp.Now)
	c.conn.SetServers(resp.Servers)
	c.mu.Lock()
	c.registered = resp.Index
	select {
	case <-c.joined:
	default:
		close(c.joined)
		c.log.Info("node registered", "node", c.id.id, "name", c.node.current().Name, "heartbeat_ttl", resp.HeartbeatTTL)
	}
	c.mu.Unlock()
	return max(resp.HeartbeatTTL, ttlMin), nil
}

// beat sends one heartbeat. known is false when the servers no longer know the node.
func (c *Client) beat(ctx context.Context, ttl time.Duration) (next time.Duration, known bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(callPatience, max(c.hasten(ttl)/3, time.Second)))
	defer cancel()
	sent := supervisor.Boottime()
	req := methods.NodeHeartbeatRequest{NodeAuth: c.Auth(), Status: structs.NodeReady}
	resp, err := rpc.Invoke(ctx, c.conn, methods.NodeHeartbeat, c.header(), &req)
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
	return max(resp.HeartbeatTTL, ttlMin), !resp.Unknown, nil
}
