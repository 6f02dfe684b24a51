package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// slurmFake is a cluster with a running job of alice, an array of hers that waits, and a job of bob.
func slurmFake(t *testing.T) *agentFake {
	f := newAgentFake(t)
	f.answers["GET /v1/acl/token/self"] = map[string]any{"Name": "alice"}
	f.answers["GET /v1/jobs"] = []*wire.JobListStub{
		{ID: "train-1", Name: "train", Namespace: "default", User: "alice", NodePool: "gpu", Status: "running", Priority: 50, CreateIndex: 41, SubmitTime: ago(2 * time.Hour)},
		{ID: "sweep-2", Name: "sweep", Namespace: "default", User: "alice", NodePool: "gpu", Queue: "ml", Status: "pending", CreateIndex: 42, SubmitTime: ago(time.Minute)},
		{ID: "bob-3", Name: "bob", Namespace: "ml", User: "bob", NodePool: "cpu", Status: "running", CreateIndex: 43, SubmitTime: ago(time.Minute)},
		{ID: "over", Name: "over", Namespace: "default", User: "alice", Status: "dead", CreateIndex: 44},
		{ID: "nightly", Name: "nightly", Namespace: "default", User: "alice", Status: "running", Periodic: true, CreateIndex: 45},
	}
	gpus := func(n int) *wire.AllocatedResources {
		return &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTaskResources{"t": {Devices: []*wire.AllocatedDeviceResource{{DeviceIDs: make([]string, n)}}}}}
	}
	alloc := func(job, namespace, id, node string, n int) *wire.AllocationListStub {
		return &wire.AllocationListStub{JobID: job, Namespace: namespace, NodeID: id, NodeName: node, ClientStatus: "running", CreateTime: ago(65 * time.Minute), AllocatedResources: gpus(n)}
	}
	f.answers["GET /v1/allocations"] = []*wire.AllocationListStub{alloc("train-1", "default", nodeB, "gpu-2", 8), alloc("train-1", "default", nodeA, "gpu-1", 2), alloc("bob-3", "ml", "c", "cpu-1", 0)}
	f.answers["GET /v1/job/train-1/allocations"] = []*wire.AllocationListStub{alloc("train-1", "default", nodeB, "gpu-2", 8)}
	f.answers["GET /v1/job/bob-3/allocations"] = []*wire.AllocationListStub{}
	f.answers["GET /v1/queue"] = []nomadlike.QueueItem{{JobID: "sweep-2", Namespace: "default", Reason: "RESOURCES", StartEstimate: fixedNow.Add(time.Hour).UnixNano()}}
	size := func(n int) *wire.NodeResources {
		r := &wire.NodeResources{}
		r.Cpu.TotalCpuCores, r.Memory.MemoryMB = 64, 1024
		if n > 0 {
			r.Devices = []*wire.NodeDeviceResource{{Type: "gpu", Name: "H100", Instances: make([]*wire.NodeDevice, n)}}
		}
		return r
	}
	f.answers["GET /v1/nodes"] = []*wire.NodeListStub{
		{ID: nodeA, Name: "gpu-1", NodePool: "gpu", Status: "ready", SchedulingEligibility: "eligible", NodeResources: size(8)},
		{ID: nodeB, Name: "gpu-2", NodePool: "gpu", Status: "ready", SchedulingEligibility: "eligible", NodeResources: size(8)},
		{ID: "a", Name: "gpu-3", NodePool: "gpu", Status: "ready", SchedulingEligibility: "eligible", NodeResources: size(8)},
		{ID: "b", Name: "gpu-4", NodePool: "gpu", Status: "ready", SchedulingEligibility: "eligible", NodeResources: size(8)},
		{ID: "c", Name: "cpu-1", NodePool: "cpu", Status: "ready", Drain: true, NodeResources: size(0)},
		{ID: "d", Name: "cpu-2", NodePool: "cpu", Status: "down", NodeResources: size(0)},
	}
	f.answers["GET /v1/acct"] = []nomadlike.AcctRecord{
		{JobID: "old", Name: "old", User: "alice", NodePool: "gpu", Exit: "failed", ExitCode: 3, StartTime: ago(3 * time.Hour), EndTime: ago(time.Hour), GPUs: 2},
		{JobID: "bobs", Name: "bobs", User: "bob", NodePool: "gpu", Exit: "success", StartTime: ago(50 * time.Hour), EndTime: ago(time.Hour)},
	}
	for _, id := range []string{"train-1", "sweep-2", "bob-3"} {
		f.answers["DELETE /v1/job/"+id] = &wire.JobDeregisterResponse{}
	}
	return f
}

