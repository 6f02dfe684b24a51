package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// runNodes answers the list of nodes with ready ones of these drivers, of 8 H100s, 64 cores, 128,000 MHz and 1,024,000 MiB each.
func runNodes(drivers ...string) []*wire.NodeListStub {
	out := []*wire.NodeListStub{}
	for i, d := range drivers {
		r := &wire.NodeResources{Memory: wire.NodeMemoryResources{MemoryMB: 1024000}}
		r.Cpu.CpuShares, r.Disk.DiskMB = 128000, 1000000
		for core := range uint16(64) {
			r.Cpu.ReservableCpuCores = append(r.Cpu.ReservableCpuCores, core)
		}
		gpus := &wire.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100 80GB HBM3"}
		for range 8 {
			gpus.Instances = append(gpus.Instances, &wire.NodeDevice{Healthy: true})
		}
		r.Devices = []*wire.NodeDeviceResource{gpus}
		n := &wire.NodeListStub{ID: strconv.Itoa(i), Status: "ready", NodePool: "default", NodeResources: r, Drivers: map[string]*wire.DriverInfo{}}
		for name := range strings.FieldsSeq(d) {
			n.Drivers[name] = &wire.DriverInfo{Detected: true, Healthy: true}
		}
		out = append(out, n)
	}
	return out
}

