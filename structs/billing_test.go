package structs

import "testing"

// TestBillingOf: each resource counts by its weight, and a GPU by the longest word that names its model.
func TestBillingOf(t *testing.T) {
	b := &Billing{GPU: 1e6, GPUMemory: 10_000, CPU: 20_000, Memory: 10_000, Models: map[string]int64{"H100": 4e6, "1g.10gb": 500_000}}
	gpu := func(model string, memory, compute int64) Grant {
		return Grant{Device: "nvidia/gpu/" + model, MemoryMiB: memory, SizeMiB: 81920, Compute: compute}
	}
	for _, c := range []struct {
		name string
		a    Allocation
		want int64
	}{
		{"nothing", Allocation{}, 0},
		{"processor and memory", Allocation{Resources: Vector{CPU: 50_000, MemoryMiB: 2048}}, 1000 + 20},
		{"a GPU of no named model", Allocation{Grants: []Grant{gpu("Tesla T4", 0, 0)}}, 1000 + 800},
		{"two of a named one", Allocation{Grants: []Grant{gpu("NVIDIA H100 80GB HBM3", 0, 0), gpu("NVIDIA H100 80GB HBM3", 0, 0)}}, 2 * (4000 + 800)},
		{"a quarter of it", Allocation{Grants: []Grant{gpu("NVIDIA H100 80GB HBM3", 20480, 0)}}, 1000 + 200},
		{"an instance of it", Allocation{Grants: []Grant{gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0, 0)}}, 500 + 800},
		{"no GPU at all", Allocation{Grants: []Grant{{Device: "x/fpga/H100"}}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := b.Of(&c.a); got != c.want {
				t.Errorf("%s: %d, want %d", c.name, got, c.want)
			}
		})
	}
	if got := (*Billing)(nil).Of(&Allocation{Resources: Vector{CPU: 1000}}); got != 0 {
		t.Errorf("without weights: %d", got)
	}
	total := Amount{GPUMilli: 10_000, GPUMemoryMiB: 1024, CPU: 1000, MemoryMiB: 1024}
	if got := b.OfCluster(total, []GPUCount{{"NVIDIA H100 80GB HBM3", 8}, {"Tesla T4", 1}}); got != 32_000+1000+1000+10+20+10 {
		t.Errorf("the cluster: %d", got)
	}
}