// TestSlurmLists: what people type daily.
func TestSlurmLists(t *testing.T) {
	f := slurmFake(t)
	for line, want := range map[string]string{
		"squeue":                           "JOBID PARTITION NAME USER ST TIME NODES NODELIST(REASON)/train-1 gpu train alice R 1:05:00 2 gpu-1,gpu-2/sweep-2 gpu sweep alice PD 0:00 0 (RESOURCES)/bob-3 cpu bob bob R 1:05:00 1 cpu-1",
		"squeue -h --me -o %i":             "train-1/sweep-2",
		"squeue -hu bob -o %i":             "bob-3",
		"squeue -hubob -o %i":              "bob-3",
		"squeue -h -j 42,train-1 -o %i":    "train-1/sweep-2",
		"squeue -h -j 4200007 -o %A":       "42",
		"squeue -h -t PD -o %i":            "sweep-2",
		"squeue -h -t running -o %i":       "train-1/bob-3",
		"squeue -h -p cpu --format=%j":     "bob",
		"squeue -h -A ml -o %.8i%T%r":      "sweep-2 PENDING RESOURCES",
		"squeue -h -n train -O JobID,tres": "no field \"tres\": there are %i=jobid",
		"squeue --start -h":                "sweep-2 gpu sweep alice PD " + slurmDate(fixedNow.Add(time.Hour).UnixNano()) + " (RESOURCES)",
		"squeue -l -h -j 41":               "train-1 gpu train alice RUNNING 1:05:00 2 gpu-1,gpu-2",
		"squeue 41":                        "squeue takes no arguments, got \"41\"; one job:  squeue -j 41",
		"squeue --sort=i":                  "unknown flag: --sort: muster squeue knows the options that are used daily (muster squeue --help). More shows:  muster queue",
		"sinfo":                            "PARTITION AVAIL NODES STATE NODELIST/cpu up 1 drng cpu-1/cpu up 1 down cpu-2/gpu up 1 mix gpu-1/gpu up 1 alloc gpu-2/gpu up 2 idle gpu-3,gpu-4",
		"sinfo -N -h -p gpu":               "gpu-1 1 gpu mix/gpu-2 1 gpu alloc/gpu-3 1 gpu idle/gpu-4 1 gpu idle",
		"sinfo -Nlh -t idle -n gpu-4":      "gpu-4 1 gpu idle 64 1024 gpu:H100:8",
		"sinfo -s":                         "unknown shorthand flag: 's' in -s: muster sinfo knows",
		"sacct -X -n":                      "old old gpu default gres/gpu=2 02:00:00 FAILED 3:0/train-1 train gpu default gres/gpu=10 01:05:00 RUNNING 0:0/sweep-2 sweep gpu ml gres/gpu=0 00:00:00 PENDING 0:0",
		"sacct -an -P -o JobID%20,State -S now-2days -E now": "old|FAILED/bobs|COMPLETED",
		"sacct -n -j 41,bobs -o JobID,Elapsed":               "bobs 2-01:00:00/train-1 01:05:00",
		"sacct -n -s CD,F -o jobid":                          "old",
		"sacct -S yesterday":                                 "-S \"yesterday\": want a time as 2026-01-31",
		"sacct -o MaxRSS":                                    "no field \"MaxRSS\": there are jobid",
	} {
		r := f.run(t, "", strings.Fields(line)...)
		var rows []string
		for _, l := range strings.Split(strings.TrimSpace(r.out), "\n") {
			rows = append(rows, strings.Join(strings.Fields(l), " "))
		}
		if got := strings.Join(rows, "/"); got != want && !(r.code == exitError && strings.Contains(r.errOut, want)) {
			t.Errorf("%q: %d %s\ngot  %s\nwant %s", line, r.code, r.errOut, got, want)
		}
	}
	if r := f.run(t, "", "squeue", "-namespace", "ml"); !strings.Contains(f.log(), "GET /v1/jobs?namespace=ml") {
		t.Errorf("the namespace is not asked for: %d %s", r.code, r.errOut)
	}
}

