package unblock

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestUnblockingEvents(t *testing.T) {
	short := []*structs.GroupReport{{Wanted: 2, Placed: 1, Refusals: []structs.Refusal{{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionCPU}, CuredBy: structs.EventAllocStopped}}}}
	driver := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonDriver, CuredBy: structs.EventDriverHealthy}}}}
	device := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonDeviceUnhealthy, Unit: structs.UnitDevices, CuredBy: structs.EventDeviceHealthy}}}}
	near := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonConstraint, CuredBy: structs.EventAllocPlaced}}}}
	costly := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonPriority, CuredBy: structs.EventSaved}}}}
	reserved := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonReservation, CuredBy: structs.EventNone}, costly[0].Refusals[0]}}}
	for _, c := range []struct {
		name     string
		groups   []*structs.GroupReport
		happened []structs.EventKind
		wakes    bool
	}{
		{"nothing happened", short, nil, false},
		{"room appeared", short, []structs.EventKind{structs.EventAllocStopped}, true},
		{"another driver came back", short, []structs.EventKind{structs.EventDriverHealthy}, false},
		{"a node joined", short, []structs.EventKind{structs.EventNodeJoined}, true},
		{"its driver came back", driver, []structs.EventKind{structs.EventDriverHealthy}, true},
		{"room does not bring a driver", driver, []structs.EventKind{structs.EventAllocStopped}, false},
		{"a device was given back", device, []structs.EventKind{structs.EventAllocStopped}, true},
		{"an event of unknown kind", short, []structs.EventKind{structs.EventNone}, true},
		{"no reasons known", []*structs.GroupReport{{Wanted: 1}}, []structs.EventKind{structs.EventTime}, true},
		{"a placement, and no reasons known", []*structs.GroupReport{{Wanted: 1}}, []structs.EventKind{structs.EventAllocPlaced}, false},
		{"the others were placed", near, []structs.EventKind{structs.EventAllocPlaced}, true},
		{"the others ended", near, []structs.EventKind{structs.EventAllocStopped}, true},
		{"a checkpoint, where too much would be lost", costly, []structs.EventKind{structs.EventSaved}, true},
		{"the same beside a reservation", reserved, []structs.EventKind{structs.EventSaved}, true},
		{"a checkpoint that nobody waits for", short, []structs.EventKind{structs.EventSaved}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := UnblockingEvents(c.groups)&Of(c.happened...) != 0; got != c.wakes {
				t.Errorf("%s: wakes %v, want %v", c.name, got, c.wakes)
			}
		})
	}
	if Saved != 1<<(Kinds-1) {
		t.Errorf("there are %d events, and the last one is %b", Kinds, Saved)
	}
}
