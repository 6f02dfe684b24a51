// Package unblock is the rule for what wakes a blocked job (D4): which events may change a decision that failed. The
// broker goes by it, and the property of package scheduler proves it: a pass that leaves out the jobs for which nothing
// happened decides as one that does not.
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
	// JobEnded concerns only the jobs that depend on the one that ended, never a whole domain.
	JobEnded
	// ReservationGone concerns only jobs that wait for any event: a reservation of others held them back.
	ReservationGone
	// AllocPlaced concerns only jobs with rules about where allocations of other jobs are. Any leaves it out: it happens
	// all the time and frees nothing.
	AllocPlaced
)

// Kinds is the number of events.
const Kinds = 12

// Any is every event but AllocPlaced.
const Any = AllocPlaced - 1

// Of is the set of the given events. EventNone and unknown ones stand for any event, for leaving a job out must be
// provable.
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
	}
	return Any
}

// UnblockingEvents are the events that may change a decision that failed with these reports. Without a reason that is
// any event.
func UnblockingEvents(groups []*structs.GroupReport) (set EventSet) {
	for _, g := range groups {
		if g.Placed >= g.Wanted {
			continue
		}
		if len(g.Refusals) == 0 {
			return Any
		}
		for _, r := range g.Refusals {
			if r.CuredBy == structs.EventNone {
				return Any
			}
			set |= of(r.CuredBy)
			if r.Unit == structs.UnitDevices || r.CuredBy == structs.EventDeviceHealthy {
				set |= AllocStopped | DeviceHealthy // a device may be given back, or get well
			}
			if r.CuredBy == structs.EventAllocPlaced {
				set |= AllocStopped // the others may end as well as start
			}
		}
		set |= NodeJoined | NodeEligible | JobChanged | ConfigChanged // more nodes help against everything that nodes refuse
	}
	if set == 0 {
		return Any
	}
	return set
}
