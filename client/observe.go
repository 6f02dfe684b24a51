package client

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// observeMax is the most allocations in one report.
const observeMax = 512

// observeLeast is how few a report has while the servers are late. They read all of a report before they refuse it: with large ones,
// a leader that 500,000 allocations started under spent a third of its time on what it refused.
const observeLeast = 16

// observer collects the runners' reports and sends the newest of each allocation until the servers have it. At most one
// report per allocation waits, so its size is bounded by the allocations of this node. One call is in progress at a time.
// What changes meanwhile, or while a refused agent waits, goes into the next one.
type observer struct {
	c *Client

	mu      sync.Mutex
	pending map[structs.AllocID]*structs.AllocObserved        // never changed
	last    map[structs.AllocID]structs.ClientStatus          // sent or waiting; decides what is urgent
	ports   map[structs.AllocID]int                           // rendezvous ports, sent or waiting: a gang waits for them
	offers  map[structs.AllocID][]structs.ServiceRegistration // services, sent or waiting: others wait for them
	frozen  map[structs.AllocID]structs.LogTime               // since when allocations are frozen, sent or waiting: a user waits for it
	wake    chan struct{}
	urgent  chan struct{} // a status or a service changed, not only an event
	silent  bool          // the node leaves: nothing is reported any more
	most    int           // the most allocations in one report; fewer after one was too large, or the servers were late
	number  uint64        // of the last call; used by loop only
}

func newObserver(c *Client) *observer {
	return &observer{
		c: c, pending: map[structs.AllocID]*structs.AllocObserved{}, last: map[structs.AllocID]structs.ClientStatus{}, ports: map[structs.AllocID]int{}, offers: map[structs.AllocID][]structs.ServiceRegistration{}, frozen: map[structs.AllocID]structs.LogTime{},
		wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), most: observeMax,
	}
}

// add queues a report. It never blocks.
func (o *observer) add(ob *structs.AllocObserved) {
	o.mu.Lock()
	if o.silent {
		o.mu.Unlock()
		return
	}
	was, known := o.last[ob.ID]
	if !known && ob.Client == structs.ClientPending && ob.TaskStates.Len() > 0 {
		was = structs.ClientPending // the servers know that it is pending: not urgent
	}
	if terminal(was) && !terminal(ob.Client) {
		o.mu.Unlock() // a late report of an allocation that has ended
		return
	}
	o.pending[ob.ID] = ob
	o.last[ob.ID] = ob.Client
	newPort := ob.GangPort != 0 && o.ports[ob.ID] != ob.GangPort
	if newPort {
		o.ports[ob.ID] = ob.GangPort
	}
	moved := o.frozen[ob.ID] != ob.Frozen
	switch {
	case moved && ob.Frozen == 0:
		delete(o.frozen, ob.ID)
	case moved:
		o.frozen[ob.ID] = ob.Frozen
	}
	newOffer := !slices.EqualFunc(o.offers[ob.ID], ob.Services, func(a, b structs.ServiceRegistration) bool { return a.Same(&b) })
	switch {
	case newOffer && len(ob.Services) == 0:
		delete(o.offers, ob.ID)
	case newOffer:
		o.offers[ob.ID] = ob.Services
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
	if was != ob.Client || newPort || newOffer || moved {
		select {
		case o.urgent <- struct{}{}:
		default:
		}
	}
}

func terminal(s structs.ClientStatus) bool {
	return s == structs.ClientComplete || s == structs.ClientFailed || s == structs.ClientLost
}

// loop sends the reports. A changed status is sent at once after a pause, otherwise with the reports of the current
// interval. Other changes wait twenty times as long.
func (o *observer) loop(ctx context.Context) {
	select {
	case <-o.c.joined:
	case <-ctx.Done():
		return
	}
	every := o.c.cfg.ObserveEvery
	bo := retry{min: 100 * time.Millisecond, max: 5 * time.Second}
	var sent time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.urgent:
		case <-o.wake:
			// Not urgent; it waits unless an urgent report comes meanwhile.
			lazy := time.NewTimer(20 * every)
			select {
			case <-ctx.Done():
			case <-o.urgent:
			case <-lazy.C:
			}
			lazy.Stop()
		}
		if d := every - time.Since(sent); d > 0 && !pause(ctx, d) {
			return
		}
		if ctx.Err() != nil {
			return
		}
		drain(o.urgent)
		for {
			more, err := o.send(ctx)
			if ctx.Err() != nil {
				return
			}
			sent = time.Now()
			if err != nil {
				if structs.CodeOf(err) == structs.CodeFenced {
					o.c.claim()
				}
				wait := max(bo.next(), structs.RetryAfter(err))
				o.c.log.Warn("what was observed could not be reported; it is kept", "error", err, "retry_in", wait.Round(time.Millisecond))
				if !pause(ctx, wait) {
					return
				}
				continue
			}
			bo.reset()
			if !more {
				break
			}
		}
	}
}

// send sends one report. more is true if others are waiting.
func (o *observer) send(ctx context.Context) (more bool, err error) {
	o.mu.Lock()
	batch := make([]structs.AllocObserved, 0, min(len(o.pending), o.most))
	for id, ob := range o.pending {
		if len(batch) >= o.most {
			more = true
			break
		}
		batch = append(batch, *ob)
		delete(o.pending, id)
	}
	o.mu.Unlock()
	if len(batch) == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	o.number++
	req := methods.NodeObserveRequest{NodeAuth: o.c.Auth(), Number: o.number, Updates: batch}
	_, err = rpc.Invoke(ctx, o.c.conn, methods.NodeObserve, o.c.header(), &req)
	code := structs.CodeOf(err)
	if err != nil && len(batch) == 1 && (code == structs.CodeInvalid || code == structs.CodeTooLarge) {
		o.c.log.Error("the servers will not have this report; it is dropped", "alloc", batch[0].ID.Short(), "error", err)
		return true, nil
	}
	if err != nil {
		o.mu.Lock()
		for i := range batch { // unless a newer one came meanwhile
			ob := &batch[i]
			if _, newer := o.pending[ob.ID]; !newer {
				o.pending[ob.ID] = ob
			}
		}
		switch code {
		case structs.CodeInvalid, structs.CodeTooLarge:
			o.most = max(1, len(batch)/2) // bisect to find the allocation that is too large
		case structs.CodeBusy, structs.CodeTimeout, structs.CodeUnknown:
			o.most = max(observeLeast, len(batch)/4)
		}
		o.mu.Unlock()
		return true, err
	}
	o.mu.Lock()
	o.most = min(observeMax, 2*o.most)
	o.mu.Unlock()
	for i := range batch {
		if !terminal(batch[i].Client) {
			continue
		}
		if r := o.c.Alloc(batch[i].ID); r != nil {
			r.Acked()
		}
	}
	return more, nil
}

// forget drops the entries of a removed allocation.
func (o *observer) forget(id structs.AllocID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.pending, id)
	delete(o.last, id)
	delete(o.ports, id)
	delete(o.offers, id)
	delete(o.frozen, id)
}

// mute makes the observer drop all reports.
func (o *observer) mute() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.silent = true
	clear(o.pending)
}