// TestRunPrintsAJobFile: what -output prints is a job file that one would keep, and what would be submitted.
func TestRunPrintsAJobFile(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["GET /v1/nodes"] = runNodes("exec raw_exec")
	r := agent.run(t, "", "run", "-output", "-name", "x", "-gpus", "H100:2", "-nodes", "2", "-time", "2h", "-no-env", "-env", "LR=0.1", "-depends", "prep,clean:completed", "-begin", "8h",
		"-requeue", "3", "-preemptible", "-priority", "high", "-pool", "all", "-queue", "research", "-shm", "64", "-rdma", "-ulimit", "nofile=1024", "-umask", "0027", "-dir", "/srv/${HOME}", "--", "sh", "-c", "PATH=/x; echo ${PATH} %{X} $$ ${NOMAD_TASK_DIR} \"")
	want, err := os.ReadFile("testdata/run_output.golden")
	if *update {
		err = os.WriteFile("testdata/run_output.golden", []byte(r.out), 0o644)
		want = []byte(r.out)
	}
	if err != nil || r.code != 0 || string(want) != r.out {
		t.Errorf("exit %d, %v: %s\n%s", r.code, err, r.errOut, r.out)
	}
	job, diags := jobspec.ParseHCL("x", []byte(r.out), jobspec.ParseOptions{})
	if job == nil {
		t.Fatalf("%s\n%s", diags, r.out)
	}
	if _, p := wire.Prepare(job); len(p.Errors) > 0 {
		t.Errorf("%v\n%s", p.Errors, r.out)
	}
	agent.answers["PUT /v1/validate/job"] = wire.JobValidateResponse{Warnings: `no node has GPU model "A1oo"; did you mean "A100"?`}
	if r := agent.run(t, "", "run", "-output", "-gpus", "A1oo", "--", "true"); r.code != 0 || !strings.Contains(r.errOut, `did you mean "A100"?`) {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
	if got := job.TaskGroups[0].Tasks[0].Config["args"]; fmt.Sprint(got) != `[-c PATH=/x; echo ${"$"}{PATH} %{X} $$ ${"$"}{NOMAD_TASK_DIR} "]` {
		t.Errorf("the command became %v", got) // text that a shell is to replace is not for the node to replace
	}
}

// TestRunBesideMIG: a GPU next to one that is divided into seven has half of the node, not an eighth.
func TestRunBesideMIG(t *testing.T) {
	node := runNodes("exec")
	gpus := node[0].NodeResources.Devices[0]
	profile := "1g.10gb"
	mig := &wire.NodeDeviceResource{Type: "gpu", Name: "NVIDIA H100 MIG 1g.10gb", Instances: gpus.Instances[:7], Attributes: map[string]*wire.Attribute{"mig_profile": {StringVal: &profile}}}
	gpus.Instances = gpus.Instances[:1]
	node[0].NodeResources.Devices = append(node[0].NodeResources.Devices, mig)
	agent := newAgentFake(t)
	agent.answers["GET /v1/nodes"] = node
	if r := agent.run(t, "", "run", "-output", "-gpus", "1", "--", "true"); r.code != 0 || !strings.Contains(r.errOut, "450 GiB of memory, 28 cores") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
}

func TestRunRefuses(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["GET /v1/nodes"] = runNodes("exec raw_exec")
	for _, c := range []struct{ want, flags string }{
		{"a number, a model, or both", "-gpus=H100:A100 -gpus=8:4 -gpus=0 -gpus=-1 -gpus=H100: -gpus=: -gpus=H100:0"},
		{"nothing negative", "-nodes=0 -shm=-1 -ranks=-1 -time=-1s -cpu=-1 -cores=-1 -requeue=-1"},
		{"want MiB, or a unit", "-mem=0 -mem=-1 -mem=G -mem=4P -mem=x -disk=0 -disk=x"},
		{"indices begin at 0", "-array=5-9 -array=a -array=-1 -array=3% -array=%4"},
		{"at least one index", "-array=0"},
		{"with 0 at a time nothing would ever run", "-array=0-3%0 -array=4%0"},
		{"is no priority; give a number from 1 to 100, or critical (90)", "-priority=urgent -priority=0 -priority=101"},
		{"want a time such as", "-begin=tomorrow -begin=-2h -begin=25:00"},
		{"want JOB or JOB:WHEN", "-depends=a:soon -depends=a,,b -depends=:success"},
		{"looks like a secret", "-env=HF_TOKEN=x -env=AWS_SECRET_ACCESS_KEY=x -env=password=x -env=PGPASSWORD=x -env=WANDB_API_KEY=x -env=GH_PAT=x"},
		{"a name has letters", "-env=A-B=x -env==x"},
		{"it is not set here", "-env=MUSTER_TEST_UNSET"},
	} {
		for flag := range strings.FieldsSeq(c.flags) {
			if r := agent.run(t, "", "run", "-output", flag, "--", "true"); r.code != 1 || !strings.Contains(r.errOut, c.want) {
				t.Errorf("%s: exit %d, want %q: %s", flag, r.code, c.want, r.errOut)
			}
		}
	}
}

// TestRunSuitsTheNodes: what a command leaves open follows from the nodes that there are.
func TestRunSuitsTheNodes(t *testing.T) {
	dir := t.TempDir() // below /tmp
	if !strings.HasPrefix(dir, "/tmp/") {
		dir = "/tmp"
	}
	for _, c := range []struct {
		what  string
		nodes any
		args  string
		want  []string
	}{
		{"exec, because it isolates", runNodes("raw_exec", "exec raw_exec"), "-- true", []string{`driver = "exec"`, "cpu    = 100", "memory = 300"}},
		{"raw_exec, where nodes have no other", runNodes("raw_exec"), "-- true", []string{`driver = "raw_exec"`}},
		{"the driver of the nodes with the GPUs", append(runNodes("raw_exec"), &wire.NodeListStub{Status: "ready", NodePool: "default", Drivers: map[string]*wire.DriverInfo{"exec": {Healthy: true}}}),
			"-gpus 1 -- true", []string{`driver = "raw_exec"`}},
		{"nodes that may not be read", failure{403, "Permission denied"}, "-gpus 2 -- true", []string{`driver = "exec"`, "memory = 16384"}},
		{"below /tmp", runNodes("exec raw_exec"), "-dir " + dir + " -- true", []string{`driver   = "raw_exec"`, `work_dir = "` + dir + `"`}},
		{"a container", runNodes("exec"), "-image python:3 -- python", []string{`driver = "docker"`, `image   = "python:3"`}},
		{"a quarter of the GPUs", runNodes("exec"), "-gpus 2xH100 -- true", []string{"cores  = 14", "memory = 230400", "count = 2", `model = "H100"`}},
		{"all GPUs, and room for small work beside it", runNodes("exec"), "-gpus 8 -- true", []string{"cores  = 57", "memory = 921600"}},
		{"what is said counts", runNodes("exec"), "-gpus 8 -mem 64G -cpu 500 -- true", []string{"cpu    = 500", "memory = 65536"}},
		{"disk with the GPUs", runNodes("exec"), "-gpus 2 -- true", []string{"ephemeral_disk {\n      size = 125000"}},
		{"disk that is said", runNodes("exec"), "-disk 2G -- true", []string{"ephemeral_disk {\n      size = 2048"}},
		{"disk where nodes may not be read", failure{403, "Permission denied"}, "-gpus 2 -- true", []string{"size = 20480"}},
		{"an array", runNodes("exec"), "-array 0-99%4 -- true", []string{"count       = 100", "concurrency = 4"}},
		{"a file of this directory", runNodes("exec raw_exec"), "-- cat run_test.go", []string{"work_dir = "}},
	} {
		t.Run(c.what, func(t *testing.T) {
			agent := newAgentFake(t)
			agent.answers["GET /v1/nodes"] = c.nodes
			r := agent.run(t, "", append([]string{"run", "-output"}, strings.Fields(c.args)...)...)
			for _, want := range c.want {
				if !strings.Contains(r.out, want) {
					t.Errorf("no %s in\n%s%s", want, r.out, r.errOut)
				}
			}
		})
	}
	agent := newAgentFake(t)
	agent.answers["GET /v1/nodes"] = runNodes("exec")
	if r := agent.run(t, "", "run", "-driver", "exec", "-dir", "/tmp", "--", "true"); r.code != 1 || !strings.Contains(r.errOut, "below /tmp") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
}

// TestRunSaysWhatHolds: memory that is given for raw_exec, which does not limit it, is not taken for a limit.
func TestRunSaysWhatHolds(t *testing.T) {
	for args, told := range map[string]bool{"-driver raw_exec -mem 1G": true, "-driver raw_exec": false, "-driver exec -mem 1G": false} {
		agent := newAgentFake(t)
		agent.answers["GET /v1/nodes"] = runNodes("exec raw_exec")
		r := agent.run(t, "", append(append([]string{"run", "-output"}, strings.Fields(args)...), "--", "true")...)
		if r.code != 0 || strings.Contains(r.errOut, "not enforced") != told {
			t.Errorf("%s: exit status %d, %q; want it told: %v", args, r.code, r.errOut, told)
		}
	}
}

// TestCopyIsFound: who looks for a copy at fs is shown the command that copies.
func TestCopyIsFound(t *testing.T) {
	for _, line := range []string{"fs cp 8ba85cef:a.txt b.txt", "alloc fs cp 8ba85cef:a.txt b.txt"} {
		if r := newAgentFake(t).run(t, "", strings.Fields(line)...); r.code != exitError || !strings.Contains(r.errOut, "muster alloc cp 8ba85cef:a.txt b.txt") {
			t.Errorf("%s: exit status %d, %q", line, r.code, r.errOut)
		}
	}
}

// TestRunNever: a command that can never run is refused, and nothing is submitted; -wait submits it.
func TestRunNever(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["GET /v1/nodes"] = runNodes("exec")
	agent.answers["PUT /v1/job/x/plan"] = map[string]any{"NeverFits": `group "run": no node of the pool has what it asks for, even when empty; gpu is short by 1 GPU on the best of 1`, "Suggestions": []string{"8 GPUs instead of 9"}}
	agent.answers["PUT /v1/jobs"] = wire.JobRegisterResponse{}
	r := agent.run(t, "", "run", "-detach", "-name", "x", "-gpus", "9", "--", "true")
	if r.code != 1 || !strings.Contains(r.errOut, "can never run here: no node of the pool") || !strings.Contains(r.errOut, "8 GPUs instead of 9") || strings.Contains(agent.log(), "PUT /v1/jobs") {
		t.Errorf("exit %d: %s\n%s", r.code, r.errOut, agent.log())
	}
	agent.answers["PUT /v1/job/x/plan"] = map[string]any{"NeverFits": `group "run": no node of the pool has what it asks for, even when empty; missing device nvidia/gpu on 1`, "FailedTGAllocs": map[string]any{"run": map[string]any{"NodesInPool": 1}}}
	if r = agent.run(t, "", "run", "-detach", "-name", "x", "-gpus", "9", "--", "true"); r.code != 1 || !strings.Contains(r.errOut, "-dev-gpus=8xH100") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
	agent.answers["PUT /v1/job/x/plan"] = map[string]any{"NeverFits": `group "run": no node of the pool has what it asks for, even when empty; missing device nvidia/gpu H200 on 1`,
		"Suggestions": []string{"any model of GPU instead of H200"}, "FailedTGAllocs": map[string]any{"run": map[string]any{"NodesInPool": 1}}}
	if r = agent.run(t, "", "run", "-detach", "-name", "x", "-gpus", "H200:1", "--", "true"); r.code != 1 || strings.Contains(r.errOut, "-dev-gpus") {
		t.Errorf("where there are GPUs: exit %d: %s", r.code, r.errOut)
	}
	if r = agent.run(t, "", "run", "-detach", "-wait", "-name", "x", "-gpus", "9", "--", "true"); r.code != 0 || !strings.Contains(agent.log(), "PUT /v1/jobs") {
		t.Errorf("exit %d: %s\n%s", r.code, r.errOut, agent.log())
	}
}

// TestUnknownToken: a token that the cluster does not know cannot say what it allows.
func TestUnknownToken(t *testing.T) {
	agent := newAgentFake(t)
	for _, msg := range []string{structs.ErrTokenNotFound.Msg, structs.ErrTokenExpired.Msg} {
		agent.answers["GET /v1/jobs"] = failure{403, msg}
		r := agent.run(t, "", "job", "status", "-token", "0d00a8e6-e091-4d95-9259-5cd3ff6fc8f5")
		if r.code != 1 || !strings.Contains(r.errOut, "does not know the token") || strings.Contains(r.errOut, "acl token self") {
			t.Errorf("%s: exit %d: %s", msg, r.code, r.errOut)
		}
	}
}

// TestRunNeverUnseen: the servers know what nodes there are also where the caller may not read them.
func TestRunNeverUnseen(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["GET /v1/nodes"] = failure{403, "Permission denied: needs node policy read"}
	agent.answers["PUT /v1/job/x/plan"] = map[string]any{"NeverFits": `group "run": no node of the pool has what it asks for, even when empty`}
	r := agent.run(t, "", "run", "-detach", "-name", "x", "-gpus", "9", "--", "true")
	if r.code != 1 || !strings.Contains(r.errOut, "can never run here") || strings.Contains(agent.log(), "PUT /v1/jobs") {
		t.Errorf("exit %d: %s\n%s", r.code, r.errOut, agent.log())
	}
	// Nodes may still be joining: then it waits, as it does for a caller who sees that there are none.
	agent.answers["PUT /v1/job/x/plan"] = map[string]any{"NeverFits": `group "run": no node in pool default`, "FailedTGAllocs": map[string]any{"run": map[string]any{"NodesInPool": 0}}}
	agent.answers["PUT /v1/jobs"] = wire.JobRegisterResponse{}
	if r := agent.run(t, "", "run", "-detach", "-name", "x", "--", "true"); r.code != 0 || !strings.Contains(agent.log(), "PUT /v1/jobs") {
		t.Errorf("without nodes: exit %d: %s\n%s", r.code, r.errOut, agent.log())
	}
}

// TestRunFileWithFlags: what only a command after "--" can have is refused with a job file, not ignored.
func TestRunFileWithFlags(t *testing.T) {
	agent := newAgentFake(t)
	r := agent.run(t, "", "run", "-preemptible", "-gpus", "8", "x.hcl")
	if r.code != 1 || !strings.Contains(r.errOut, "-gpus, -preemptible is for a command after") || len(agent.log()) > 0 {
		t.Errorf("exit %d: %s\n%s", r.code, r.errOut, agent.log())
	}
}

// TestRunWithoutFiles: a start that failed before the allocation had files ends the command at once, and a directory that the
// node does not have is named with what would help.
func TestRunWithoutFiles(t *testing.T) {
	agent := newAgentFake(t)
	agent.answers["PUT /v1/jobs"] = wire.JobRegisterResponse{}
	failed := &wire.AllocationListStub{ID: "3e34211c-0000-4000-8000-000000000000", NodeName: "vm", ClientStatus: "failed", ClientDescription: "failed",
		TaskStates: map[string]*wire.TaskState{"main": {State: "dead", Failed: true, Events: []*wire.TaskEvent{{Type: "Setup Failure", FailsTask: true, DisplayMessage: "enter the working directory /root/x: permission denied"}}}}}
	agent.answers["GET /v1/job/x/allocations"] = []*wire.AllocationListStub{failed}
	agent.answers["GET /v1/client/fs/logs/"+failed.ID] = failure{404, "there is no such file or log yet"}
	began := time.Now()
	r := agent.run(t, "", "run", "-name", "x", "--", "true")
	if r.code != 1 || !strings.Contains(r.errOut, "-pack sends it along") {
		t.Errorf("exit %d: %s", r.code, r.errOut)
	}
	if took := time.Since(began); took > 20*time.Second { // it asked for the output for a minute
		t.Errorf("it took %s to say so", took)
	}
}

// TestRunEnvironment: the variables that find a caller's programs go along, and those that are named.
func TestRunEnvironment(t *testing.T) {
	t.Setenv("VIRTUAL_ENV", "/srv/venv")
	t.Setenv("CONDA_PREFIX", "/srv/conda")
	t.Setenv("WANDB_PROJECT", "tuning")
	t.Setenv("TOKENIZERS_PARALLELISM", "false")
	agent := newAgentFake(t)
	r := agent.run(t, "", "run", "-output", "-env", "WANDB_PROJECT", "-env", "TOKENIZERS_PARALLELISM", "-env", "X=a b", "--", "true")
	for _, want := range []string{`PATH `, `VIRTUAL_ENV `, `"/srv/venv"`, `CONDA_PREFIX `, `"tuning"`, `"false"`, `"a b"`} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %s in\n%s%s", want, r.out, r.errOut)
		}
	}
	if r = agent.run(t, "", "run", "-output", "-image", "x", "--", "true"); strings.Contains(r.out, "env") {
		t.Errorf("a container got the caller's environment:\n%s", r.out)
	}
}

