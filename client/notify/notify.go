// Package notify delivers notices of a node to the targets that its operator configured: webhooks, a command, or any
// other Target. Each target has its own queue and a goroutine that empties it, so that a slow target delays neither the
// others nor the sender.
package notify

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Notice is one notification. Its JSON form is the body of a webhook.
type Notice struct {
	ID        string // the same in every attempt
	Time      time.Time
	Kind      string // "gpu-pressure"
	State     string // "above" a threshold, or "below" all of them again
	Scope     string // "share": a task's share of a GPU; "device": the whole GPU
	Threshold int    // percent; 0 for "below"
	Percent   int    // in use
	UsedMiB   int64
	TotalMiB  int64
	GPU       string // UUID
	NodeID    string
	NodeName  string
	AllocID   string `json:",omitempty"` // set for scope "share", like those below
	Namespace string `json:",omitempty"`
	JobID     string `json:",omitempty"`
	Group     string `json:",omitempty"`
	Task      string `json:",omitempty"`
}

// Target receives notices. Deliver returns when the notice has arrived, or when it has not and must not be retried.
type Target interface {
	Name() string
	Deliver(ctx context.Context, n Notice) error
}

// QueueMax limits the notices that wait for one target; beyond it the oldest is dropped.
const QueueMax = 64

// Sender delivers notices to targets.
type Sender struct {
	log    hclog.Logger
	queues []*queue
}

type queue struct {
	target Target

	mu      sync.Mutex
	waiting []Notice
	dropped int
	wake    chan struct{}
}

// New makes a Sender. Nothing is delivered before Run.
func New(log hclog.Logger, targets ...Target) *Sender {
	s := &Sender{log: log}
	for _, t := range targets {
		s.queues = append(s.queues, &queue{target: t, wake: make(chan struct{}, 1)})
	}
	return s
}

// Send queues a notice for every target. It never blocks.
func (s *Sender) Send(n Notice) {
	for _, q := range s.queues {
		q.mu.Lock()
		if len(q.waiting) >= QueueMax {
			q.waiting = q.waiting[1:]
			q.dropped++
		}
		q.waiting = append(q.waiting, n)
		q.mu.Unlock()
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

func (q *queue) next() (n Notice, dropped int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	dropped, q.dropped = q.dropped, 0
	if len(q.waiting) == 0 {
		return n, dropped, false
	}
	n = q.waiting[0]
	q.waiting = q.waiting[1:]
	return n, dropped, true
}

// Run delivers until ctx ends; notices that still wait are lost.
func (s *Sender) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, q := range s.queues {
		wg.Go(func() { s.empty(ctx, q) })
	}
	wg.Wait()
}

func (s *Sender) empty(ctx context.Context, q *queue) {
	for ctx.Err() == nil {
		n, dropped, ok := q.next()
		if dropped > 0 {
			s.log.Warn("notices were dropped: the one who takes them is too slow", "target", q.target.Name(), "notices", dropped)
		}
		if !ok {
			select {
			case <-ctx.Done():
			case <-q.wake:
			}
			continue
		}
		if err := q.target.Deliver(ctx, n); err != nil && ctx.Err() == nil {
			s.log.Warn("a notice was not delivered", "target", q.target.Name(), "notice", n.ID, "error", err)
		}
	}
}
