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
			job:  effJob{gone: true, rec: &nomadlike.AcctRecord{JobID: "fit", Namespace: "default", Exit: "success", Allocs: 4, GPUSeconds: 36000, GPUs: 4, GPUUse: &wire.GPUUse{PeakMiB: 30720, SMSeconds: 18000}}},
			want: []string{"GPU Hours Asked = 10.00", "GPU Hours Busy  = at least 5.00 (50%)", "30 GiB on one GPU\n", "Idle GPUs       = unknown", "there were 4 more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newAgentFake(t)
			for k, v := range c.job.answers() {
				f.answers[k] = v
			}
			r := f.run(t, "", "eff", "fit")
			if r.code != 0 {
				t.Fatalf("exit status %d: %s", r.code, r.errOut)
			}
			for _, w := range c.want {
				if !strings.Contains(r.out, w) {
					t.Errorf("no %q in\n%s", w, r.out)
				}
			}
			if i := slices.IndexFunc(c.not, func(s string) bool { return strings.Contains(r.out, s) }); i >= 0 {
				t.Errorf("%q in\n%s", c.not[i], r.out)
			}
		})
	}
	f := newAgentFake(t)
	f.answers["GET /v1/acct"] = []nomadlike.AcctRecord{}
	if r := f.run(t, "", "eff", "nothing"); r.code != exitError || !strings.Contains(r.errOut, `no job has an id that is or begins with "nothing"`) {
		t.Errorf("a job that never was: exit status %d, %q", r.code, r.errOut)
	}
}