// TestRunSilentAgent: signals end a run whose agent takes requests and does not answer.
func TestRunSilentAgent(t *testing.T) {
	agent := newAgentFake(t)
	looks, enough := make(chan struct{}, 16), make(chan struct{})
	t.Cleanup(func() { close(enough) }) // before the agent ends, which waits for its answers
	agent.answers["PUT /v1/jobs"] = wire.JobRegisterResponse{}
	agent.answers["GET /v1/job/silent/allocations"] = func(r *http.Request) any {
		looks <- struct{}{}
		select {
		case <-enough:
		case <-r.Context().Done():
		}
		return []*wire.AllocationListStub{}
	}
	agent.answers["DELETE /v1/job/silent"] = wire.JobDeregisterResponse{}
	ended := make(chan result, 1)
	go func() { ended <- agent.run(t, "", "run", "-name", "silent", "--", "true") }()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-looks:
		case <-time.After(30 * time.Second):
			t.Fatal("the first signal was not heard")
		}
		if err := self.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case r := <-ended:
		if r.code != 130 || !strings.Contains(r.errOut, "Canceling job silent") || strings.Contains(r.errOut, "No answer") {
			t.Errorf("exit %d: %s", r.code, r.errOut)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the second signal was not heard")
	}
	if !strings.Contains(agent.log(), "DELETE /v1/job/silent") {
		t.Errorf("the job was not stopped:\n%s", agent.log())
	}
}

