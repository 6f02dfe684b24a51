package broker

import (
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Kinds is a set of curing events.
type Kinds uint16

// jobEnded is the one kind that is not told to whole domains, but to those that wait for the very job (depend.go).
const jobEnded Kinds = 1 << 9

// promiseGone is of interest to those alone that wait for any event: they were held back by what is promised to others.
const promiseGone Kinds = 1 << 10

// AnyKind is every event but that something was placed, which happens all the time and makes no room.
const AnyKind Kinds = 1<<(kindCount-1) - 1

// placed is of interest to those alone that look at where work of other jobs is.
const placed Kinds = 1 << 11

const kindCount = 12

// kindOf is the set of one event; of EventNone or an unknown one, every event, because skipping must be provable.
func kindOf(e structs.EventKind) Kinds {
	switch e {
	case structs.EventAllocStopped:
		return 1 << 0
	case structs.EventNodeJoined:
		return 1 << 1
	case structs.EventNodeEligible:
		return 1 << 2
	case structs.EventDeviceHealthy:
		return 1 << 3
	case structs.EventDriverHealthy:
		return 1 << 4
	case structs.EventJobChanged:
		return 1 << 5
	case structs.EventConfigChanged:
		return 1 << 6
	case structs.EventTime:
		return 1 << 7
	case structs.EventQueueUsage:
		return 1 << 8
	case structs.EventJobEnded:
		return jobEnded
	case structs.EventAllocPlaced:
		return placed
	}
	return AnyKind
}

// KindsOf is the set of the given events.
func KindsOf(events ...structs.EventKind) Kinds {
	var k Kinds
	for _, e := range events {
		k |= kindOf(e)
	}
	return k
}

// curesOf is what may cure a blocked evaluation, by its reports; every event when they do not say.
func curesOf(e *structs.Evaluation) Kinds {
	if k := KindsOf(queue.Cures(e.FailedGroups)...); k != 0 {
		return k
	}
	return AnyKind
}
