package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// effJob answers a job with one allocation on gpu-01 that holds GPUs.
type effJob struct {
	status, client string
	gpus           []string
	shares         []wire.DeviceShare
	use            []*wire.GPUUse        // in the allocation
	now            map[string][2]int64   // measured now: peak in MiB and milliseconds busy, by GPU
	rec            *nomadlike.AcctRecord // of the run that ended
	gone           bool                  // the job is not there any more
}

func (j effJob) answers() map[string]any {
	al := &wire.Allocation{ID: allocA, Namespace: "default", JobID: "fit", NodeID: nodeA, NodeName: "gpu-01", TaskGroup: "g", ClientStatus: j.client, DesiredStatus: "run", GPUUse: j.use,
		AllocatedResources: &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{"t": {Cpu: wire.AllocatedCpuResources{ReservedCores: []uint16{0, 1, 2, 3}}, Memory: wire.AllocatedMemoryResources{MemoryMB: 65536},
			Devices: []*wire.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: j.gpus, Shares: j.shares}}}}},
		TaskStates: map[string]*wire.TaskState{"t": {StartedAt: fixedNow.Add(-2 * time.Hour)}}}
	if j.client != "running" {
		al.TaskStates["t"].FinishedAt = fixedNow.Add(-time.Hour)
	}
	devices := &wire.DeviceGroupStats{InstanceStats: map[string]*wire.DeviceStats{}}
	for id, v := range j.now {
		devices.InstanceStats[id] = &wire.DeviceStats{Stats: &wire.StatObject{Attributes: map[string]*wire.StatValue{"Task memory, peak": {IntNumeratorVal: &v[0]}, "Task SM time": {IntNumeratorVal: &v[1]}}}}
	}
	out := map[string]any{
		"GET /v1/job/fit/allocations":                    []*wire.AllocationListStub{{ID: allocA, Namespace: "default", JobID: "fit", NodeID: nodeA, ClientStatus: j.client, CreateIndex: 5}},
		"GET /v1/allocation/" + allocA:                   al,
		"GET /v1/client/allocation/" + allocA + "/stats": &wire.AllocResourceUsage{Tasks: map[string]*wire.TaskResourceUsage{"t": {ResourceUsage: &wire.ResourceUsage{MemoryStats: &wire.MemoryStats{MaxUsage: 8 << 30}, CpuStats: &wire.CpuStats{Percent: 150}, DeviceStats: []*wire.DeviceGroupStats{devices}}}}},
		"GET /v1/acct":                                   []nomadlike.AcctRecord{},
		"GET /v1/jobs": func(*http.Request) any {
			if j.gone {
				return []*wire.JobListStub{}
			}
			return []*wire.JobListStub{{ID: "fit", Namespace: "default", Status: j.status}}
		},
	}
	if j.rec != nil {
		out["GET /v1/acct"] = []nomadlike.AcctRecord{{JobID: "fit-other", Namespace: "default", GPUSeconds: 1 << 40}, *j.rec}
	}
	return out
}

