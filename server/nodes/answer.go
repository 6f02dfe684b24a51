package nodes

import (
	"context"
	"time"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Heartbeats can be late although the agents live: they wait behind other calls, on a follower, or for a turn on a machine
// without processor time. So before the leader writes that nodes missed their heartbeats, it asks all servers whether the
// agents answer a ping on their sessions.
//
//	deadline passed --an agent answers--> another interval, at most until Grace after its last heartbeat
//	                \--a server is late--> another grace, at most an interval longer than the deadline
//	                \--no answer--> missed
const (
	answerFresh  = time.Second             // an agent that was heard so recently need not be pinged
	answerTime   = 1500 * time.Millisecond // for the answer to a ping
	questionsMax = 8                       // questions in progress, of downsMax nodes each
)

// Answering returns those of the nodes whose agents answer on a session to this server.
func (p *Prober) Answering(ctx context.Context, ids []structs.NodeID) (out []structs.NodeID) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	began := time.Now()
	waiting := map[*rpc.Session][]structs.NodeID{} // simulated nodes share sessions
	for _, id := range ids {
		switch s := p.env.Sessions.Find(id).(type) {
		case nil:
		case *rpc.Session:
			if len(waiting[s]) == 0 && s.Silent() >= answerFresh {
				s.Ping()
			}
			waiting[s] = append(waiting[s], id)
		default:
			out = append(out, id) // the agent is a part of this process
		}
	}
	for {
		for s, of := range waiting {
			if s.Silent() < time.Since(began)+answerFresh {
				out = append(out, of...)
			} else if s.Err() == nil {
				continue
			}
			delete(waiting, s)
		}
		if len(waiting) == 0 || ctx.Err() != nil {
			return out
		}
		sleep(ctx, probeStep)
	}
}

// Answers asks all servers which agents answer. late reports whether a server that gossip believes alive did not say so in
// time.
func (p *Prober) Answers(ctx context.Context, ids []structs.NodeID) (answering map[structs.NodeID]bool, late bool) {
	type answer struct {
		ids  []structs.NodeID
		late bool
	}
	others := p.env.Others()
	got := make(chan answer, len(others)+1)
	actx, cancel := context.WithTimeout(ctx, answerTime+askSlack)
	defer cancel()
	go func() { got <- answer{p.Answering(ctx, ids), false} }()
	for _, addr := range others {
		go func() {
			ids, err := p.env.AskAnswering(actx, addr, ids)
			got <- answer{ids, structs.CodeOf(err) == structs.CodeTimeout && p.env.Alive(addr)}
		}()
	}
	answering = map[structs.NodeID]bool{}
	for range len(others) + 1 {
		a := <-got
		late = late || a.late
		for _, id := range a.ids {
			answering[id] = true
		}
	}
	return answering, late
}

// missed returns those of the expired nodes that have no more time, and gives the others some.
func (h *Heartbeats) missed(ctx context.Context, expired []structs.NodeID) (out []structs.NodeID) {
	var ask []structs.NodeID
	limits := map[structs.NodeID]time.Time{}
	p := h.env.Replica.Published()
	now := h.env.Now()
	for _, id := range expired {
		if limit, ok := h.begin(p, id, now); ok {
			limits[id] = limit
			ask = append(ask, id)
		} else {
			out = append(out, id)
		}
	}
	if len(ask) == 0 {
		return out
	}
	answering, late := h.env.Answers(ctx, ask)
	now = h.env.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table == nil {
		return nil
	}
	for _, id := range ask {
		b := h.table.nodes[id]
		if b == nil {
			continue // removed
		}
		if b.asking = false; b.pos >= 0 {
			continue // a heartbeat came
		}
		until := limits[id]
		switch {
		case answering[id]:
			h.counts.Spared++
			until = earlier(until, now.Add(beatTTL))
		case late:
			until = earlier(earlier(until, b.heard.Add(b.ttl+beatGrace+beatTTL)), now.Add(beatGrace))
		default:
			until = now
		}
		if until.After(now) {
			h.table.arm(id, until)
		} else {
			out = append(out, id)
		}
	}
	h.wake()
	return out
}

// begin notes that the servers are asked about a node, and returns until when it may be without heartbeats if its agent
// answers. ok is false if no answer gives it more time.
func (h *Heartbeats) begin(p *replica.Published, id structs.NodeID, now time.Time) (limit time.Time, ok bool) {
	n := p.Snapshot.NodeByID(id)
	if n == nil || n.Status == structs.NodeDisconnected {
		return limit, false
	}
	grace := h.grace(p, id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.table == nil {
		return limit, false
	}
	b := h.table.nodes[id]
	if b == nil || b.gone || !b.ended.IsZero() {
		return limit, false
	}
	limit = b.heard.Add(grace)
	b.asking = limit.After(now)
	return limit, b.asking
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
