package scheduler_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// TestGrowthIntoSettledRoom: a gang that runs grows into room that was free for preempt_min_runtime (a minute), also where other room
// would be better. Room that is free on and off is what was in use beyond what is in use now. If the rest settles
// soon, it waits for that, so that it restarts once; but not for longer than a minute.
func TestGrowthIntoSettledRoom(t *testing.T) {
	const now = structs.LogTime(100 * time.Hour)
	ago := func(d time.Duration) structs.LogTime { return now.Add(-d) }
	gpu := func(k int) string { return fmt.Sprint("gpu", 1, 0, k) }
	gone := func(from, at time.Duration, devices ...string) model.Freed {
		f := model.Freed{From: ago(from), At: ago(at), Node: modelNode(1, "H100:4").ID, Devices: devices}
		if devices == nil {
			f.Need = structs.Vector{CPU: 1000, MemoryMiB: 256}
		}
		return f
	}
	var churn, full []model.Freed // a job of 1000 MHz after another; three at a time
	for d := 130 * time.Second; d > 10*time.Second; d -= 20 * time.Second {
		churn = append(churn, gone(d, d-20*time.Second))
		full = append(full, gone(d, d-20*time.Second), gone(d, d-20*time.Second), gone(d, d-20*time.Second))
	}
	for _, c := range []struct {
		name  string
		gpus  bool
		most  int
		freed []model.Freed
		grows string // devices, or members without devices
		waits time.Duration
	}{
		{"all of it", true, 4, nil, "gpu-1 gpu-2 gpu-3", 0},
		{"the best place was given back lately", true, 2, []model.Freed{gone(9*time.Hour, 10*time.Second, gpu(1))}, "gpu-2", 0},
		{"nothing has settled", true, 4, []model.Freed{gone(9*time.Hour, 20*time.Second, gpu(1), gpu(2)), gone(9*time.Hour, 10*time.Second, gpu(3))}, "", 40 * time.Second},
		{"the rest settles soon after", true, 4, []model.Freed{gone(9*time.Hour, 80*time.Second, gpu(1), gpu(3)), gone(9*time.Hour, 30*time.Second, gpu(2))}, "", 30 * time.Second},
		{"the rest settles late", true, 4, []model.Freed{gone(9*time.Hour, 130*time.Second, gpu(1), gpu(3)), gone(9*time.Hour, 30*time.Second, gpu(2))}, "gpu-1 gpu-3", 30 * time.Second},
		{"the CPU was given back lately, the GPUs long ago", true, 2, []model.Freed{gone(9*time.Hour, 3*time.Hour, gpu(1), gpu(2), gpu(3)), {From: ago(9 * time.Hour), At: ago(10 * time.Second), Node: modelNode(1, "H100:4").ID, Need: structs.Vector{CPU: 1 << 40}}}, "", 50 * time.Second},
		{"no GPUs, beside short jobs", false, 3, churn, "1 2", 0},
		{"no GPUs, short jobs had all of it", false, 2, full, "", 50 * time.Second},
		{"no GPUs, the last short job is long gone", false, 4, full[:len(full)-9], "1 2 3", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := modelNode(1, "H100:4")
			j := job("j", 1)
			j.Type, j.Groups[0].Gang, j.Groups[0].Elastic = structs.JobBatch, &structs.Gang{}, &structs.Elastic{Min: 1, Max: c.most}
			task := j.Groups[0].Tasks[0]
			task.Resources.CPU = 1000
			a := &structs.Allocation{ID: structs.AllocID{1}, Namespace: "default", JobID: "j", Job: j, Group: "g", NodeID: n.ID, Desired: structs.DesiredRun, Client: structs.ClientRunning,
				CreateIndex: 6, CreateTime: ago(time.Hour), StartedAt: ago(time.Hour)}
			if c.gpus {
				task.Resources.CPU, task.Resources.GPU = 100, []structs.GPURequest{{Count: 1}}
				a.Grants = []structs.Grant{{Task: "t", Device: n.Resources.Devices[0].ID(), Instance: gpu(0), SizeMiB: 80_000}}
			}
			a.Resources = structs.GroupVector(j.Groups[0])
			w := load(j, 1, a)
			w.Rosters = []*structs.Roster{{Namespace: "default", JobID: "j", Group: "g", Epoch: 1, Members: []structs.RosterMember{{Alloc: a.ID, Node: n.ID}}}}
			in := scheduler.Input{View: model.NewView(7, []*structs.Node{n}, []*structs.Allocation{a}, nil), Now: now, Pending: []contend.Workload{w}, Freed: c.freed}
			plan, rep := scheduler.Schedule(in, binpack)
			more := slices.Repeat([]model.Freed{{From: ago(time.Hour), At: ago(time.Second), Node: modelNode(2, "H100:4").ID}}, 1000)
			in.Freed = append(slices.Clone(c.freed), more...)
			if again, r := scheduler.Schedule(in, binpack); r.Steps < rep.Steps+len(more) || !reflect.DeepEqual(again, plan) {
				t.Errorf("%d steps with %d more records of freed room elsewhere, %d without; or another plan", r.Steps, len(more), rep.Steps)
			}
			var got []string
			wait := time.Duration(0)
			for _, e := range plan.Entries {
				for _, p := range e.Parts {
					for _, pl := range p.Places {
						if got = append(got, fmt.Sprint(pl.Index)); c.gpus {
							id := pl.Grants[0].Instance
							got[len(got)-1] = "gpu-" + id[len(id)-1:]
						}
					}
				}
				for _, ev := range e.Evals {
					if ev.WaitUntil > 0 {
						wait = ev.WaitUntil.Sub(now)
					}
				}
			}
			if s := strings.Join(got, " "); s != c.grows || wait != c.waits {
				t.Errorf("grows by %q and looks again in %v, want %q and %v", s, wait, c.grows, c.waits)
				for _, g := range rep.Workloads[0].Groups {
					t.Logf("%s %+v", g.Code, g.Refusals)
				}
			}
		})
	}
}