// TestEff has fixtures of what is recorded of jobs, and what eff makes of them. What was not measured is unknown and never idle.
func TestEff(t *testing.T) {
	one, two := []string{"GPU-0"}, []string{"GPU-0", "GPU-1"}
	for name, c := range map[string]struct {
		job  effJob
		want []string
		not  []string
	}{
		"running, one of two GPUs idle": {
			job:  effJob{status: "running", client: "running", gpus: two, now: map[string][2]int64{"GPU-0": {40960, 5400_000}, "GPU-1": {512, 0}}},
			want: []string{"GPU Hours Asked = 4.00", "GPU Hours Busy  = 1.50 (38%)", "40 GiB on one GPU, of 80 GiB asked for (50%)", "Idle GPUs       = 1 of 2", "peak 8 GiB, of 64 GiB asked for", "1.5 cores busy now, of 4 cores asked for", "Advice: Ask for fewer GPUs, or use them all: 1 of 2 did no work.", "Advice: Ask for less memory"},
			not:  []string{"unknown"},
		},
		"running, well used": {
			job:  effJob{status: "running", client: "running", gpus: one, now: map[string][2]int64{"GPU-0": {70000, 7000_000}}},
			want: []string{"GPU Hours Busy  = 1.94 (97%", "Idle GPUs       = 0 of 1"},
			not:  []string{"unknown", "fewer GPUs", "part of a GPU"},
		},
		"running, not measured": {
			job:  effJob{status: "running", client: "running", gpus: one},
			want: []string{"GPU Hours Asked = 2.00", "GPU Hours Busy  = unknown", "GPU Memory Peak = unknown", "Idle GPUs       = unknown", "is not known: nothing was measured"},
			not:  []string{"idle", "0%"},
		},
		"ended, both measured": {
			job: effJob{status: "dead", client: "complete", gpus: two, use: []*wire.GPUUse{{Task: "t", GPU: "GPU-0", PeakMiB: 20480, SMSeconds: 900}, {Task: "t", GPU: "GPU-1", PeakMiB: 10240, SMSeconds: 900}},
				rec: &nomadlike.AcctRecord{JobID: "fit", Namespace: "default", Exit: "success", Allocs: 1, GPUSeconds: 7200}},
			want: []string{"Status          = ended: success", "GPU Hours Asked = 2.00", "GPU Hours Busy  = 0.50 (25%", "20 GiB on one GPU, of 80 GiB asked for (25%)", "Idle GPUs       = 0 of 2", "Memory          = unknown", `gpu { memory = "24GiB" }`},
		},
		"ended, one without a line beside one that worked": {
			job:  effJob{status: "dead", client: "complete", gpus: two, use: []*wire.GPUUse{{Task: "t", GPU: "GPU-0", PeakMiB: 20480, SMSeconds: 3000}}},
			want: []string{"Idle GPUs       = 1 of 2", "GPU Hours Busy  = 0.83 (42%"},
		},
		"ended, never measured": {
			job:  effJob{status: "dead", client: "complete", gpus: two, rec: &nomadlike.AcctRecord{JobID: "fit", Namespace: "default", Exit: "failed", Allocs: 1, GPUSeconds: 7200}},
			want: []string{"ended: failed", "GPU Hours Asked = 2.00", "GPU Hours Busy  = unknown", "Idle GPUs       = unknown"},
			not:  []string{"idle"},
		},
		"a part of a GPU": {
			job:  effJob{status: "running", client: "running", gpus: one, shares: []wire.DeviceShare{{DeviceID: "GPU-0", MemoryMB: 20480}}, now: map[string][2]int64{"GPU-0": {18000, 1700_000}}},
			want: []string{"GPU Hours Asked = 0.50", "17.58 GiB on one GPU, of 20 GiB asked for (88%)", "GPU Hours Busy  = 0.47 (94%"},
		},
		"only the record is left": {
			job:  effJob{gone: true, rec: &nomadlike.AcctRecord{JobID: "fit", Namespace: "default", Exit: "success", Allocs: 4, GPUSeconds: 36000, Longest: int64(time.Hour), GPUs: 4, GPUUse: &wire.GPUUse{PeakMiB: 30720, SMSeconds: 18000}}},
			want: []string{"GPU Hours Asked = 10.00", "GPU Hours Busy  = at least 5.00 (50%)", "30 GiB on one GPU\n", "Idle GPUs       = unknown", "there were 4 more"},
		},
	} {
		t.Run(name, func(t *testing.T) { runEff(t, c.job.answers(), c.want, c.not) })
	}
	f := newAgentFake(t)
	f.answers["GET /v1/acct"] = []nomadlike.AcctRecord{}
	if r := f.run(t, "", "eff", "nothing"); r.code != exitError || !strings.Contains(r.errOut, `no job has an id that is or begins with "nothing"`) {
		t.Errorf("a job that never was: exit status %d, %q", r.code, r.errOut)
	}
}

// runEff runs eff for job fit, and looks for lines in what it prints.
func runEff(t *testing.T, answers map[string]any, want, not []string) {
	t.Helper()
	f := newAgentFake(t)
	for k, v := range answers {
		f.answers[k] = v
	}
	r := f.run(t, "", "eff", "fit")
	if r.code != 0 {
		t.Fatalf("exit status %d: %s", r.code, r.errOut)
	}
	for _, w := range want {
		if !strings.Contains(r.out, w) {
			t.Errorf("no %q in\n%s", w, r.out)
		}
	}
	for _, w := range not {
		if strings.Contains(r.out, w) {
			t.Errorf("%q in\n%s", w, r.out)
		}
	}
}

