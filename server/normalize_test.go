package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// A job's checkpoint grace is shortened to what its queue, or one above it, allows, with a warning. Validation and plan
// give the same warning. Without a limit nothing changes.
func TestGraceIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		job := func(id, queue string, grace time.Duration) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue = structs.JobBatch, structs.QueuePath(queue)
				j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: grace}
				j.Groups[0].Reschedule = structs.Reschedule{}
			})
		}
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{
			{Path: "free"}, {Path: "tight", PreemptGrace: 20 * time.Second}, {Path: "tight/below"}, {Path: "wide", PreemptGrace: 5 * time.Minute}}})
		for _, c := range []struct {
			id, queue   string
			grace, want time.Duration
			says        string
		}{
			{"a", "free", 24 * time.Hour, 24 * time.Hour, ""},
			{"b", "wide", 5 * time.Minute, 5 * time.Minute, ""},
			{"c", "wide", time.Hour, 5 * time.Minute, `checkpoint grace of 1h is shortened to 5m, the most that queue "wide" gives`},
			{"d", "tight/below", time.Minute, 20 * time.Second, "shortened to 20s"},
			{"e", "tight", 0, 20 * time.Second, "it has 20s to save its state"},
			{"f", "wide", 0, 0, ""},
		} {
			j := job(c.id, c.queue, c.grace)
			v := call(t, s, methods.JobValidate, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			r := call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			for what, warnings := range map[string]string{"validate": v.Warnings, "register": r.Warnings} {
				if (warnings == "") != (c.says == "") || !strings.Contains(warnings, c.says) {
					t.Errorf("%s, %s: warnings %q, want %q", c.id, what, warnings, c.says)
				}
			}
			kept := s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: c.id})
			if got := kept.Groups[0].Checkpoint.Grace; got != c.want {
				t.Errorf("%s: grace %v is kept, want %v", c.id, got, c.want)
			}
			if j.Groups[0].Checkpoint.Grace != c.grace {
				t.Errorf("%s: the job that was given has changed", c.id)
			}
			// Submitting it again changes nothing.
			if again := call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: job(c.id, c.queue, c.grace)}); again.JobModifyIndex != r.JobModifyIndex {
				t.Errorf("%s: submitting the same again made a new version", c.id)
			}
		}
	})
}

// A driver or a GPU model that no node has is a warning with the word that may be meant; one that a node has is none.
func TestWarnsOfWhatNoNodeHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		job := func(driver string, gpu structs.GPURequest, devices ...structs.DeviceRequest) *structs.Job {
			j := apiJob("a", 1)
			task := j.Groups[0].Tasks[0]
			task.Driver = driver
			if gpu.Count > 0 {
				task.Resources.GPU = []structs.GPURequest{gpu}
			}
			task.Resources.Devices = devices
			return j
		}
		warnings := func(j *structs.Job) string {
			t.Helper()
			v := call(t, s, methods.JobValidate, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			p := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: j})
			if v.Warnings != p.Warnings {
				t.Errorf("validate warns %q, plan %q", v.Warnings, p.Warnings)
			}
			return v.Warnings
		}
		if got := warnings(job("docker", structs.GPURequest{})); got != "" {
			t.Errorf("without nodes: %q", got)
		}
		n := testNode(1)
		n.Resources.Devices = []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA H100 80GB HBM3", Instances: []structs.DeviceInstance{{ID: "GPU-1", Healthy: true}}}}
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n})
		whole := func(model string) structs.DeviceRequest {
			return structs.DeviceRequest{Name: "nvidia/gpu", Count: 1, Constraints: []structs.Constraint{{LTarget: structs.ModelTarget, Operand: structs.OperandRegexp, RTarget: structs.ModelPattern(model)}}}
		}
		for _, c := range []struct {
			job  *structs.Job
			want string
		}{
			{job("fake", structs.GPURequest{Count: 1, Model: "h100", Share: 50}), ""},
			{job("fake", structs.GPURequest{}, whole("A100|H100")), ""},
			{job("fakee", structs.GPURequest{}), `group "g", task "t", driver: no node has the driver "fakee"; did you mean "fake"? (nodes have fake); the job waits for a node that has it`},
			{job("fake", structs.GPURequest{Count: 1, Model: "H10O", Share: 50}), `group "g", task "t", resources, gpu.model: no node has a GPU of model "H10O"; did you mean "H100"? (nodes have NVIDIA H100 80GB HBM3); the job waits for a node that has it`},
			{job("fake", structs.GPURequest{}, whole("H10O")), `resources, gpu.model: no node has a GPU of model "H10O"; did you mean "H100"?`},
		} {
			if got := warnings(c.job); (got == "") != (c.want == "") || !strings.HasPrefix(strings.TrimPrefix(got, `group "g", task "t", `), strings.TrimPrefix(c.want, `group "g", task "t", `)) {
				t.Errorf("%q, want %q", got, c.want)
			}
		}
	})
}

