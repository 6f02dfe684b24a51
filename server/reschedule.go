package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Expiry stops allocations that have used up their wall-clock limit (Job.RunLimit), counted from their first running task. The
// agent of a node does the same by its own clock; time that it stood still does not count. The this is for agents that do not come to it, and it says why in the
// state. Reschedules need no service: their delayed evaluations wait in the broker.

// expiryBatch bounds the allocations in one command: 32 KiB of ids.
const expiryBatch = 2000

// expiry is when one allocation has run for as long as it may.
type expiry struct {
	id structs.AllocID
	at structs.LogTime
}

// expiryOf is the end of an allocation's time; ok is false when it has none, or is about to end anyway.
func expiryOf(a *structs.Allocation) (expiry, bool) {
	if a == nil || a.StartedAt == 0 || a.Suspended() || a.Terminal() || a.Transition.Expire || a.Job == nil {
		return expiry{}, false
	}
	g := a.Job.Group(a.Group)
	if g == nil || a.Job.RunLimit(g) <= 0 {
		return expiry{}, false
	}
	return expiry{a.ID, a.Began(a.StartedAt).Add(a.Job.RunLimit(g))}, true
}

// expiries is sorted by time, then id.
type expiries struct {
	list []expiry
	at   map[structs.AllocID]structs.LogTime
}

func compareExpiry(a, b expiry) int {
	return cmp.Or(cmp.Compare(a.at, b.at), slices.Compare(a.id[:], b.id[:]))
}

func (x *expiries) set(id structs.AllocID, e expiry, ok bool) {
	if at, have := x.at[id]; have {
		if ok && at == e.at {
			return
		}
		if i, found := slices.BinarySearchFunc(x.list, expiry{id, at}, compareExpiry); found {
			x.list = slices.Delete(x.list, i, i+1)
		}
		delete(x.at, id)
	}
	if ok {
		i, _ := slices.BinarySearchFunc(x.list, e, compareExpiry)
		x.list = slices.Insert(x.list, i, e)
		x.at[id] = e.at
	}
}

// due takes what is over, at most max.
func (x *expiries) due(now structs.LogTime, max int) []structs.AllocID {
	n := 0
	for n < len(x.list) && n < max && x.list[n].at <= now {
		n++
	}
	ids := make([]structs.AllocID, n)
	for i, e := range x.list[:n] {
		ids[i] = e.id
		delete(x.at, e.id)
	}
	x.list = slices.Delete(x.list, 0, n)
	return ids
}

func loadExpiries(snap *state.Snapshot) *expiries {
	x := &expiries{at: map[structs.AllocID]structs.LogTime{}}
	for a := range snap.Allocs() {
		if e, ok := expiryOf(a); ok {
			x.list = append(x.list, e)
			x.at[e.id] = e.at
		}
	}
	slices.SortFunc(x.list, compareExpiry)
	return x
}

// runExpiry is the service.
func (s *Server) runExpiry(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("expiry", 1024)
	defer s.Unsubscribe(sub)
	x := loadExpiries(s.Published().Snapshot)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		if len(x.list) > 0 {
			wait = max(x.list[0].at.Sub(s.logNow()), 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				if a.Lost || a.Delta.Restored {
					x = loadExpiries(a.Snapshot)
					continue
				}
				for i := range a.Delta.Allocs {
					c := &a.Delta.Allocs[i]
					if c.After == nil {
						x.set(c.Before.ID, expiry{}, false)
						continue
					}
					e, ok := expiryOf(a.Snapshot.AllocByID(c.After.ID))
					x.set(c.After.ID, e, ok)
				}
			}
		case <-timer.C:
			ids := x.due(s.logNow(), expiryBatch)
			if len(ids) == 0 {
				continue
			}
			_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: structs.Submitter{Name: "max_run_duration"},
				Body: &structs.AllocTransitionCommand{IDs: ids, Transition: structs.Transition{Expire: true}, Trigger: structs.TriggerMaxRun}})
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && structs.CodeOf(err) != structs.CodeNotFound:
				s.log.Warn("could not stop allocations over max_run_duration; trying again", "allocs", len(ids), "error", err)
				if !pause(ctx, time.Second) {
					return nil
				}
				x = loadExpiries(s.Published().Snapshot)
			}
		}
	}
}
