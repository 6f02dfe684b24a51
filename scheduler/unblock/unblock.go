// Package unblock decides which events unblock a job (D4): those that may change a decision that failed. The broker
// uses it, and a property test of package scheduler proves it: a pass without the jobs for which nothing happened makes
// the same decisions as a pass with them.
package unblock

import "github.com/muster-sched/muster/structs"

// EventSet is a set of events, a bit for each.
type EventSet uint16

// The events.
const (
	AllocStopped EventSet = 1 << iota
	NodeJoined
	NodeEligible
	DeviceHealthy
	DriverHealthy
	JobChanged
	ConfigChanged
	Time
	QueueUsage
	// JobEnded only concerns the jobs that depend on the one that ended, never a whole domain.
	JobEnded
	// ReservationGone only concerns jobs that wait for any event: a reservation for another job held them back.
	ReservationGone
	// AllocPlaced only concerns jobs with rules about where allocations of other jobs are.
	AllocPlaced
	// Saved only concerns jobs that preempt no work because too much would be lost.
	Saved
)

// Kinds is the number of events.
const Kinds = 13

// Any is every event but AllocPlaced and Saved, which happen all the time and free nothing.
const Any = AllocPlaced - 1

// Of returns the set of the given events. EventNone and unknown events stand for any event, because leaving out a job
// needs proof.
func Of(events ...structs.EventKind) (set EventSet) {
	for _, e := range events {
		set |= of(e)
	}
	return set
}

func of(e structs.EventKind) EventSet {
	switch e {
	case structs.EventAllocStopped:
		return AllocStopped
	case structs.EventNodeJoined:
		return NodeJoined
	case structs.EventNodeEligible:
		return NodeEligible
	case structs.EventDeviceHealthy:
		return DeviceHealthy
	case structs.EventDriverHealthy:
		return DriverHealthy
	case structs.EventJobChanged:
		return JobChanged
	case structs.EventConfigChanged:
		return ConfigChanged
	case structs.EventTime:
		return Time
	case structs.EventQueueUsage:
		return QueueUsage
	case structs.EventJobEnded:
		return JobEnded
	case structs.EventAllocPlaced:
		return AllocPlaced
	case structs.EventSaved:
		return Saved
	}
	return Any
}

// UnblockingEvents returns the events that may change a decision that failed with these reports. Without a reason that
// is any event.
func UnblockingEvents(groups []*structs.GroupReport) (set EventSet) {
	for _, g := range groups {
		if g.Placed >= g.Wanted {
			continue
		}
		if len(g.Refusals) == 0 {
			set |= Any
		}
		for _, r := range g.Refusals {
			set |= of(r.CuredBy)
			if r.Unit == structs.UnitDevices || r.CuredBy == structs.EventDeviceHealthy {
				set |= AllocStopped | DeviceHealthy // a device may be released, or become healthy
			}
			if r.CuredBy == structs.EventAllocPlaced {
				set |= AllocStopped // the others may end as well as start
			}
		}
		set |= NodeJoined | NodeEligible | JobChanged | ConfigChanged // new nodes help against everything that nodes refuse
	}
	if set == 0 {
		return Any
	}
	return set
}
