package broker

import (
	"time"

	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/structs"
)

// room is what helps those who compete: who waits for nothing of it (for its time, for another job, for a node of some kind)
// would not be served if others gave way.
var room = unblock.AllocStopped | unblock.QueueUsage

// rouse makes ready every job of a domain that waits for room, now that it may have to be weighed against others.
func (b *Broker) rouse(d *domain, now structs.LogTime) {
	for i := range d.waiting {
		g := &d.waiting[i]
		if g.cures&room == 0 {
			continue
		}
		for n := len(g.jobs); n > 0; n = len(g.jobs) {
			b.Counters.Roused++
			b.cureJob(g.jobs[n-1], now)
		}
	}
}

// contest rouses what competes with the jobs that a pass of a domain is about to take.
func (b *Broker) contest(name string, now structs.LogTime) {
	names := []string{name}
	if name == DomainAll {
		names = b.names
	}
	for _, n := range names {
		if b.rivals != nil && b.rivals(n) {
			b.rouse(b.domainOf(n), now)
		}
		if b.owed == nil {
			continue
		}
		for _, k := range b.owed(n) {
			if j := b.jobs[k]; j != nil && j.wpos >= 0 && j.domain == n && now.Sub(j.looked) >= promiseEvery {
				b.Counters.Roused++
				b.cureJob(j, now)
			}
		}
	}
}

// promiseEvery is how often at most a job with a promise is looked at again because a pass runs anyway.
const promiseEvery = time.Second

// WakeAt has everything that waits for room in a domain looked at again at a time, though nothing may happen until then;
// 0 is never. It replaces what was said of the domain before.
func (b *Broker) WakeAt(name string, at structs.LogTime) {
	d := b.domainOf(name)
	if d.wake != nil {
		b.timers.remove(d.wake)
		d.wake = nil
	}
	if at > 0 {
		d.wake = b.timers.add(&timer{at: at, woken: d})
	}
}

// woken rouses a domain whose time has come.
func (b *Broker) woken(d *domain, now structs.LogTime) {
	d.wake = nil
	if d.name != DomainAll {
		b.rouse(d, now)
		return
	}
	for _, n := range b.names {
		b.rouse(b.domains[n], now)
	}
}