// TestWarnsOfPlacesThatNoNodeIsIn: datacenters without a node, and attributes that no node has, are warnings.
func TestWarnsOfPlacesThatNoNodeIsIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		n := testNode(1)
		n.Datacenter, n.Attributes, n.Meta = "dc1", map[string]string{"kernel.name": "linux"}, map[string]string{"rack": "r1"}
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: n})
		rule := func(target, operand string) []structs.Constraint {
			return []structs.Constraint{{LTarget: target, Operand: operand, RTarget: "x"}}
		}
		const waits = " (muster node status -verbose NODE lists a node's attributes); the job waits for a node that has it"
		for name, c := range map[string]struct {
			edit func(j *structs.Job)
			want string
		}{
			"datacenter":            {func(j *structs.Job) { j.Datacenters = []string{"dc2"} }, `datacenters: no node is in the datacenter "dc2"; did you mean "dc1"? (nodes are in dc1); the job waits for a node there`},
			"datacenters":           {func(j *structs.Job) { j.Datacenters = []string{"east", "w*"} }, `datacenters: no node is in the datacenter "east|w*" (nodes are in dc1); the job waits for a node there`},
			"datacenter of several": {func(j *structs.Job) { j.Datacenters = []string{"east", "dc*"} }, ""},
			"attribute":             {func(j *structs.Job) { j.Groups[0].Constraints = rule("${attr.kernel.nam}", "=") }, `group "g", constraint 1: no node has the attribute "${attr.kernel.nam}"; did you mean "${attr.kernel.name}"?` + waits},
			"meta of the job":       {func(j *structs.Job) { j.Constraints = rule("${meta.rac}", "is_set") }, `constraint 1: no node has the attribute "${meta.rac}"; did you mean "${meta.rack}"?` + waits},
			"other side": {func(j *structs.Job) {
				j.Constraints = []structs.Constraint{{LTarget: "a", Operand: "=", RTarget: "${meta.zone}"}}
			}, `constraint 1: no node has the attribute "${meta.zone}"` + waits},
			"task": {func(j *structs.Job) { j.Groups[0].Tasks[0].Constraints = rule("${attr.cpu.archh}", "=") }, `group "g", task "t", constraint 1: no node has the attribute "${attr.cpu.archh}"` + waits},
			"affinity": {func(j *structs.Job) {
				j.Affinities = []structs.Affinity{{LTarget: "${meta.rak}", Operand: "=", RTarget: "x", Weight: 50}}
			}, `affinity 1: no node has the attribute "${meta.rak}"; did you mean "${meta.rack}"? (muster node status -verbose NODE lists a node's attributes); it does nothing until a node has it`},
			"spread":                   {func(j *structs.Job) { j.Spreads = []structs.Spread{{Attribute: "${meta.zone}", Weight: 50}} }, `spread 1: no node has the attribute "${meta.zone}"`},
			"a value that no node has": {func(j *structs.Job) { j.Constraints = rule("${attr.kernel.name}", "=") }, ""},
			"nodes without it": {func(j *structs.Job) {
				j.Constraints = append(rule("${meta.zone}", "!="), rule("${meta.zone}", "is_not_set")...)
			}, ""},
			"text": {func(j *structs.Job) { j.Constraints = rule("attr.kernel.nam", "!=") }, ""},
		} {
			j := apiJob("a", 1)
			c.edit(j)
			v := call(t, s, methods.JobValidate, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			if got := v.Warnings; (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("%s: %q, %q\nwant %q", name, got, v, c.want)
			}
		}
	})
}
