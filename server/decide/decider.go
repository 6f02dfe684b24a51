package decide

import (
	"context"
	"errors"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

var errOutcomeUnknown = errors.New("leadership was lost while plans were in flight")

// run is the owner. When it returns, all goroutines that it started have ended.
func (d *decider) run(ctx context.Context, sub *replica.Subscription) error {
	d.load(d.s.env.Replica.Published())
	err := d.loop(ctx, sub)
	d.counted, d.metrics.Holding = time.Now(), broker.Len{}
	d.publish()
	if err != nil {
		select {
		case <-ctx.Done():
		case <-time.After(lostPause):
		}
	}
	// Wait for the goroutines, whose answers no longer matter. A pass cannot be interrupted, and a term must end at
	// once, so its passes are left to end by themselves (Service.Wait).
	for done := ctx.Done(); d.flight.writes > 0 || d.flight.passes > 0 && ctx.Err() == nil; {
		select {
		case <-done:
			done = nil
		case <-d.flight.decided:
			d.flight.passes--
		case <-d.flight.outcomes:
			d.flight.writes--
		}
	}
	return err
}

func (d *decider) loop(ctx context.Context, sub *replica.Subscription) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := d.now()
		d.begin(now)
		d.send()
		d.publish()
		wait := time.Hour
		if at, ok := d.broker.NextWake(); ok && !d.broker.Paused() {
			wait = max(at.Sub(now), time.Millisecond)
		}
		if d.stale {
			wait = min(wait, countEvery)
		}
		if again := d.prepare(); again > 0 {
			wait = min(wait, again)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			if !d.feed(sub) {
				return errOutcomeUnknown
			}
		case x := <-d.flight.decided:
			d.flight.passes--
			d.finish(&x)
		case o := <-d.flight.outcomes:
			d.flight.writes--
			d.answer(&o)
			if d.lost {
				return errOutcomeUnknown
			}
		case p := <-d.flight.prepare.done:
			d.flight.prepare.ended(p)
		case x := <-d.inbox.speculations:
			d.speculate(x)
		case q := <-d.inbox.questions:
			q.reply <- d.reply(q.domain)
		case <-timer.C:
		}
	}
}

// load builds the broker, and what is learned from the log, from a state.
func (d *decider) load(pub *replica.Published) {
	d.pub = pub
	d.metrics.Reloads++
	if d.broker != nil {
		d.metrics.Broker = d.broker.Counters
	}
	d.contenders = loadContenders(pub.Snapshot)
	d.strict = anyStrictQueue(pub.Snapshot)
	d.broker = broker.New(broker.Limits{}, broker.Env{
		Lookup:      func(k structs.JobKey) *structs.Workload { return d.pub.Snapshot.Workload(k) },
		Links:       links{d},
		Choose:      d.choose,
		Competition: func(domain structs.PoolName) bool { return d.strict || d.contenders.has(domain) },
		Reserved:    d.reservedJobs,
	})
	d.broker.Counters = d.metrics.Broker
	im := broker.Image{Index: pub.Index}
	for n := range pub.Snapshot.Nodes() {
		im.Nodes = append(im.Nodes, n)
	}
	for e := range pub.Snapshot.Evals() {
		if !e.Terminal() {
			im.Evals = append(im.Evals, e)
		}
	}
	d.broker.Load(im, d.now())
	d.s.Learn(pub.Snapshot)
	d.broker.SetPaused(pub.Snapshot.SchedulerConfig().PauseBroker)
}

// feed applies waiting batches. It returns false if plans in flight can no longer be matched with the state.
func (d *decider) feed(sub *replica.Subscription) bool {
	for {
		a, ok := sub.TryNext()
		if !ok {
			return true
		}
		if a.Lost || a.Delta.Restored {
			if d.flight.passes+d.flight.writes == 0 && d.planner.Idle() {
				d.load(a.Published)
				continue
			}
			return false // what is in flight refers to the old broker: start over
		}
		if a.Index > d.pub.Index {
			d.advance(&a)
		}
	}
}

