package scheduler_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

func limitNode(n, gpus int) *structs.Node {
	out := node(n)
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for i := range gpus {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: string(rune('a'+i)) + out.Name, Healthy: true, MemoryMiB: 80_000})
	}
	out.Resources.Devices = []structs.DeviceGroup{g}
	return out
}

func limitJob(name, queue string, count int, gpus int64) *structs.Job {
	j := job(name, count)
	j.Queue, j.Submitter.Name = structs.QueuePath(queue), "ada"
	j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: 100, MemoryMiB: 64, GPU: []structs.GPURequest{{Count: gpus}}}
	return j
}

func limitOf(gpus int64) *structs.Amount {
	a := structs.Unlimited
	a.GPUMilli = 1000 * gpus
	return &a
}

func TestLimitsOfQueues(t *testing.T) {
	now := structs.LogTime(1_000_000 * time.Second)
	v := model.NewView(10, []*structs.Node{limitNode(1, 8), limitNode(2, 8)}, nil, nil)
	held := func(gpus int64) structs.Amount { return structs.Amount{GPUMilli: 1000 * gpus} }
	for _, c := range []struct {
		name   string
		table  contend.QueueTable
		load   contend.Workload
		placed int
		why    string // of the rest: dimension, short, unit
	}{
		{"a limit lets pass what fits, and tells what is missing",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(6)}}, Usage: []*structs.QueueUsage{{Path: "r", Held: held(2)}}},
			load(limitJob("a", "r", 5, 1), 1), 4, "queue r: gpu, 1 GPUs"},
		{"the limit of an ancestor binds, too",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(8)}, {Path: "r/x"}}, Usage: []*structs.QueueUsage{{Path: "r", Held: held(7)}}},
			load(limitJob("a", "r/x", 1, 2), 1), 0, "queue r: gpu, 1 GPUs"},
		{"that of the root is the cluster's",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "root", Limit: limitOf(1)}}}, load(limitJob("a", "", 2, 1), 1), 1, "queue root: gpu, 1 GPUs"},
		{"memory of whole GPUs counts with all that they have",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: &structs.Amount{GPUMilli: -1, GPUMemoryMiB: 200_000, CPU: -1, MemoryMiB: -1}}}},
			load(limitJob("a", "r", 3, 1), 1), 2, "queue r: GPU memory, 40000 MiB"},
		{"beyond the limit nothing grows",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(1)}}, Usage: []*structs.QueueUsage{{Path: "r", Held: held(5)}}},
			load(limitJob("a", "r", 1, 1), 1), 0, "queue r: gpu, 5 GPUs"},
		{"a dimension that does not grow does not bind",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(1)}}, Usage: []*structs.QueueUsage{{Path: "r", Held: held(5)}}},
			load(func() *structs.Job { j := job("a", 2); j.Queue = "r"; return j }(), 1), 2, ""},
		{"a quota counts every namespace that names it",
			contend.QueueTable{Tenants: []contend.Tenant{{Namespace: "default", Quota: "q", Hard: *limitOf(4)}, {Namespace: "other", Quota: "q", Hard: *limitOf(4)}},
				Usage: []*structs.QueueUsage{{Path: "@other", Held: held(3)}}},
			load(limitJob("a", "", 2, 1), 1), 1, "quota q: gpu, 1 GPUs"},
		{"a cap on running jobs",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", RunningMax: 2}}, Usage: []*structs.QueueUsage{{Path: "r", Jobs: 2}}},
			load(limitJob("a", "r", 1, 1), 1), 0, "queue r: running jobs, 1 jobs"},
		{"a cap on running jobs of a submitter",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", RunningUserMax: 1}}, Usage: []*structs.QueueUsage{{Path: "r", Jobs: 9}, {Path: "r", User: "ada", Jobs: 1}}},
			load(limitJob("a", "r", 1, 1), 1), 0, "queue r, user ada: running jobs, 1 jobs"},
		{"a limit of each submitter lets pass what fits",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", UserLimit: limitOf(4)}}, Usage: []*structs.QueueUsage{{Path: "r", Held: held(9)}, {Path: "r", User: "ada", Held: held(2)}}},
			load(limitJob("a", "r", 3, 1), 1), 2, "queue r, user ada: gpu, 1 GPUs"},
		{"what others hold does not count in the limit of a submitter",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", UserLimit: limitOf(2)}}, Usage: []*structs.QueueUsage{{Path: "r", Held: held(9)}, {Path: "r", User: "eve", Held: held(9)}}},
			load(limitJob("a", "r", 2, 1), 1), 2, ""},
		{"a submitter's limit counts the queues below",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", UserLimit: limitOf(2)}, {Path: "r/x"}}, Usage: []*structs.QueueUsage{{Path: "r", User: "ada", Held: held(1)}}},
			load(limitJob("a", "r/x", 1, 2), 1), 0, "queue r, user ada: gpu, 1 GPUs"},
		{"a submitter's limit binds beside that of the queue",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(8), UserLimit: &structs.Amount{GPUMilli: -1, GPUMemoryMiB: 100_000, CPU: -1, MemoryMiB: -1}}}},
			load(limitJob("a", "r", 2, 1), 1), 1, "queue r, user ada: GPU memory, 60000 MiB"},
		{"GPU-minutes that are left to running work and those asked for",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", GPUMinutesMax: 100}},
				Usage: []*structs.QueueUsage{{Path: "r", Ending: 2000, Ends: 2000 * (1_000_000 + 30*60)}}},
			load(func() *structs.Job {
				j := limitJob("a", "r", 1, 1)
				j.Runtime.Limit = time.Hour
				return j
			}(), 1), 0, "queue r: GPU-minutes, 20 minutes"},
		{"a budget of GPU hours counts what the job may use until the period ends",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", GPUHoursMax: 10, GPUHoursPeriod: structs.PeriodDay}},
				Usage: []*structs.QueueUsage{{Path: "r", At: now, PeriodAt: now, Total: structs.Amount{GPUMilli: structs.OfGPUHours(9)}}}},
			load(func() *structs.Job {
				j := limitJob("a", "r", 2, 1)
				j.Runtime.Limit = time.Hour
				return j
			}(), 1), 0, "queue r: GPU hours, 1 GPU hours"},
		{"a budget that is used up, and a job that does not say how long it runs",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", GPUHoursMax: 10, GPUHoursPeriod: structs.PeriodDay}},
				Usage: []*structs.QueueUsage{{Path: "r", At: now, PeriodAt: now, Total: structs.Amount{GPUMilli: structs.OfGPUHours(10)}}}},
			load(limitJob("a", "r", 1, 1), 1), 0, "queue r: GPU hours, 1 GPU hours"},
		{"a budget with something left, and a job that does not say how long it runs",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", GPUHoursMax: 10, GPUHoursPeriod: structs.PeriodDay}},
				Usage: []*structs.QueueUsage{{Path: "r", At: now, PeriodAt: now, Total: structs.Amount{GPUMilli: structs.OfGPUHours(9)}}}},
			load(limitJob("a", "r", 1, 1), 1), 1, ""},
		{"a budget of each submitter",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", GPUHoursUserMax: 10, GPUHoursPeriod: structs.PeriodDay}},
				Usage: []*structs.QueueUsage{{Path: "r", User: "ada", At: now, PeriodAt: now, Total: structs.Amount{GPUMilli: structs.OfGPUHours(10)}}}},
			load(limitJob("a", "r", 1, 1), 1), 0, "queue r, user ada: GPU hours, 1 GPU hours"},
		{"work without a GPU has no budget of GPU hours",
			contend.QueueTable{Queues: []*structs.Queue{{Path: "r", GPUHoursMax: 10, GPUHoursPeriod: structs.PeriodDay}},
				Usage: []*structs.QueueUsage{{Path: "r", At: now, PeriodAt: now, Total: structs.Amount{GPUMilli: structs.OfGPUHours(10)}}}},
			load(func() *structs.Job { j := job("a", 1); j.Queue = "r"; return j }(), 1), 1, ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			plan, rep := scheduler.Schedule(scheduler.Input{View: v, Now: now, Pending: []contend.Workload{c.load}, Queues: &c.table}, binpack)
			placed := 0
			for _, e := range plan.Entries {
				for _, p := range e.Parts {
					placed += len(p.Places)
				}
			}
			if placed != c.placed {
				t.Errorf("placed %d, want %d", placed, c.placed)
			}
			if c.why == "" {
				return
			}
			g := rep.Workloads[0].Groups[0]
			if g.Code != structs.ReasonQuota || len(g.Refusals) == 0 {
				t.Fatalf("the reason is %q: %+v", g.Code, g.Refusals)
			}
			r := g.Refusals[0]
			if got := r.Text() + ", " + itoa(r.Short) + " " + string(r.Unit); got != c.why || r.CuredBy != structs.EventQueueUsage {
				t.Errorf("%s, cured by %s; want %s", got, r.CuredBy, c.why)
			}
		})
	}
}

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// TestLimitCountsWhatThePassPlaced: two jobs of one pass, and one in flight, share a limit.
func TestLimitCountsWhatThePassPlaced(t *testing.T) {
	v := model.NewView(10, []*structs.Node{limitNode(1, 8)}, nil, nil)
	table := &contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(5)}}}
	in := scheduler.Input{View: v, Now: 1, Queues: table, Pending: []contend.Workload{load(limitJob("first", "r", 2, 1), 1)}}
	plan, _ := scheduler.Schedule(in, binpack)
	in.Flight = model.Overlay{}.Add(1, plan.Entries[0], nil)
	in.Pending = []contend.Workload{load(limitJob("second", "r", 2, 1), 2), load(limitJob("third", "r", 2, 1), 3)}
	plan, rep := scheduler.Schedule(in, binpack)
	if n := len(plan.Entries[0].Parts); n != 2 {
		t.Errorf("the second job got %d places, want 2", n)
	}
	if n := len(plan.Entries[1].Parts); n != 1 || rep.Workloads[1].Groups[0].Code != structs.ReasonQuota {
		t.Errorf("the third job got %d places for %q, want 1", n, rep.Workloads[1].Groups[0].Code)
	}
}

