package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// modelNode is a node with GPUs of some models: "H100:4 A100:2".
func modelNode(n int, gpus string) *structs.Node {
	out := node(n)
	for i, part := range strings.Fields(gpus) {
		name, count, _ := strings.Cut(part, ":")
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA " + name + " 80GB"}
		for k := range int(count[0] - '0') {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprint("gpu", n, i, k), Healthy: true, MemoryMiB: 80_000})
		}
		out.Resources.Devices = append(out.Resources.Devices, g)
	}
	return out
}

func gpusOf(model string, n int64) []structs.ModelAmount {
	return []structs.ModelAmount{{Model: model, Milli: 1000 * n}}
}

// useOfModel is a row of usage that holds GPUs of a model.
func useOfModel(path, user, model string, n int64) *structs.QueueUsage {
	return &structs.QueueUsage{Path: structs.QueuePath(path), User: user, Held: structs.Amount{GPUMilli: 1000 * n}, Models: gpusOf("NVIDIA "+model+" 80GB", n)}
}

// TestLimitsByModel: limits of the GPUs of a model hold for the GPUs that allocations get, with other models in reach and
// without.
func TestLimitsByModel(t *testing.T) {
	ask := func(count int, rs ...structs.GPURequest) *structs.Job {
		j := limitJob("a", "r", count, 1)
		j.Groups[0].Tasks[0].Resources.GPU = rs
		return j
	}
	any1, h100 := structs.GPURequest{Count: 1}, structs.GPURequest{Count: 1, Model: "H100"}
	both := []string{"H100:4", "A100:4"}
	for _, c := range []struct {
		name  string
		nodes []string
		table contend.QueueTable
		job   *structs.Job
		want  string // GPUs placed by model
		why   string // of the rest
	}{
		{"a job of the model gets what is left", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 3)}}, Usage: []*structs.QueueUsage{useOfModel("r", "", "H100", 1)}},
			ask(4, h100), "H100:2", "QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"a job that takes any model skips to the other", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 1)}}},
			ask(5, any1), "A100:4 H100:1", ""},
		{"it waits with both reasons when the other is full", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 1)}}},
			ask(6, any1), "A100:4 H100:1", "RESOURCES nvidia/gpu, 1 GPU; QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"words match as in a request", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("a100|h100", 2)}}},
			ask(3, any1), "2", "QUOTA queue r: GPUs of model a100|h100, 1 GPU"},
		{"the limit of the queue above", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}, {Path: "r/x"}}, Usage: []*structs.QueueUsage{useOfModel("r", "", "H100", 1)}},
			func() *structs.Job { j := ask(2, h100); j.Queue = "r/x"; return j }(), "H100:1", "QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"that of each submitter", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", UserLimitModels: gpusOf("H100", 2)}}, Usage: []*structs.QueueUsage{useOfModel("r", "", "H100", 3), useOfModel("r", "ada", "H100", 1)}},
			ask(2, h100), "H100:1", "QUOTA queue r, user ada: GPUs of model H100, 1 GPU"},
		{"that of a quota, over its namespaces", both, contend.QueueTable{Tenants: []contend.Tenant{{Namespace: "default", Quota: "q", Hard: structs.Unlimited, HardModels: gpusOf("H100", 3)}, {Namespace: "other", Quota: "q", Hard: structs.Unlimited, HardModels: gpusOf("H100", 3)}},
			Usage: []*structs.QueueUsage{useOfModel("@default", "", "H100", 1), useOfModel("@other", "", "H100", 1)}},
			func() *structs.Job { j := ask(2, h100); j.Queue = ""; return j }(), "H100:1", "QUOTA quota q: GPUs of model H100, 1 GPU"},
		{"two models of one node", []string{"H100:4 A100:4"}, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}}},
			ask(7, any1), "A100:4 H100:2", "RESOURCES nvidia/gpu, 1 GPU"},
		{"nothing is allowed", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 0)}}},
			ask(1, h100), "", "QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"every model is full by a limit of its own", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: append(gpusOf("A100", 1), gpusOf("H100", 2)...)}}},
			ask(4, any1), "A100:1 H100:2", "QUOTA queue r: GPUs of model A100, 1 GPU; QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"alternatives: the second model when the first is full", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}}},
			ask(3, structs.GPURequest{Count: 2, Model: "H100"}, structs.GPURequest{Count: 1, Model: "A100"}), "A100:2 H100:2", ""},
		{"shares count as their part", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 1)}}},
			ask(6, structs.GPURequest{Count: 1, Model: "H100", MemoryMiB: 20_000}), "H100:1", "QUOTA queue r: GPUs of model H100, 0.25 GPUs"},
		{"a gang is placed whole, over both", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}}},
			func() *structs.Job { j := ask(6, any1); j.Groups[0].Gang = &structs.Gang{}; return j }(), "A100:4 H100:2", ""},
		{"a gang that cannot be whole is not placed", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}}},
			func() *structs.Job { j := ask(7, any1); j.Groups[0].Gang = &structs.Gang{}; return j }(), "", "GANG 6 of 7 members found, 1 member; RESOURCES nvidia/gpu, 1 GPU; QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"a gang of the model", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}}},
			func() *structs.Job { j := ask(3, h100); j.Groups[0].Gang = &structs.Gang{}; return j }(), "", "QUOTA queue r: GPUs of model H100, 1 GPU"},
		{"what another group needs of the model is left to it", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 1)}}},
			func() *structs.Job {
				j, k := ask(4, any1), ask(1, h100)
				k.Groups[0].Name = "second"
				j.Groups, j.AllAtOnce = append(j.Groups, k.Groups[0]), true
				return j
			}(), "A100:4 H100:1", ""},
		{"work without a GPU", both, contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 0)}}},
			func() *structs.Job { j := job("a", 2); j.Queue = "r"; return j }(), "", ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			var nodes []*structs.Node
			for i, gpus := range c.nodes {
				nodes = append(nodes, modelNode(i+1, gpus))
			}
			v := model.NewView(10, nodes, nil, nil)
			for _, m := range []string{"A100", "H100"} {
				c.table.Models = append(c.table.Models, structs.GPUCount{Model: "NVIDIA " + m + " 80GB", Count: 4})
			}
			for _, algorithm := range []string{"binpack", "first-fit", "spread", ""} {
				plan, rep := scheduler.Schedule(scheduler.Input{View: v, Now: structs.LogTime(time.Hour), Pending: []contend.Workload{load(c.job, 1)}, Queues: &c.table}, policy.For(nil, structs.SchedulerConfig{Algorithm: algorithm}))
				got := map[string]int64{}
				for _, e := range plan.Entries {
					for _, p := range e.Parts {
						for _, pl := range p.Places {
							for i := range pl.Grants {
								m := strings.Fields(structs.DeviceModel(pl.Grants[i].Device))[1]
								got[m] += structs.GrantAmount(&pl.Grants[i]).GPUMilli
								got[""] += structs.GrantAmount(&pl.Grants[i]).GPUMilli
							}
						}
					}
				}
				var texts []string
				for _, m := range []string{"A100", "H100"} {
					if got[m] > 0 {
						texts = append(texts, fmt.Sprint(m, ":", got[m]/1000))
					}
				}
				if text := strings.Join(texts, " "); text != c.want && fmt.Sprint(got[""]/1000) != c.want {
					t.Errorf("%s placed %q, want %q", algorithm, text, c.want)
				}
				if c.why == "" {
					if rep.Workloads[0].Failed {
						t.Errorf("%s: it waits: %+v", algorithm, rep.Workloads[0].Groups[0].Refusals)
					}
					continue
				}
				g := rep.Workloads[0].Groups[0]
				var why []string
				for _, r := range g.Refusals {
					why = append(why, fmt.Sprintf("%s %s, %s", r.Code, r.Text(), r.ShortText()))
				}
				for _, w := range strings.Split(c.why, "; ") {
					if !slices.Contains(why, w) {
						t.Errorf("%s: the reasons are %q (%s), want %q", algorithm, why, g.Code, w)
					}
				}
			}
		})
	}
}