// advance applies one batch.
func (d *decider) advance(a *replica.Applied) {
	d.pub = a.Published
	d.planner.Advance(a.Index)
	if a.Delta.Config {
		d.broker.SetPaused(a.Snapshot.SchedulerConfig().PauseBroker)
	}
	d.contenders.feed(&a.Delta, a.Snapshot)
	d.freed = model.AppendFreed(d.freed, &a.Delta)
	if len(a.Delta.Queues) > 0 || a.Delta.Config {
		d.strict = anyStrictQueue(a.Snapshot)
	}
	d.broker.Feed(&a.Delta, d.now())
	d.s.predictor.feed(&a.Delta, a.Snapshot)
	d.s.history.feed(&a.Delta)
	d.metrics.feed(&a.Delta)
	d.metrics.Reservations.feed(&a.Delta, func(k structs.JobKey) bool {
		w := a.Snapshot.Workload(k)
		return w != nil && w.Waiting > 0
	})
	d.s.reports.prune(&a.Delta)
}

// begin starts every pass that may run.
func (d *decider) begin(now structs.LogTime) {
	// Once an operator's pause is acknowledged, no decision may start, even if the batch has not arrived here yet.
	if d.s.env.Replica.Published().Snapshot.SchedulerConfig().PauseBroker {
		return
	}
	for !d.lost && !d.planner.Full() {
		pass, ok := d.broker.Take(now)
		if !ok {
			return
		}
		in := d.input(&pass, now)
		d.flight.passes++
		d.s.inputs.keep(pass.Domain, in)
		d.s.computing.Add(1)
		go func() {
			defer d.s.computing.Done()
			began := time.Now()
			x := d.s.compute(pass, in)
			x.took = time.Since(began)
			select {
			case d.flight.decided <- x:
			case <-d.inbox.closed: // the term is over
			}
		}()
	}
}

// choose picks n of the ready workloads if a pass cannot take all.
func (d *decider) choose(ready []*structs.Workload, n int, now structs.LogTime) []int {
	order := d.s.Order(d.pub, ready, now)
	return order[:min(n, len(order))]
}

func (d *decider) reply(domain structs.PoolName) reply {
	names := []structs.PoolName{domain}
	if domain == broker.DomainAll {
		names = d.broker.Domains()
	}
	r := reply{known: d.context(domain, d.now())}
	for _, name := range names {
		r.waiting = append(r.waiting, d.broker.Queue(name)...)
	}
	return r
}

// publish copies the metrics for other goroutines.
func (d *decider) publish() {
	if d.stale = time.Since(d.counted) < countEvery; !d.stale {
		d.counted, d.metrics.Holding = time.Now(), d.broker.Len()
	}
	m := d.metrics
	entries, queued := d.planner.Depth()
	m.InFlight = entries + queued + d.flight.passes
	m.Broker, m.Planner = d.broker.Counters, d.planner.Counters
	d.s.metrics.Store(&m)
}

// links implements broker.Links on the state up to which the broker has been fed.
type links struct{ d *decider }

// DependsOn implements broker.Links.
func (l links) DependsOn(k structs.JobKey) []structs.JobKey {
	j := l.d.pub.Snapshot.JobByKey(k)
	if j == nil {
		return nil
	}
	var out []structs.JobKey
	for i := range j.Depends {
		out = append(out, j.Depends[i].On(j))
	}
	return out
}

// ChangedAt implements broker.Links.
func (l links) ChangedAt(k structs.JobKey) structs.Index {
	if j := l.d.pub.Snapshot.JobByKey(k); j != nil {
		return j.ModifyIndex
	}
	return 0
}

// anyStrictQueue reports whether blocked jobs of some queue hold back those behind them (structs.BackfillNone). They
// can do so only in a pass that includes them.
func anyStrictQueue(snap *state.Snapshot) bool {
	if snap.SchedulerConfig().Backfill == structs.BackfillNone {
		return true
	}
	for q := range snap.Queues() {
		if q.Backfill == structs.BackfillNone {
			return true
		}
	}
	return false
}