// TestEffUnknownSize: where the node may not be read, or is gone, eff does not guess what a part of a GPU counts.
func TestEffUnknownSize(t *testing.T) {
	part := effJob{status: "running", client: "running", gpus: []string{"GPU-0"}, shares: []wire.DeviceShare{{DeviceID: "GPU-0", MemoryMB: 8192}}, now: map[string][2]int64{"GPU-0": {8000, 600_000}}}
	two := part
	two.gpus = []string{"GPU-0", "GPU-1"}
	two.shares = append(slices.Clone(part.shares), wire.DeviceShare{DeviceID: "GPU-1", MemoryMB: 8192})
	ended := part
	ended.status, ended.client = "dead", "complete"
	ended.rec = &nomadlike.AcctRecord{JobID: "fit", Namespace: "default", Exit: "success", Allocs: 1, GPUSeconds: 360}
	for _, no := range []failure{{http.StatusForbidden, "Permission denied: needs node policy read"}, {http.StatusNotFound, "node not found"}} {
		refused := func(j effJob) map[string]any {
			m := j.answers()
			m["GET /v1/node/"+nodeA] = no
			return m
		}
		runEff(t, refused(part), []string{"GPU Hours Asked = unknown", "GPU Hours Busy  = 0.17\n", "of 8 GiB asked for (98%)", "the size of a GPU that was shared is not known"}, []string{"2.00", "8%)\nIdle GPUs       = 1", "Nothing to change", "Nothing was measured"})
		// The second has no line: it counts as measured only where it is known to be whole.
		runEff(t, refused(two), []string{"Idle GPUs       = 0 of 2 (unknown of 1)"}, []string{"did no work"})
		runEff(t, refused(ended), []string{"GPU Hours Asked = 0.10", "GPU Hours Busy  = unknown"}, nil) // of the record
		ended.use = []*wire.GPUUse{{Task: "t", GPU: "GPU-0", PeakMiB: 8000, SMSeconds: 324}}
		runEff(t, refused(ended), []string{"GPU Hours Busy  = 0.09 (90%)", "Nothing to change"}, nil)
		ended.use = nil
		sized := refused(part)
		use := sized["GET /v1/client/allocation/"+allocA+"/stats"].(*wire.AllocResourceUsage)
		use.Tasks["t"].ResourceUsage.DeviceStats[0].InstanceStats["GPU-0"].Stats.Attributes["Memory state"] = &wire.StatValue{IntNumeratorVal: ptr(int64(8000)), IntDenominatorVal: ptr(int64(81920))}
		runEff(t, sized, []string{"GPU Hours Asked = 0.20", "GPU Hours Busy  = 0.17 (83%)"}, nil) // of the agent's measurement
	}
}

// TestEffNotStarted: for a job that waits, eff says so and shows what it asks for.
func TestEffNotStarted(t *testing.T) {
	job := func(resources *wire.Resources) *wire.Job {
		return &wire.Job{ID: ptr("fit"), Namespace: ptr("default"), TaskGroups: []*wire.TaskGroup{{Name: ptr("g"), Count: ptr(4), Tasks: []*wire.Task{{Name: "t", Resources: resources}}}}}
	}
	answers := func(status string, resources *wire.Resources) map[string]any {
		m := effJob{status: status}.answers()
		m["GET /v1/job/fit/allocations"] = []*wire.AllocationListStub{}
		m["GET /v1/job/fit"] = job(resources)
		return m
	}
	never := []string{"Nothing to change"}
	for _, r := range []*wire.Resources{{GPU: &wire.GPU{Count: ptr(2)}}, {Devices: []*wire.RequestedDevice{{Name: "nvidia/gpu", Count: ptr(uint64(2))}}}} {
		runEff(t, answers("pending", r), []string{"GPUs      = 8 asked for: 4 allocations with 2 each\n", "Advice: It has not started, and asks for 8 GPUs. What it waits for:  muster job why fit\n"}, append(never, "none asked for"))
	}
	runEff(t, answers("pending", &wire.Resources{}), []string{"GPUs      = none asked for", "Advice: It has not started. What it waits for:  muster job why fit\n"}, never)
	runEff(t, answers("pending", &wire.Resources{GPU: &wire.GPU{Memory: "8GiB"}}), []string{"4 asked for (parts of GPUs): 4 allocations with 1 each", "asks for 4 GPUs (parts of GPUs)."}, never)
	gpu := &wire.Resources{GPU: &wire.GPU{Count: ptr(2)}}
	runEff(t, answers("dead", gpu), []string{"8 asked for", "no allocation and no record of it is left"}, append(never, "never started"))
	stopped := answers("dead", gpu)
	stopped["GET /v1/acct"] = []nomadlike.AcctRecord{{JobID: "fit", Namespace: "default", Exit: "stopped", GPUs: 8}}
	runEff(t, stopped, []string{"8 asked for: 4", "It never started"}, never)
}

