package runner

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestAdaptersNearGPUs: the variables of a task that asks for RDMA name the adapters near the GPUs that it was given, of
// those that the operator lists.
func TestAdaptersNearGPUs(t *testing.T) {
	n := &structs.Node{Resources: structs.NodeResources{Devices: []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{
		{ID: "a", Adapters: "mlx5_0,mlx5_1"}, {ID: "b", Adapters: "mlx5_1"}, {ID: "c"}, {ID: "d", Adapters: "mlx5_4"},
	}}}}}
	grants := func(task string, ids ...string) (out []structs.Grant) {
		for _, id := range ids {
			out = append(out, structs.Grant{Task: task, Device: "nvidia/gpu/H100", Instance: id})
		}
		return out
	}
	mine := append(grants("other", "d"), grants("t", "b", "a", "c")...)
	near := adaptersNear(n, mine, "t")
	if want := []string{"mlx5_1", "mlx5_0"}; !slices.Equal(near, want) {
		t.Errorf("near are %v, want %v", near, want)
	}
	if got := adaptersNear(n, grants("t", "c"), "t"); got != nil {
		t.Errorf("near a GPU without adapters are %v", got)
	}
	for _, c := range []struct{ vars, want map[string]string }{
		{nil, map[string]string{"NCCL_IB_HCA": "=mlx5_1,mlx5_0", "UCX_NET_DEVICES": "mlx5_1:1,mlx5_0:1"}},
		{map[string]string{"NCCL_IB_HCA": "=mlx5_0:2,mlx5_4:2", "X": "y"}, map[string]string{"NCCL_IB_HCA": "=mlx5_0:2", "UCX_NET_DEVICES": "mlx5_0:2", "X": "y"}},
		{map[string]string{"NCCL_IB_HCA": "=mlx5_4"}, map[string]string{"NCCL_IB_HCA": "=mlx5_4"}},
		{map[string]string{"UCX_NET_DEVICES": "all"}, map[string]string{"NCCL_IB_HCA": "=mlx5_1,mlx5_0", "UCX_NET_DEVICES": "all"}},
	} {
		before := maps.Clone(c.vars)
		if got := nearFabric(c.vars, near); !maps.Equal(got, c.want) {
			t.Errorf("of %v it makes %v, want %v", c.vars, got, c.want)
		}
		if !maps.Equal(c.vars, before) {
			t.Errorf("it changed the operator's variables to %v", c.vars)
		}
	}
	for _, c := range []struct {
		r           structs.Resources
		wants, must bool
	}{
		{structs.Resources{}, false, false}, {structs.Resources{RDMA: true}, true, true},
		{structs.Resources{GPU: []structs.GPURequest{{RDMA: structs.RDMAPreferred}}}, true, false},
		{structs.Resources{GPU: []structs.GPURequest{{Model: "H200"}, {Model: "H100", RDMA: structs.RDMARequired}}}, true, true},
		{structs.Resources{GPU: []structs.GPURequest{{Model: "H200", RDMA: structs.RDMARequired}, {Model: "H100"}}}, false, false},
	} {
		if wants, must := rdmaWish(&structs.Task{Name: "t", Resources: c.r}, grants("t", "a")); wants != c.wants || must != c.must {
			t.Errorf("%+v: wants %t, must %t", c.r, wants, must)
		}
	}
	for want, c := range map[string]struct {
		rdma   string
		grants []structs.Grant
	}{
		"1 of 2": {structs.RDMAPreferred, grants("t", "b", "c")}, "1 of 1": {structs.RDMAPreferred, append(grants("other", "a", "b"), grants("t", "c")...)},
		"": {structs.RDMAPreferred, grants("t", "a", "b")}, " ": {structs.RDMARequired, grants("t", "c")},
	} {
		count := int64(0)
		for i := range c.grants {
			if c.grants[i].Task == "t" {
				count++
			}
		}
		task := &structs.Task{Name: "t", Resources: structs.Resources{GPU: []structs.GPURequest{{Count: count, RDMA: c.rdma}}}}
		got := withoutAdapter(n, task, c.grants)
		if want = strings.TrimSpace(want); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("rdma = %s with %v: %q, want %q", c.rdma, c.grants, got, want)
		}
	}
}