func TestUnstarted(t *testing.T) {
	task := func(events ...wire.TaskEvent) map[string]*wire.TaskState {
		st := &wire.TaskState{State: "dead", Failed: true}
		for i := range events {
			st.Events = append(st.Events, &events[i])
		}
		return map[string]*wire.TaskState{"main": st}
	}
	giveUp := wire.TaskEvent{Type: "Not Restarting", DisplayMessage: "Error was unrecoverable", FailsTask: true}
	for _, c := range []struct {
		what, status string
		states       map[string]*wire.TaskState
		want         string
	}{
		{"a command that failed says so by its exit code", "failed", task(wire.TaskEvent{Type: "Terminated", ExitCode: 3}, giveUp), ""},
		{"one that ended well", "complete", nil, ""},
		{"one that never began", "failed", task(wire.TaskEvent{Type: "Received"}, wire.TaskEvent{Type: "Driver Failure", DisplayMessage: "no user \"x\""}, giveUp), "no user \"x\""},
		{"a node that was lost", "lost", nil, "lost"},
	} {
		if got := unstarted(&wire.AllocationListStub{ClientStatus: c.status, TaskStates: c.states}); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

func TestExitOfSeveral(t *testing.T) {
	at := func(name string, code int, second int64) *wire.AllocationListStub {
		s := &wire.AllocationListStub{Name: name, ClientStatus: "complete", TaskStates: map[string]*wire.TaskState{"main": {FinishedAt: time.Unix(second, 0)}}}
		if code != 0 {
			s.ClientStatus = "failed"
			s.TaskStates["main"].Events = []*wire.TaskEvent{{Type: "Terminated", ExitCode: code}}
		}
		return s
	}
	runs := &wire.AllocationListStub{Name: "c", ClientStatus: "running"}
	for _, c := range []struct {
		what string
		list []*wire.AllocationListStub
		done bool
		code int
	}{
		{"all well", []*wire.AllocationListStub{at("a", 0, 1), at("b", 0, 2)}, true, 0},
		{"the first to fail, not the one that was ended with it", []*wire.AllocationListStub{at("a", 143, 9), at("b", 7, 5)}, true, 7},
		{"one still runs", []*wire.AllocationListStub{at("a", 0, 1), runs}, false, 0},
		{"one ended well, the other failed", []*wire.AllocationListStub{at("a", 0, 1), at("b", 5, 2)}, true, 5},
		{"none yet", nil, false, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			if done, code := ended(c.list, 2); done != c.done || code != c.code {
				t.Errorf("%s: %v, %d; want %v, %d", c.what, done, code, c.done, c.code)
			}
		})
	}
}

func TestLogMark(t *testing.T) {
	m := &logMark{}
	var got string
	for _, f := range []wire.StreamFrame{
		{File: "main.stdout.0", Offset: 0, Data: []byte("abc")}, {File: "main.stdout.0", Offset: 3, Data: []byte("de")},
		// and from the start again, in other pieces
		{File: "main.stdout.0", Offset: 0, Data: []byte("abcd")}, {File: "main.stdout.0", Offset: 4, Data: []byte("efg")},
		{File: "main.stdout.1", Offset: 0, Data: []byte("h")}, {FileEvent: "truncated"},
		{File: "main.stdout.0", Offset: 0, Data: []byte("abcdefg")}, {File: "main.stdout.1", Offset: 0, Data: []byte("hi")},
		{File: "main.stdout.4", Offset: 0, Data: []byte("j")}, {File: "main.stdout.2", Offset: 0, Data: []byte("x")},
	} {
		if m.gap != (f.File == "main.stdout.2") {
			t.Errorf("before %s at %d: gap %v", f.File, f.Offset, m.gap)
		}
		m.pass(&f)
		got += string(f.Data)
	}
	late := &logMark{}
	late.pass(&wire.StreamFrame{File: "main.stdout.1", Data: []byte("x")})
	if !late.gap {
		t.Error("the first file had gone before anything was read, and nobody is told")
	}
	if got != "abcdefghij" {
		t.Errorf("passed on %q", got)
	}
}

func TestEndedBy(t *testing.T) {
	stub := func(status, desired, client, desc string, code int, message string) *wire.AllocationListStub {
		e := &wire.TaskEvent{Type: "Terminated", ExitCode: code}
		if message != "" {
			e.Details = map[string]string{"exit_message": message, "oom_killed": strconv.FormatBool(code == 137)}
		}
		return &wire.AllocationListStub{ClientStatus: status, DesiredStatus: desired, ClientDescription: client, DesiredDescription: desc,
			TaskStates: map[string]*wire.TaskState{"main": {Events: []*wire.TaskEvent{e}}}}
	}
	ends := func(s *wire.AllocationListStub, why *wire.TaskEvent) *wire.AllocationListStub {
		st := s.TaskStates["main"]
		st.Events = append([]*wire.TaskEvent{why}, st.Events...)
		return s
	}
	for _, c := range []struct {
		what string
		s    *wire.AllocationListStub
		code int
		want string
	}{
		{"well", stub("complete", "run", "", "", 0, ""), 0, ""},
		{"failed by itself", stub("failed", "run", "task main failed", "", 3, ""), 3, ""},
		{"failed by itself, for good", ends(stub("failed", "run", "task main failed", "", 3, ""), &wire.TaskEvent{Type: "Not Restarting", FailsTask: true, DisplayMessage: "Policy allows no restarts"}), 3, ""},
		{"out of memory", stub("failed", "run", "task main failed", "", 137, "out of memory"), 137, "out of memory (-mem 64G asks for so much)"},
		{"out of time", stub("failed", "stop", "has run for its limit", "exceeded", 143, ""), 143, "has run for its limit"},
		{"stopped", stub("complete", "stop", "", "alloc not needed", 143, ""), 143, "it was stopped: alloc not needed"},
		{"stopped, and ended well", stub("complete", "stop", "", "alloc not needed", 0, ""), 0, ""},
		{"out of disk", ends(stub("failed", "run", "", "", 143, ""), &wire.TaskEvent{Type: "Disk Resources Exceeded", FailsTask: true, Message: "too much", Details: map[string]string{"disk_limit": "314572800"}}),
			143, "too much (-disk 100G asks for so much)"},
		{"out of GPU memory", ends(stub("failed", "run", "", "", 143, ""), &wire.TaskEvent{Type: "GPU Memory Exceeded", FailsTask: true, Message: "holds 30 MiB"}), 143, "holds 30 MiB"},
	} {
		t.Run(c.what, func(t *testing.T) {
			if code, got := exitOf(c.s), endedBy(c.s); code != c.code || got != c.want {
				t.Errorf("%s: %d, %q; want %d, %q", c.what, code, got, c.code, c.want)
			}
		})
	}
}