// TestEffRuns: idle GPUs count the newest run only, and only what has run for a minute is judged.
func TestEffRuns(t *testing.T) {
	// Each allocation has two GPUs that did nothing.
	type run struct {
		name, client string
		version      uint64
		ran          time.Duration
		busy         float64
	}
	answers := func(runs ...run) map[string]any { // the newest first
		m := effJob{status: "running", client: "running"}.answers()
		var list []*wire.AllocationListStub
		for i, r := range runs {
			id := allocA[:len(allocA)-1] + string(rune('a'+i))
			list = append(list, &wire.AllocationListStub{ID: id, Namespace: "default", JobID: "fit", Name: r.name, JobVersion: r.version, ClientStatus: r.client, CreateIndex: uint64(100 - i)})
			al := &wire.Allocation{ID: id, Namespace: "default", JobID: "fit", Name: r.name, NodeID: nodeA, NodeName: "gpu-01", ClientStatus: r.client,
				AllocatedResources: &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{"t": {Devices: []*wire.AllocatedDeviceResource{{Vendor: "nvidia", Type: "gpu", Name: "H100", DeviceIDs: []string{"GPU-0", "GPU-1"}}}}}},
				TaskStates:         map[string]*wire.TaskState{"t": {StartedAt: fixedNow.Add(-r.ran)}},
				GPUUse:             []*wire.GPUUse{{Task: "t", GPU: "GPU-0", PeakMiB: 512, SMSeconds: r.busy}, {Task: "t", GPU: "GPU-1", PeakMiB: 512, SMSeconds: r.busy}}}
			if r.client != "running" {
				al.TaskStates["t"].StartedAt = fixedNow.Add(-24*time.Hour - r.ran)
				al.TaskStates["t"].FinishedAt = fixedNow.Add(-24 * time.Hour)
			}
			m["GET /v1/allocation/"+id] = al
			m["GET /v1/client/allocation/"+id+"/stats"] = failure{http.StatusNotFound, "no stats"}
		}
		m["GET /v1/job/fit/allocations"] = list
		return m
	}
	const hour = time.Hour
	for name, c := range map[string]struct {
		answers   map[string]any
		want, not []string
	}{
		"stopped and run again": {answers(run{"fit.g[0]", "running", 2, hour, 0}, run{"fit.g[0]", "complete", 0, hour, 0}),
			[]string{"GPU Hours Asked = 4.00, with 1 allocation before the newest run", "Idle GPUs       = 2 of 2 of the newest run", "No GPU did any work"}, []string{"of 4"}},
		"run again with fewer": {answers(run{"fit.g[0]", "running", 2, hour, 0}, run{"fit.g[1]", "complete", 0, hour, 0}, run{"fit.g[0]", "complete", 0, hour, 0}),
			[]string{"with 2 allocations before", "Idle GPUs       = 2 of 2 of the newest run"}, nil},
		"an earlier run does not hide what this one does": {answers(run{"fit.g[0]", "running", 2, hour, 3500}, run{"fit.g[0]", "complete", 0, 10 * hour, 0}),
			[]string{"Idle GPUs       = 0 of 2 of the newest run", "Nothing to change"}, []string{"waited for more"}},
		"a gang after a preemption": {answers(run{"fit.g[0]", "running", 0, hour, 0}, run{"fit.g[1]", "running", 0, hour, 0}, run{"fit.g[0]", "failed", 0, hour, 0}, run{"fit.g[1]", "failed", 0, hour, 0}),
			[]string{"Idle GPUs       = 4 of 4 of the newest run"}, []string{"of 8 "}},
		"an array": {answers(run{"fit.g[1]", "running", 0, hour, 0}, run{"fit.g[0]", "complete", 0, hour, 0}),
			[]string{"Idle GPUs       = 4 of 4\n"}, []string{"newest run"}},
		"a member that has just started": {answers(run{"fit.g[1]", "running", 0, 8 * time.Second, 0}, run{"fit.g[0]", "running", 0, hour, 3000}),
			[]string{"Idle GPUs       = 0 of 4 (unknown of 2)"}, []string{"did no work"}},
		"too early": {answers(run{"fit.g[0]", "running", 0, 8 * time.Second, 0}),
			[]string{"Idle GPUs       = unknown", "Advice: Too early to judge: it has run for 8s.\n"}, []string{"idle", "did any work"}},
		"too early, after a long run": {answers(run{"fit.g[0]", "running", 2, 8 * time.Second, 0}, run{"fit.g[0]", "complete", 0, hour, 0}),
			[]string{"Too early to judge: it has run for 8s."}, []string{"did any work"}},
		"early, but a minute": {answers(run{"fit.g[0]", "running", 0, effMinimum, 0}), []string{"Idle GPUs       = 2 of 2", "No GPU did any work"}, nil},
		"between two runs":    {answers(run{"fit.g[0]", "complete", 0, 8 * time.Second, 0}), []string{"Advice: Too early to judge: it has run for 8s."}, nil},
	} {
		t.Run(name, func(t *testing.T) { runEff(t, c.answers, c.want, c.not) })
	}
	ended := answers(run{"fit.g[0]", "complete", 0, 8 * time.Second, 0})
	ended["GET /v1/jobs"] = []*wire.JobListStub{{ID: "fit", Namespace: "default", Status: "dead"}}
	runEff(t, ended, []string{"Advice: Too short to judge: it ran for 8s.\n"}, []string{"did any work"})
}
