package main

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// Four GPUs of 80 GiB, 1 GiB kept back on each: one whole, one shared by two, one idle, one sick.
func TestGPUModels(t *testing.T) {
	g := &wire.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for _, id := range []string{"a", "b", "c", "d"} {
		g.Instances = append(g.Instances, &wire.NodeDevice{ID: id, Healthy: id != "d", MemoryMB: 81920, ReserveMB: 1024})
	}
	nodes := []*wire.NodeListStub{{ID: "n", Name: "gpu-01", Status: "ready", SchedulingEligibility: "eligible", NodeResources: &wire.NodeResources{Devices: []*wire.NodeDeviceResource{g}}}}
	alloc := func(status string, d *wire.AllocatedDeviceResource) *wire.AllocationListStub {
		return &wire.AllocationListStub{NodeID: "n", ClientStatus: status, AllocatedResources: &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{"t": {Devices: []*wire.AllocatedDeviceResource{d}}}}}
	}
	share := func(mb int64) *wire.AllocatedDeviceResource {
		return &wire.AllocatedDeviceResource{DeviceIDs: []string{"b"}, Shares: []wire.DeviceShare{{DeviceID: "b", MemoryMB: mb}}}
	}
	allocs := []*wire.AllocationListStub{alloc("running", &wire.AllocatedDeviceResource{DeviceIDs: []string{"a"}}), alloc("running", share(20480)), alloc("pending", share(30720)), alloc("complete", share(99))}
	m := gpuModels(nodes, allocs)[0]
	free := int64(81920 - 1024 + 81920 - 1024 - 51200)
	if m.Total != 4 || m.Free != 1 || m.Shared != 1 || m.Unhealthy != 1 || m.Largest != 1 || m.FreeMemoryMiB != free || m.LargestSlotMiB != 80896 || m.Fragmentation != int(29696*100/free) {
		t.Errorf("got %+v", m)
	}
}

// What job why says when memory is there, but in pieces.
func TestWhyFragmentation(t *testing.T) {
	r := structs.Refusal{Code: structs.ReasonFragmentation, Obstacle: structs.Obstacle{Dimension: structs.DimensionGPUMemory}, Nodes: 2, Short: 10240, Unit: structs.UnitMiB, Largest: 51200, CuredBy: structs.EventAllocStopped}
	line := refusalLine(r) + slotText(r)
	for _, want := range []string{"GPU memory left only in pieces", "short by 10 GiB", "largest free slot is 50 GiB"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q does not say %q", line, want)
		}
	}
	if c := cure(r); !strings.Contains(c, "asks for 10 GiB less") || !strings.Contains(c, "50 GiB free now") {
		t.Errorf("cure: %q", c)
	}
	r = structs.Refusal{Code: structs.ReasonResources, Obstacle: structs.Obstacle{Dimension: structs.DimensionEmptyGPUMemory}, Nodes: 2, Short: 1024, Unit: structs.UnitMiB, Largest: 80896, CuredBy: structs.EventNodeJoined}
	if c := cure(r); strings.Contains(c, "comes free") || !strings.Contains(c, "GPUs of at least 80 GiB") {
		t.Errorf("no end of an allocation cures it: %q", c)
	}
}

// TestCureOfHeld: who is on hold is released, who is suspended is resumed.
func TestCureOfHeld(t *testing.T) {
	for dimension, want := range map[structs.Dimension]string{structs.DimensionHold: "muster job release", structs.DimensionSuspended: "muster job resume"} {
		if c := cure(structs.Refusal{Code: structs.ReasonHeld, Obstacle: structs.Obstacle{Dimension: dimension}}); !strings.Contains(c, want) {
			t.Errorf("%s: %q; want %q in it", dimension, c, want)
		}
	}
}

// TestWhyGrowthDoesNotPay: job why says with figures why a gang that has room does not grow, and hints at no cure.
func TestWhyGrowthDoesNotPay(t *testing.T) {
	r := structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionGrowth, Count: 3120, Of: 2100, Detail: string(structs.UnitGPUSeconds)},
		Short: 1, Unit: structs.UnitMembers, CuredBy: structs.EventSaved}
	want := "it has its minimum and may grow by 1 member, but growth restarts it: 3120 GPU seconds would be lost, and 2100 gained until its expected end"
	if got := refusalLine(r); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if c := cure(r); c != "" {
		t.Errorf("cure: %q", c)
	}
}
