package broker

import (
	"time"

	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/structs"
)

// room is the set of events that preemption can cause. A job that waits only for other events (its time, another job, a
// new node) gains nothing if others are preempted.
var room = unblock.AllocStopped | unblock.QueueUsage

// wakeDomain makes every job of a domain that waits for capacity ready, so that it is compared with running work.
func (b *Broker) wakeDomain(d *domain, now structs.LogTime) {
	for i := range d.waiting {
		g := &d.waiting[i]
		if g.events&room == 0 {
			continue
		}
		for n := len(g.jobs); n > 0; n = len(g.jobs) {
			b.Counters.Roused++
			b.unblockJob(g.jobs[n-1], now)
		}
	}
}

// wakeContenders wakes the jobs that compete with those that a pass of a domain is about to take.
func (b *Broker) wakeContenders(name structs.PoolName, now structs.LogTime) {
	names := []structs.PoolName{name}
	if name == DomainAll {
		names = b.names
	}
	for _, n := range names {
		if b.env.Competition != nil && b.env.Competition(n) {
			b.wakeDomain(b.domainOf(n), now)
		}
		if b.env.Reserved == nil {
			continue
		}
		for _, k := range b.env.Reserved(n) {
			if j := b.jobs[k]; j != nil && j.wpos >= 0 && j.domain == n && now.Sub(j.looked) >= reservedEvery {
				b.Counters.Roused++
				b.unblockJob(j, now)
			}
		}
	}
}

// reservedEvery is the shortest time between two passes that a job with a reservation joins without another reason.
const reservedEvery = time.Second

// WakeAt wakes everything in a domain that waits for capacity at a time, even if no event happens before it. It
// replaces the domain's earlier time; 0 means never.
func (b *Broker) WakeAt(name structs.PoolName, at structs.LogTime) {
	d := b.domainOf(name)
	if d.wake != nil {
		b.timers.remove(d.wake)
		d.wake = nil
	}
	if at > 0 {
		d.wake = b.timers.add(&timer{at: at, woken: d})
	}
}

// woken wakes a domain whose WakeAt time has come.
func (b *Broker) woken(d *domain, now structs.LogTime) {
	d.wake = nil
	if d.name != DomainAll {
		b.wakeDomain(d, now)
		return
	}
	for _, n := range b.names {
		b.wakeDomain(b.domains[n], now)
	}
}