// TestReservationWithoutClosedModel: a job that waits because one model is full and the limit of the other is reached gets a
// reservation on the model that is open to it, although GPUs of the other one become free earlier. So does a gang.
func TestReservationWithoutClosedModel(t *testing.T) {
	for at := range 6 {
		closed, gang, free := at != 1 && at != 3, at == 2 || at == 3 || at == 5, at >= 4 // free: the limit alone keeps the job from the model
		h100, a100 := modelNode(1, "H100:2"), modelNode(2, "A100:1")
		other := limitJob("other", "", 1, 1)
		other.Runtime.Limit = time.Hour
		late := limitJob("late", "", 1, 1)
		late.Runtime.Limit = 3 * time.Hour
		held := []*structs.Allocation{holds(h100, other, 1, time.Hour, []int{0}), holds(h100, other, 2, time.Hour, []int{1}), holds(a100, late, 3, 2*time.Hour, []int{0})}
		j := limitJob("a", "r", 1, 1)
		j.Runtime.Limit = time.Hour
		n := 1
		if gang {
			n, a100 = 2, modelNode(2, "A100:2")
			held = append(held, holds(a100, late, 4, 2*time.Hour, []int{1}))
			j.Groups[0].Count, j.Groups[0].Gang = 2, &structs.Gang{}
		}
		if free {
			held = held[2:]
		}
		v := model.NewView(10, []*structs.Node{h100, a100}, held, nil)
		table := contend.QueueTable{Queues: []*structs.Queue{{Path: "r", LimitModels: gpusOf("H100", 2)}}}
		if closed {
			table.Usage = []*structs.QueueUsage{useOfModel("r", "", "H100", 2)}
		}
		plan, _ := scheduler.Schedule(scheduler.Input{View: v, Now: bookNow, Pending: []contend.Workload{load(j, 1)}, Queues: &table, Config: rules(structs.BackfillConservative)}, policy.For(nil, structs.SchedulerConfig{Algorithm: "first-fit"}))
		_, rs := placed(plan)
		want := h100
		if closed {
			want = a100
		}
		if len(rs) != 1 || len(rs[0].Places) != n || rs[0].Places[0].Node != want.ID {
			t.Errorf("closed %v, gang %v, free %v: reserved %+v, want %d places on %s", closed, gang, free, rs, n, want.Name)
		}
	}
}
