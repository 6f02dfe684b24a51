package runner

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// The second gate: the agent grants no GPU beyond its memory or compute, nor whole and in shares, even if the servers
// say so.
func TestLedgerShares(t *testing.T) {
	const dev = "nvidia/gpu/H100"
	node := &structs.Node{Meta: map[string]string{structs.GPUReserveAttribute: "1000"}, Resources: structs.NodeResources{Devices: []structs.DeviceGroup{{
		Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{{ID: "g0", Healthy: true, MemoryMiB: 81000}, {ID: "g1", Healthy: true, MemoryMiB: 81000},
			{ID: "sick", HealthDesc: "XID 79", MemoryMiB: 81000}}}}}}
	l := NewLedger()
	alloc := func(n byte, grants ...structs.Grant) *structs.Allocation {
		for i := range grants {
			grants[i].Device = dev
		}
		return &structs.Allocation{ID: structs.AllocID{n}, Grants: grants}
	}
	for _, step := range []struct {
		a    *structs.Allocation
		want string // "": accepted
	}{
		{alloc(1, structs.Grant{Instance: "g0", MemoryMiB: 50000, Compute: 60}), ""},
		{alloc(1, structs.Grant{Instance: "g0", MemoryMiB: 50000, Compute: 60}), ""}, // again
		{alloc(2, structs.Grant{Instance: "g0", MemoryMiB: 30001}), "80000 MiB to share and 80001 would be in use"},
		{alloc(3, structs.Grant{Instance: "g0", MemoryMiB: 100, Compute: 41}), "101 % of its compute"},
		{alloc(4, structs.Grant{Instance: "g0"}), "still held by allocation"},
		{alloc(5, structs.Grant{Task: "a", Instance: "g0", MemoryMiB: 20000}, structs.Grant{Task: "b", Instance: "g0", MemoryMiB: 20000}), "90000 would be in use"},
		{alloc(6, structs.Grant{Task: "a", Instance: "g0", MemoryMiB: 10000, Compute: 20}, structs.Grant{Task: "b", Instance: "g0", MemoryMiB: 20000, Compute: 20}), ""},
		{alloc(7, structs.Grant{Task: "a", Instance: "g1"}, structs.Grant{Task: "b", Instance: "g1", MemoryMiB: 5}), "whole and once more"},
		{alloc(8, structs.Grant{Instance: "g1"}), ""},
		{alloc(9, structs.Grant{Instance: "g1", MemoryMiB: 5}), "still held by allocation"},
		{alloc(10, structs.Grant{Instance: "sick", MemoryMiB: 5}), "XID 79"},
		{alloc(11, structs.Grant{Instance: "none", MemoryMiB: 5}), "not on this node"},
	} {
		err := l.Claim(step.a, node)
		if (err == nil) != (step.want == "") || err != nil && !strings.Contains(err.Error(), step.want) {
			t.Errorf("allocation %d: %v, want %q", step.a.ID[0], err, step.want)
		}
	}
	l.Release(structs.AllocID{1})
	if err := l.Claim(alloc(12, structs.Grant{Instance: "g0", MemoryMiB: 50000, Compute: 60}), node); err != nil {
		t.Errorf("what was released is not free: %v", err)
	}
}
