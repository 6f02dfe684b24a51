package scheduler_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestDegradedGPUsLast: a GPU that takes work although something is wrong with it is given after sound ones, of its node
// and of all nodes, under every policy, and to work that would otherwise wait.
func TestDegradedGPUsLast(t *testing.T) {
	// A node is a string with a letter for each GPU: s is sound, d degraded. A blank begins another island.
	cluster := func(nodes ...string) (out []*structs.Node) {
		for k, gpus := range nodes {
			n := node(k + 1)
			g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
			for i, island := range strings.Fields(gpus) {
				for j, c := range island {
					in := structs.DeviceInstance{ID: fmt.Sprintf("%d.%d%d", k+1, i, j), Healthy: true, MemoryMiB: 80_000, NUMANode: -1, Island: fmt.Sprint("island", i)}
					if c == 'd' {
						in.HealthDesc = structs.DegradedPrefix + "it is hot"
					}
					g.Instances = append(g.Instances, in)
				}
			}
			n.Resources.Devices = []structs.DeviceGroup{g}
			out = append(out, n)
		}
		return out
	}
	for _, c := range []struct {
		nodes []string
		jobs  []structs.GPURequest // each is decided after the others
		want  string
	}{
		{[]string{"dsd"}, []structs.GPURequest{{Count: 1}}, "1.01"},
		{[]string{"dsd"}, []structs.GPURequest{{Count: 2}}, "1.00 1.01"},
		{[]string{"dsd"}, []structs.GPURequest{{Count: 1, MemoryMiB: 1000}}, "1.01"},
		{[]string{"ds"}, []structs.GPURequest{{Count: 1, MemoryMiB: 70_000}, {Count: 1, MemoryMiB: 70_000}}, "1.01, 1.00"},
		{[]string{"dsss ssss"}, []structs.GPURequest{{Count: 4}}, "1.10 1.11 1.12 1.13"},
		{[]string{"dsss sss"}, []structs.GPURequest{{Count: 4}}, "1.00 1.01 1.02 1.03"}, // near to each other counts more
		{[]string{"d", "s"}, []structs.GPURequest{{Count: 1}, {Count: 1}}, "2.00, 1.00"},
		{[]string{"d", "d", "d", "s"}, []structs.GPURequest{{Count: 1, MemoryMiB: 1000}}, "4.00"},
		{[]string{"ds", "ss"}, []structs.GPURequest{{Count: 2}}, "2.00 2.01"},
		{[]string{"ds", "ss"}, []structs.GPURequest{{Count: 1}, {Count: 1}, {Count: 1}, {Count: 1}}, "* * * 1.00"},
		{[]string{"d"}, []structs.GPURequest{{Count: 1}}, "1.00"},
	} {
		for name, p := range policy.Builtin {
			nodes := cluster(c.nodes...)
			var pending []contend.Workload
			for k, r := range c.jobs {
				j := job(fmt.Sprint("job", k), 1)
				j.Type, j.Groups[0].Tasks[0].Resources.GPU = structs.JobBatch, []structs.GPURequest{r}
				pending = append(pending, load(j, k+1))
			}
			plan, _ := scheduler.Schedule(scheduler.Input{View: model.NewView(1, nodes, nil, nil), Now: 1, Pending: pending}, p)
			var got []string
			for _, e := range plan.Entries {
				for _, part := range e.Parts {
					for _, pl := range part.Places {
						var ids []string
						for _, x := range pl.Grants {
							ids = append(ids, x.Instance)
						}
						got = append(got, strings.Join(ids, " "))
					}
				}
			}
			if len(got) != len(c.jobs) {
				t.Errorf("%s, nodes %q: %d of %d jobs are placed", name, c.nodes, len(got), len(c.jobs))
				continue
			}
			want := c.want
			if last, ok := strings.CutPrefix(want, "* * * "); ok {
				got, want = got[3:], last
			}
			if text := strings.Join(got, ", "); text != want {
				t.Errorf("%s, nodes %q, %d jobs: got %s, want %s", name, c.nodes, len(c.jobs), text, c.want)
			}
		}
	}
}
