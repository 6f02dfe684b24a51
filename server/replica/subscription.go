package replica

import (
	"context"
	"sync"
)

// Subscription receives every applied batch in order. At its limit the waiting batches are dropped, and the next one
// has Lost set.
type Subscription struct {
	name  string
	limit int
	wake  chan struct{}

	mu    sync.Mutex
	queue []Applied
	ended bool
}

func newSubscription(name string, limit int) *Subscription {
	return &Subscription{name: name, limit: max(limit, 1), wake: make(chan struct{}, 1)}
}

// Subscribe returns a subscription to the batches applied from now on. limit bounds the waiting batches; name is for
// the log.
func (r *Replica) Subscribe(name string, limit int) *Subscription {
	sub := newSubscription(name, limit)
	r.subs.Lock()
	r.subs.list = append(r.subs.list, sub)
	r.subs.Unlock()
	return sub
}

// Unsubscribe ends a subscription.
func (r *Replica) Unsubscribe(sub *Subscription) {
	r.subs.Lock()
	defer r.subs.Unlock()
	for i, x := range r.subs.list {
		if x == sub {
			r.subs.list = append(r.subs.list[:i:i], r.subs.list[i+1:]...)
			break
		}
	}
	sub.mu.Lock()
	sub.ended, sub.queue = true, nil
	sub.mu.Unlock()
}

// Wake is signalled when a batch waits. One goroutine owns a subscription. It either selects on Wake and then calls
// TryNext until there are no more batches, or it calls Next.
func (u *Subscription) Wake() <-chan struct{} { return u.wake }

// TryNext returns the next batch, if one waits.
func (u *Subscription) TryNext() (Applied, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.queue) == 0 {
		return Applied{}, false
	}
	a := u.queue[0]
	u.queue[0] = Applied{}
	u.queue = u.queue[1:]
	if len(u.queue) > 0 {
		u.signal()
	}
	return a, true
}

// Next waits for the next batch and returns it.
func (u *Subscription) Next(ctx context.Context) (Applied, error) {
	for {
		if a, ok := u.TryNext(); ok {
			return a, nil
		}
		select {
		case <-u.wake:
		case <-ctx.Done():
			return Applied{}, ctx.Err()
		}
	}
}

func (u *Subscription) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

func (u *Subscription) push(a Applied) (dropped bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return false
	}
	if len(u.queue) >= u.limit || a.Delta.Restored {
		dropped = !a.Delta.Restored
		u.queue = nil // its array would keep the dropped batches, and with each its state, alive
		a.Lost = true
	}
	u.queue = append(u.queue, a)
	u.signal()
	return dropped
}

// runFanOut passes applied batches from the state machine to the feeds and the subscribers, in order. The queue before
// it is bounded by fanOutMax; at the limit all of them rebuild.
func (r *Replica) runFanOut(ctx context.Context) {
	for {
		a, err := r.deltas.Next(ctx)
		if err != nil {
			return
		}
		for _, feed := range r.cfg.Feeds {
			feed(a)
		}
		r.subs.Lock()
		list := r.subs.list
		r.subs.Unlock()
		for _, sub := range list {
			if sub.push(a) {
				r.log.Warn("subscriber is slow; it rebuilds from state", "subscriber", sub.name, "limit", sub.limit)
			}
		}
	}
}