// TestUpdateAtTheLimit: a destructive update of a job that fills its queue succeeds, because the new allocation waits
// for the place of the old one.
func TestUpdateAtTheLimit(t *testing.T) {
	j := limitJob("a", "r", 1, 4)
	n := limitNode(1, 8)
	old := &structs.Allocation{ID: structs.AllocID{1}, Namespace: "default", JobID: "a", Job: j, Group: "g", NodeID: n.ID, Client: structs.ClientRunning, Desired: structs.DesiredRun,
		Resources: structs.Vector{CPU: 100, MemoryMiB: 64, DiskMiB: 100}}
	for i := range 4 {
		old.Grants = append(old.Grants, structs.Grant{Task: "t", Device: "nvidia/gpu/H100", Instance: n.Resources.Devices[0].Instances[i].ID, SizeMiB: 80_000})
	}
	v := model.NewView(10, []*structs.Node{n}, []*structs.Allocation{old}, nil)
	next := *j
	next.Version = 1
	tg := *j.Groups[0]
	task := *tg.Tasks[0]
	task.Env = map[string]string{"A": "b"}
	tg.Tasks = []*structs.Task{&task}
	next.Groups = []*structs.Group{&tg}
	table := &contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(4)}}, Usage: []*structs.QueueUsage{{Path: "r", Held: structs.AmountOf(old)}}}
	plan, rep := scheduler.Schedule(scheduler.Input{View: v, Now: 1, Queues: table, Pending: []contend.Workload{load(&next, 1, old)}}, binpack)
	if len(plan.Entries) != 1 || len(plan.Entries[0].Parts) != 1 || len(plan.Entries[0].Parts[0].Places) != 1 {
		t.Fatalf("no place: %+v", rep.Workloads[0].Groups[0])
	}
	if p := plan.Entries[0].Parts[0].Places[0]; len(p.WaitsOn) != 1 || p.WaitsOn[0] != old.ID {
		t.Errorf("the new allocation does not wait for the old one: %+v", p)
	}
}

