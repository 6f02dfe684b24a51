package queue

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

func TestSkip(t *testing.T) {
	short := []*structs.GroupReport{{Wanted: 2, Placed: 1, Refusals: []structs.Refusal{{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionCPU}, CuredBy: structs.EventAllocStopped}}}}
	driver := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonDriver, CuredBy: structs.EventDriverHealthy}}}}
	device := []*structs.GroupReport{{Wanted: 1, Refusals: []structs.Refusal{{Code: structs.ReasonDeviceUnhealthy, Unit: structs.UnitDevices, CuredBy: structs.EventDeviceHealthy}}}}
	for _, c := range []struct {
		name     string
		groups   []*structs.GroupReport
		happened []structs.EventKind
		skip     bool
	}{
		{"nothing happened", short, nil, true},
		{"room appeared", short, []structs.EventKind{structs.EventAllocStopped}, false},
		{"another driver came back", short, []structs.EventKind{structs.EventDriverHealthy}, true},
		{"a node joined", short, []structs.EventKind{structs.EventNodeJoined}, false},
		{"its driver came back", driver, []structs.EventKind{structs.EventDriverHealthy}, false},
		{"room does not bring a driver", driver, []structs.EventKind{structs.EventAllocStopped}, true},
		{"a device was given back", device, []structs.EventKind{structs.EventAllocStopped}, false},
		{"an event of unknown kind", short, []structs.EventKind{structs.EventNone}, false},
		{"no reasons known", []*structs.GroupReport{{Wanted: 1}}, nil, false},
	} {
		if got := Skip(c.groups, c.happened); got != c.skip {
			t.Errorf("%s: skip %v, want %v", c.name, got, c.skip)
		}
	}
}