// TestScancel: one's own job is stopped at once, what is more needs --yes where there is no terminal.
func TestScancel(t *testing.T) {
	for _, c := range []struct{ line, sent, says string }{
		{"scancel train-1", "DELETE /v1/job/train-1?namespace=default", ""},
		{"scancel 41 4200003", "DELETE /v1/job/sweep-2?namespace=default", ""},
		{"scancel bob-3", "", "Nobody can be asked here: add -yes, as in\n  muster scancel bob-3 -yes\n"},
		{"scancel bob-3 -yes", "DELETE /v1/job/bob-3?namespace=ml", ""},
		{"scancel --me", "", "Stop 2 jobs of alice in namespace default"},
		{"scancel --me -t PD --yes", "DELETE /v1/job/sweep-2?namespace=default", ""},
		{"scancel -u bob --yes", "DELETE /v1/job/bob-3?namespace=ml", ""},
		{"scancel -n nothing", "", ""},
		{"scancel", "", "scancel takes a job, or -u, --me"},
		{"scancel gone", "", "gone: no such job waits or runs (muster squeue lists them)"},
		{"scancel sweep-2_3", "", "one index of an array is ended by  muster alloc stop"},
		{"scancel --signal=USR1 train-1", "", "a signal is sent by muster alloc signal"},
	} {
		f := slurmFake(t)
		r := f.run(t, "", strings.Fields(c.line)...)
		sent := strings.Contains(f.log(), "DELETE ")
		if sent != (c.sent != "") || !strings.Contains(f.log(), c.sent) || !strings.Contains(r.errOut, c.says) || (r.code == 0) != (c.says == "") {
			t.Errorf("%q: %d %s\n%s", c.line, r.code, r.errOut, f.log())
		}
	}
	f := slurmFake(t)
	f.answers["GET /v1/jobs"] = func(*http.Request) any {
		return []*wire.JobListStub{{ID: "x", Namespace: "a", Status: "running", User: "alice"}, {ID: "x", Namespace: "b", Status: "running", User: "alice"}}
	}
	if r := f.run(t, "", "scancel", "x"); r.code != exitError || !strings.Contains(r.errOut, "exists in 2 namespaces") {
		t.Errorf("%d %s", r.code, r.errOut)
	}
}

// TestCommandsOfOthers: each names a command that exists, and is none itself.
func TestCommandsOfOthers(t *testing.T) {
	root := newRoot(&env{})
	find := func(words []string) (*cobra.Command, int) {
		c, n := root, 0
		for _, w := range words {
			next := (*cobra.Command)(nil)
			for _, sub := range c.Commands() {
				if sub.Name() == w || sub.HasAlias(w) {
					next = sub
				}
			}
			if next == nil {
				break
			}
			c, n = next, n+1
		}
		return c, n
	}
	for name, own := range others {
		words := strings.Fields(name)
		if _, n := find(words); n == len(words) {
			t.Errorf("%q is a command", name)
		}
		for _, part := range strings.Split(own, "muster ")[1:] {
			if c, n := find(strings.Fields(strings.ReplaceAll(part, ",", " "))); part[0] != '-' && (n == 0 || c.HasSubCommands() && c.Run == nil && c.RunE == nil) {
				t.Errorf("%q: there is no muster %s", name, part)
			}
		}
	}
	f := newAgentFake(t)
	for line, want := range map[string]string{
		"get pods -n ml":        `no command "get pods"; in its place:  muster alloc status`,
		"apply -f x.yaml":       `no command "apply"; in its place:  muster job run FILE`,
		"describe pod x":        `no command "describe pod"; in its place:  muster alloc status ALLOCATION`,
		"delete pod x":          `no command "delete pod"; in its place:  muster alloc stop ALLOCATION`,
		"scontrol show job 5":   `in its place:  muster job status JOB`,
		"job action -group g x": `no command "job action"; in its place:  muster job exec JOB COMMAND`,
		"operator raft info":    `no command "operator raft info"`,
		"volume status":         "there are no CSI volumes",
		"alloc-status 8ba85cef": "muster alloc status",
	} {
		if r := f.run(t, "", strings.Fields(line)...); r.code != exitError || !strings.Contains(r.errOut, want) {
			t.Errorf("%q: %d %s", line, r.code, r.errOut)
		}
	}
}
