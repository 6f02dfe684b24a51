package match

import (
	"slices"
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

func TestRDMAWantsANodeThatHasIt(t *testing.T) {
	with := &structs.Node{Attributes: map[string]string{structs.RDMAAttribute: "mlx5_0"}, Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}}}
	without := &structs.Node{Drivers: with.Drivers}
	task := &structs.Task{Name: "t", Driver: "exec", Resources: structs.Resources{RDMA: true}}
	a := CompileAsk(&structs.Job{ID: "j"}, &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{task}}, "")
	if r, bad := a.Refuses(with); bad {
		t.Errorf("a node with RDMA is refused: %+v", r)
	}
	if r, bad := a.Refuses(without); !bad || !strings.Contains(r.Text(), structs.RDMAAttribute) {
		t.Errorf("a node without RDMA is taken (%t), or the reason is not told: %q", !bad, r.Text())
	}
}

// TestGPUsNearAnAdapter: required takes only GPUs near an RDMA adapter, and names that where a node has none; preferred takes
// them first.
func TestGPUsNearAnAdapter(t *testing.T) {
	n := &structs.Node{Drivers: map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}}}
	n.Resources.Devices = []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{
		{ID: "a", Healthy: true}, {ID: "b", Healthy: true, Adapters: "mlx5_0"}, {ID: "c", Healthy: true}, {ID: "d", Healthy: true, Adapters: "mlx5_1"},
	}}}
	take := func(rdma string, count int64) (ids string, short bool) {
		task := &structs.Task{Name: "t", Driver: "exec", Resources: structs.Resources{GPU: []structs.GPURequest{{Count: count, RDMA: rdma}}}}
		a := CompileAsk(&structs.Job{ID: "j"}, &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{task}}, "")
		h, x := a.Equip(n, model.Occupancy{}, [][]DeviceChoice{a.Devices[0].Choices(n)}, structs.AllocID{1}, nil, &Picker{})
		if x.Dim != structs.DimensionNone {
			return "", true
		}
		for i := range h.Rare.Grants {
			ids += h.Rare.Grants[i].Instance
		}
		if why := Misgiven(a.Job, a.Tg, n, h.Rare.Grants); why != "" {
			t.Errorf("a plan with %s would be refused: %s", ids, why)
		}
		return ids, false
	}
	for _, c := range []struct {
		rdma  string
		count int64
		ids   string
		short bool
	}{{"", 2, "ab", false}, {"preferred", 2, "bd", false}, {"preferred", 3, "abd", false}, {"required", 1, "b", false}, {"required", 2, "bd", false}, {"required", 3, "", true}} {
		got, short := take(c.rdma, c.count)
		b := []byte(got)
		slices.Sort(b)
		if string(b) != c.ids || short != c.short {
			t.Errorf("%d GPUs with rdma %q: %q, short %t; want %q", c.count, c.rdma, got, short, c.ids)
		}
	}
	task := &structs.Task{Name: "t", Driver: "exec", Resources: structs.Resources{GPU: []structs.GPURequest{{Count: 1, RDMA: "required"}}}}
	job, tg := &structs.Job{ID: "j"}, &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{task}}
	a := CompileAsk(job, tg, "")
	if why := Misgiven(job, tg, n, []structs.Grant{{Task: "t", Device: "nvidia/gpu/H100", Instance: "a"}}); why == "" {
		t.Error("a plan that gives a GPU without an adapter is accepted")
	}
	for i := range n.Resources.Devices[0].Instances {
		n.Resources.Devices[0].Instances[i].Adapters = ""
	}
	if r, bad := a.WithoutDevices(n); !bad || !strings.Contains(r.Text(), "near an RDMA adapter") {
		t.Errorf("a node without adapters is taken (%t), or the reason does not say why: %q", !bad, r.Text())
	}
}