// TestLimitsOfJointJobs: a limit of a queue, of a submitter or of a quota that has room for one group of a joint job lets none start, and
// says what its next allocation lacks. What it does not get others get.
func TestLimitsOfJointJobs(t *testing.T) {
	v := model.NewView(10, []*structs.Node{limitNode(1, 8), limitNode(2, 8)}, nil, nil)
	joint := func(counts ...int) *structs.Job {
		j := limitJob("joint", "r", counts[0], 1)
		j.Type, j.AllAtOnce = structs.JobBatch, true
		j.Groups[0].Gang = &structs.Gang{}
		for i, n := range counts[1:] {
			g := *j.Groups[0]
			g.Name, g.Count, g.Gang = structs.GroupName("ps"+strconv.Itoa(i)), n, nil
			j.Groups = append(j.Groups, &g)
		}
		j.Join()
		return j
	}
	tables := map[string]func(gpus int64) *contend.QueueTable{
		"queue r: gpu": func(n int64) *contend.QueueTable {
			return &contend.QueueTable{Queues: []*structs.Queue{{Path: "r", Limit: limitOf(n)}}}
		},
		"queue r, user ada: gpu": func(n int64) *contend.QueueTable {
			return &contend.QueueTable{Queues: []*structs.Queue{{Path: "r", UserLimit: limitOf(n)}}}
		},
		"quota q: gpu": func(n int64) *contend.QueueTable {
			return &contend.QueueTable{Queues: []*structs.Queue{{Path: "r"}}, Tenants: []contend.Tenant{{Namespace: "default", Quota: "q", Hard: *limitOf(n)}}}
		},
	}
	for why, table := range tables {
		for _, c := range []struct {
			limit  int64
			counts []int
			placed int
			short  int64
		}{{5, []int{3, 2}, 5, 0}, {4, []int{3, 2}, 0, 1}, {3, []int{3, 2}, 0, 1}, {2, []int{3, 2}, 0, 1}, {4, []int{2, 1, 2}, 0, 1}} {
			plan, rep := scheduler.Schedule(scheduler.Input{View: v, Now: 1, Pending: []contend.Workload{load(joint(c.counts...), 1), load(limitJob("other", "r", 1, 1), 2)}, Queues: table(c.limit)}, binpack)
			got := map[string]int{}
			for _, e := range plan.Entries {
				for _, p := range e.Parts {
					got[e.JobID] += len(p.Places)
				}
			}
			if other := min(c.limit-int64(c.placed), 1); got["joint"] != c.placed || int64(got["other"]) != other {
				t.Errorf("%s of %d, groups %v: placed %v, want %d of joint and %d of other", why, c.limit, c.counts, got, c.placed, other)
			}
			said := c.placed > 0
			for _, g := range rep.Workloads[0].Groups {
				for _, r := range g.Refusals {
					said = said || r.Code == structs.ReasonQuota && strings.HasPrefix(r.Text(), why) && r.Short == c.short
				}
			}
			if !said {
				t.Errorf("%s of %d, groups %v: not said that it is short by %d", why, c.limit, c.counts, c.short)
				for _, g := range rep.Workloads[0].Groups {
					t.Logf("%s: %s %+v", g.Group, g.Code, g.Refusals)
				}
			}
		}
	}
}
