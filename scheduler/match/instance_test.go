package match

import (
	"fmt"
	"slices"
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

func eightGPUs() *structs.Node {
	n := testNode()
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100"}
	for i := range 8 {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d", i), Healthy: true, MemoryMiB: 80 << 10, Island: fmt.Sprint("nv", i/4)})
	}
	g.Attributes = map[string]structs.Attribute{structs.GPUEnforceAttribute: {Kind: "string", Str: "none"}}
	n.Resources.Devices = []structs.DeviceGroup{g}
	return n
}

// A condition on ${device.ids} selects devices, wherever it is written, for whole GPUs and shares.
func TestParticularDevices(t *testing.T) {
	con := func(op, value string) []structs.Constraint {
		return []structs.Constraint{{LTarget: "${device.ids}", Operand: op, RTarget: value}}
	}
	like := func(weight int64, value string) []structs.Affinity {
		return []structs.Affinity{{LTarget: "${device.ids}", Operand: "set_contains_any", RTarget: value, Weight: weight}}
	}
	gpu := func(tg *structs.Group) *structs.GPURequest { return &tg.Tasks[0].Resources.GPU[0] }
	for _, c := range []struct {
		name string
		set  func(j *structs.Job, tg *structs.Group)
		want string // "": no place on the node
	}{
		{"gpu block", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Constraints = con("set_contains", "GPU-7") }, "[GPU-7]"},
		{"gpu block, equal", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Constraints = con("=", "GPU-5") }, "[GPU-5]"},
		{"gpu block, but one", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Constraints = con("!=", "GPU-0") }, "[GPU-1]"},
		{"gpu block, pattern", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Constraints = con("regexp", "-[67]$") }, "[GPU-6]"},
		{"turned around", func(_ *structs.Job, tg *structs.Group) {
			gpu(tg).Constraints = []structs.Constraint{{LTarget: "GPU-3,GPU-4", Operand: "set_contains", RTarget: "${device.ids}"}}
		}, "[GPU-3]"},
		{"one of two", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Constraints = con("set_contains_any", "GPU-9,GPU-6") }, "[GPU-6]"},
		{"both of two", func(_ *structs.Job, tg *structs.Group) {
			gpu(tg).Count, gpu(tg).Constraints = 2, con("set_contains", "GPU-2, GPU-6")
		}, "[GPU-2 GPU-6]"},
		{"not on the node", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Constraints = con("set_contains", "GPU-7,GPU-9") }, ""},
		{"too few named", func(_ *structs.Job, tg *structs.Group) {
			gpu(tg).Count, gpu(tg).Constraints = 2, con("set_contains", "GPU-7")
		}, ""},
		{"job", func(j *structs.Job, _ *structs.Group) { j.Constraints = con("set_contains", "GPU-7") }, "[GPU-7]"},
		{"group", func(_ *structs.Job, tg *structs.Group) { tg.Constraints = con("set_contains", "GPU-7") }, "[GPU-7]"},
		{"task", func(_ *structs.Job, tg *structs.Group) { tg.Tasks[0].Constraints = con("set_contains", "GPU-7") }, "[GPU-7]"},
		{"group and block", func(_ *structs.Job, tg *structs.Group) {
			tg.Constraints, gpu(tg).Constraints = con("set_contains_any", "GPU-6,GPU-7"), con("!=", "GPU-6")
		}, "[GPU-7]"},
		{"device block", func(_ *structs.Job, tg *structs.Group) {
			r := &tg.Tasks[0].Resources
			r.GPU, r.Devices = nil, []structs.DeviceRequest{{Name: "nvidia/gpu", Count: 1, Constraints: con("set_contains", "GPU-7")}}
		}, "[GPU-7]"},
		{"share", func(_ *structs.Job, tg *structs.Group) {
			gpu(tg).MemoryMiB, gpu(tg).Constraints = 1<<10, con("set_contains", "GPU-7")
		}, "[GPU-7]"},
		{"share of a group", func(_ *structs.Job, tg *structs.Group) {
			gpu(tg).MemoryMiB, tg.Constraints = 1<<10, con("set_contains", "GPU-7")
		}, "[GPU-7]"},
		{"liked", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Affinities = like(50, "GPU-6") }, "[GPU-6]"},
		{"liked by the group", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Count, tg.Affinities = 2, like(50, "GPU-6") }, "[GPU-4 GPU-6]"},
		{"disliked", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Affinities = like(-50, "GPU-0,GPU-1") }, "[GPU-2]"},
		{"liked share", func(_ *structs.Job, tg *structs.Group) {
			gpu(tg).MemoryMiB, gpu(tg).Affinities = 1<<10, like(50, "GPU-6")
		}, "[GPU-6]"},
		{"liked, not there", func(_ *structs.Job, tg *structs.Group) { gpu(tg).Affinities = like(50, "GPU-9") }, "[GPU-0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := eightGPUs()
			tg := &structs.Group{Name: "g", Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{GPU: []structs.GPURequest{{Count: 1}}}}}}
			j := &structs.Job{ID: "j", NodePool: structs.NodePoolAll, Groups: []*structs.Group{tg}}
			c.set(j, tg)
			a := CompileAsk(j, tg, structs.GPUFitBest)
			if got := a.feasibleOn(n); got != (c.want != "") {
				t.Fatalf("feasible: %v", got)
			}
			if _, bad := a.WithoutDevices(n); bad != (c.want == "") {
				t.Errorf("without the devices: %v", bad)
			}
			var k Picker
			if x := k.PickDevices(a, n, &model.EmptyHolding, [][]DeviceChoice{a.Devices[0].Choices(n)}); (x.Dim == structs.DimensionNone) != (c.want != "") {
				t.Fatalf("%+v", x)
			}
			var ids []string
			grants := k.grants(a, n)
			for _, g := range grants {
				ids = append(ids, g.Instance)
			}
			slices.Sort(ids)
			if got := fmt.Sprint(ids); c.want != "" && got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if why := Misgiven(j, tg, n, grants); why != "" {
				t.Errorf("what was picked is refused: %s", why)
			}
			if !asksParticular(j, tg) {
				return
			}
			for i := range 8 { // every other GPU is refused when the plan is verified
				id := fmt.Sprintf("GPU-%d", i)
				why := Misgiven(j, tg, n, []structs.Grant{{Task: "t", Device: n.Resources.Devices[0].ID(), Instance: id}})
				if want := !a.Devices[0].Alts[0].Admits(&structs.DeviceInstance{ID: id}); (why != "") != want {
					t.Errorf("%s refused: %q, want %v", id, why, want)
				}
			}
		})
	}
}
