package client

import (
	"fmt"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// An agent that obeys no answer of its servers is of no use to them, but its heartbeats are answered, so that the node
// looks ready, and jobs that are placed there never start. So the heartbeats say why it obeys nothing: the servers then
// place nothing there and show the reason.
//
//	obeys --- another cluster, or an older state for staleGrace ---> refuses --- an answer was obeyed ---> obeys

// staleGrace is how long the leader's state may be older than what this node has obeyed. A new leader may first have to
// apply what its log has.
const staleGrace = 30 * time.Second

// refusal is why the agent obeys no answer.
type refusal struct {
	mu    sync.Mutex
	why   string    // "" while it obeys
	stale time.Time // since when the leader's state has been older; zero: it is not
}

// text returns why the agent obeys no answer, "" if it does.
func (r *refusal) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// begin records a reason and reports whether it is the first. The first one stays: the servers log each new text.
func (r *refusal) begin(why error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.why != "" {
		return false
	}
	r.why = why.Error()
	return true
}

// end records that an answer was obeyed, and reports whether the agent refused until then.
func (r *refusal) end() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.why != ""
	r.why, r.stale = "", time.Time{}
	return was
}

// late reports whether the leader's state has been older for longer than staleGrace.
func (r *refusal) late(older bool, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !older:
		r.stale = time.Time{}
	case r.stale.IsZero():
		r.stale = now
	}
	return older && now.Sub(r.stale) >= staleGrace
}

// refuse records why the agent obeys no answer, and says so with the next heartbeat, which is sent at once.
func (c *Client) refuse(why error) {
	if c.refused.begin(why) {
		c.log.Error("the agent obeys no answer of these servers; they place nothing here", "why", why)
		c.beatSoon()
	}
}

// accept records that an answer was obeyed.
func (c *Client) accept() {
	if c.refused.end() {
		c.log.Info("the agent obeys the servers again")
		c.beatSoon()
	}
}

// beatSoon sends the next heartbeat at once.
func (c *Client) beatSoon() {
	select {
	case c.beatNow <- struct{}{}:
	default:
	}
}

// judge compares what the leader says about its history with what this node has obeyed. Polls do not distinguish a replaced
// cluster from a server that lags: a server with an older state does not answer them.
func (c *Client) judge(cluster structs.ClusterID, index structs.Index) {
	have := c.seen()
	if err := foreign(cluster, have); err != nil {
		c.refuse(err)
		return
	}
	if c.refused.late(index != 0 && index < have.Index, time.Now()) {
		c.refuse(fmt.Errorf("the servers' state ends at index %d, and this node has obeyed index %d: they lost what was written in between. "+
			"Restore their newest backup (`muster operator snapshot restore`), or empty the node's data_dir", index, have.Index))
	}
}

// foreign returns an error if a server is of another cluster than the one that this node belongs to.
func foreign(got structs.ClusterID, have agentstore.History) error {
	if have.Cluster.IsZero() || got.IsZero() || got == have.Cluster {
		return nil
	}
	return fmt.Errorf("the server is of cluster %s; this node belongs to cluster %s and obeys no other. To move the node, empty its data_dir", got, have.Cluster)
}

// seen returns the newest point of the servers' history that this node has obeyed.
func (c *Client) seen() agentstore.History {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.history
}

// heartbeat returns the next heartbeat.
func (c *Client) heartbeat() *methods.NodeHeartbeatRequest {
	req := &methods.NodeHeartbeatRequest{NodeAuth: c.Auth(), Status: structs.NodeReady, Refuses: c.refused.text()}
	if req.Refuses != "" {
		req.Status = structs.NodeInit
	}
	return req
}
