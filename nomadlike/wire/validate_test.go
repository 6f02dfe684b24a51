package wire

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Each row breaks one thing of a legal job and names what the one error must say.
func TestValidate(t *testing.T) {
	g := func(j *Job) *TaskGroup { return j.TaskGroups[0] }
	k := func(j *Job) *Task { return j.TaskGroups[0].Tasks[0] }
	for _, c := range []struct {
		name  string
		typ   string
		spoil func(*Job)
		want  string
	}{
		{"no id", "batch", func(j *Job) { j.ID = nil }, "id: a job needs an id"},
		{"blank in id", "batch", func(j *Job) { j.ID = ptr("a b") }, "id: \"a b\" holds a blank"},
		{"carriage return in id", "batch", func(j *Job) { j.ID = ptr("a\rb") }, "a control character"},
		{"NUL in id", "batch", func(j *Job) { j.ID = ptr("a\x00b") }, "a control character"},
		{"escape sequence in id", "batch", func(j *Job) { j.ID = ptr("a\x1b[2Jb") }, "a control character"},
		{"C1 control in id", "batch", func(j *Job) { j.ID = ptr("a\u009bb") }, "a control character"},
		{"long id", "batch", func(j *Job) { j.ID = ptr(strings.Repeat("x", 300)) }, "300 bytes long"},
		{"namespace", "batch", func(j *Job) { j.Namespace = ptr("a/b") }, "namespace: \"a/b\""},
		{"pool", "batch", func(j *Job) { j.NodePool = ptr("a b") }, "node_pool: \"a b\""},
		{"type", "batch", func(j *Job) { j.Type = ptr("bacth") }, `did you mean "batch"?`},
		{"priority", "batch", func(j *Job) { j.Priority = ptr(101) }, "priority: 101 is out of range: want 1 to 100"},
		{"negative priority", "batch", func(j *Job) { j.Priority = ptr(-1) }, "priority: -1"},
		{"empty datacenter", "batch", func(j *Job) { j.Datacenters = []string{""} }, "datacenters[0]"},
		{"queue", "batch", func(j *Job) { j.Queue = ptr("/x") }, "queue: \"/x\""},
		{"two queues", "batch", func(j *Job) { j.Queue = ptr("x"); j.Meta = map[string]string{"muster.queue": "y"} }, "remove one of them"},
		{"extension in meta", "batch", func(j *Job) { j.Meta = map[string]string{"muster.gang.min": "2"} }, "meta muster.gang.min: this extension belongs into the meta of a group"},
		{"driver", "batch", func(j *Job) { k(j).Driver = "dokcer" }, `task "t", driver: there is no driver "dokcer"; did you mean "docker"?`},
		{"driver config", "batch", func(j *Job) { k(j).Driver, k(j).Config = "raw_exec", map[string]any{"comand": "x"} }, `task "t", config.comand: raw_exec: unknown config key "comand"; did you mean "command"?`},
		{"docker's credentials", "batch", func(j *Job) {
			k(j).Driver, k(j).Config = "docker", map[string]any{"image": "x", "auth": []any{map[string]any{"user_name": "x"}}}
		}, `task "t", config.auth: docker: config key "auth": unknown key "user_name"; did you mean "username"?`},
		{"docker's logs", "batch", func(j *Job) {
			k(j).Driver, k(j).Config = "docker", map[string]any{"image": "x", "logging": []any{map[string]any{"type": "syslog"}}}
		}, `task "t", config.logging: docker: logging: config key "type": "syslog" is not one of json-file, local; the agent collects the output`},
		{"driver config without a command", "batch", func(j *Job) { k(j).Driver, k(j).Config = "exec", nil }, `task "t", config: exec: config key "command" (string) is required`},
		{"no groups", "batch", func(j *Job) { j.TaskGroups = nil }, "group: a job needs at least one group"},
		{"null group", "batch", func(j *Job) { j.TaskGroups = append(j.TaskGroups, nil) }, "group 2: is null"},
		{"same group", "batch", func(j *Job) { j.TaskGroups = append(j.TaskGroups, g(j)) }, "two groups with this name"},
		{"huge count", "batch", func(j *Job) { g(j).Count = ptr(1 << 40) }, "want at most 100000"},
		{"huge count over all groups", "batch", func(j *Job) {
			g(j).Count = ptr(60_000)
			j.TaskGroups = append(j.TaskGroups, &TaskGroup{Name: ptr("h"), Count: ptr(60_000), Tasks: g(j).Tasks})
		}, "count: 120000 over all groups; want at most 100000"},
		{"negative count", "batch", func(j *Job) { g(j).Count = ptr(-1) }, "count: -1 is negative"},
		{"system count", "system", func(j *Job) { g(j).Count = ptr(2) }, "runs once on every node"},
		{"system reschedule", "system", func(j *Job) { g(j).ReschedulePolicy = &ReschedulePolicy{Attempts: ptr(1)} }, "cannot be rescheduled"},
		{"system spread", "system", func(j *Job) { j.Spreads = []*Spread{{Attribute: "${node.datacenter}"}} }, "cannot be spread"},
		{"no tasks", "batch", func(j *Job) { g(j).Tasks = nil }, "needs at least one task"},
		{"same task", "batch", func(j *Job) { g(j).Tasks = append(g(j).Tasks, &Task{Name: "t", Driver: "exec"}) }, "two tasks with this name"},
		{"task path", "batch", func(j *Job) { k(j).Name = "../x" }, "without slashes"},
		{"reserved task", "batch", func(j *Job) { k(j).Name = ".fetch" }, "begins with a dot"},
		{"shared directory", "batch", func(j *Job) { k(j).Name = "alloc" }, "is reserved"},
		{"no driver", "batch", func(j *Job) { k(j).Driver = "" }, "needs a driver"},
		{"zero cpu", "batch", func(j *Job) { k(j).Resources = &Resources{CPU: ptr(0)} }, "resources.cpu: 0; want at least 1"},
		{"negative memory", "batch", func(j *Job) { k(j).Resources = &Resources{MemoryMB: ptr(-5)} }, "resources.memory: -5; want at least 10"},
		{"huge memory", "batch", func(j *Job) { k(j).Resources = &Resources{MemoryMB: ptr(1 << 50)} }, "resources.memory: 1125899906842624; want at most"},
		{"memory_max", "batch", func(j *Job) { k(j).Resources = &Resources{MemoryMB: ptr(300), MemoryMaxMB: ptr(200)} }, "at least memory (300)"},
		{"cpu and cores", "batch", func(j *Job) { k(j).Resources = &Resources{CPU: ptr(5), Cores: ptr(1)} }, "contradict"},
		{"no devices", "batch", func(j *Job) {
			k(j).Resources = &Resources{Devices: []*RequestedDevice{{Name: "gpu", Count: ptr(uint64(0))}}}
		}, "count: 0; want 1 to 4096"},
		{"device name", "batch", func(j *Job) { k(j).Resources = &Resources{Devices: []*RequestedDevice{{Name: "nvidia//x"}}} }, "vendor/type"},
		{"operator", "batch", func(j *Job) { j.Constraints = []*Constraint{{LTarget: "${attr.x}", Operand: "regex", RTarget: "x"}} }, `did you mean "regexp"?`},
		{"regexp", "batch", func(j *Job) { j.Constraints = []*Constraint{{LTarget: "${attr.x}", Operand: "regexp", RTarget: "("}} }, "not a regular expression"},
		{"version", "batch", func(j *Job) {
			j.Constraints = []*Constraint{{LTarget: "${attr.x}", Operand: "version", RTarget: ">> 1"}}
		}, "not a version constraint"},
		{"semver", "batch", func(j *Job) { j.Constraints = []*Constraint{{LTarget: "${attr.x}", Operand: "semver", RTarget: "= x"}} }, "not a semantic version"},
		{"no attribute", "batch", func(j *Job) { j.Constraints = []*Constraint{{RTarget: "x"}} }, "needs an attribute"},
		{"device's model of a group", "batch", func(j *Job) {
			g(j).Constraints = []*Constraint{{LTarget: "${device.model}", Operand: "=", RTarget: "H100"}}
		}, "put it into the device or gpu block"},
		{"device IDs without a device", "batch", func(j *Job) {
			g(j).Affinities = []*Affinity{{LTarget: "${device.ids}", Operand: "set_contains", RTarget: "GPU-1", Weight: ptr(int8(50))}}
		}, "no task here asks for a device"},
		{"node's attribute of a GPU", "batch", func(j *Job) {
			k(j).Resources = &Resources{GPU: &GPU{Constraints: []*Constraint{{LTarget: "${attr.cpu.arch}", Operand: "=", RTarget: "amd64"}}}}
		}, "is not about a device"},
		{"distinct in task", "batch", func(j *Job) { k(j).Constraints = []*Constraint{{Operand: "distinct_hosts"}} }, "whole allocations"},
		{"distinct_property", "batch", func(j *Job) {
			j.Constraints = []*Constraint{{LTarget: "${meta.rack}", Operand: "distinct_property", RTarget: "0"}}
		}, "at least 1"},
		{"weight", "batch", func(j *Job) { j.Affinities = []*Affinity{{LTarget: "a", RTarget: "b", Weight: ptr(int8(0))}} }, "weight: 0 is out of range"},
		{"spread sum", "batch", func(j *Job) {
			j.Spreads = []*Spread{{Attribute: "a", SpreadTarget: []*SpreadTarget{{"x", 60}, {"y", 60}}}}
		}, "120 percent"},
		{"periodic service", "service", func(j *Job) { j.Periodic = &PeriodicConfig{Spec: ptr("@daily")} }, "cannot be periodic"},
		{"cron", "batch", func(j *Job) { j.Periodic = &PeriodicConfig{Spec: ptr("every day")} }, "not a cron expression"},
		{"time zone", "batch", func(j *Job) { j.Periodic = &PeriodicConfig{Spec: ptr("@daily"), TimeZone: ptr("Mars/Base")} }, "time_zone"},
		{"both templates", "batch", func(j *Job) {
			j.Periodic, j.ParameterizedJob = &PeriodicConfig{Spec: ptr("@daily")}, &Parameterized{}
		}, "both periodic and parameterized"},
		{"payload", "batch", func(j *Job) { j.ParameterizedJob = &Parameterized{Payload: "maybe"} }, "want optional, required, forbidden"},
		{"payload file", "batch", func(j *Job) {
			j.ParameterizedJob = &Parameterized{}
			k(j).DispatchPayload = &DispatchPayload{File: "../../etc/passwd"}
		}, "not a file below"},
		{"no template", "batch", func(j *Job) { k(j).DispatchPayload = &DispatchPayload{File: "x"} }, "only a parameterized job"},
		{"restart mode", "batch", func(j *Job) { g(j).RestartPolicy = &RestartPolicy{Mode: ptr("retry")} }, "want fail, delay"},
		{"restart fit", "batch", func(j *Job) { g(j).RestartPolicy = &RestartPolicy{Attempts: ptr(10), Interval: wdur(time.Minute)} }, "do not fit into an interval"},
		{"delay function", "batch", func(j *Job) { g(j).ReschedulePolicy = &ReschedulePolicy{DelayFunction: ptr("fibonaci")} }, `did you mean "fibonacci"?`},
		{"negative duration", "batch", func(j *Job) { k(j).KillTimeout = wdur(-1) }, "kill_timeout: -1ns is negative"},
		{"signal", "batch", func(j *Job) { k(j).KillSignal = "SIGFOO" }, "not a signal"},
		{"lifecycle only", "batch", func(j *Job) { k(j).Lifecycle = &TaskLifecycle{Hook: "prestart"} }, "at least one must be a main task"},
		{"hook", "batch", func(j *Job) {
			g(j).Tasks = append(g(j).Tasks, &Task{Name: "x", Driver: "exec", Lifecycle: &TaskLifecycle{Hook: "before"}})
		}, "want prestart, poststart, poststop"},
		{"port twice", "service", func(j *Job) { g(j).Networks = []*NetworkResource{{DynamicPorts: []Port{{Label: "a"}, {Label: "a"}}}} }, "two ports with this label"},
		{"port range", "service", func(j *Job) { g(j).Networks = []*NetworkResource{{ReservedPorts: []Port{{Label: "a", Value: 70000}}}} }, "is not a port"},
		{"port collision", "service", func(j *Job) {
			g(j).Networks = []*NetworkResource{{ReservedPorts: []Port{{Label: "a", Value: 80}, {Label: "b", Value: 80}}}}
		}, "also asked for"},
		{"host network", "service", func(j *Job) {
			g(j).Networks = []*NetworkResource{{DynamicPorts: []Port{{Label: "a", HostNetwork: "ib"}}}}
		}, `nodes have one network, named "default"`},
		{"mps", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Memory: "20GiB", Enforce: "mps"}} }, `write "soft"`},
		{"mps as an alternative", "batch", func(j *Job) {
			k(j).Resources = &Resources{GPU: &GPU{Memory: "20GiB", Or: []*GPUOr{{Memory: "10GiB", Enforce: "mps"}}}}
		}, `write "soft"`},
		{"across on every node", "system", func(j *Job) { g(j).Topology = &Topology{Across: "rack", Mode: "required"} }, "so no place holds all of it"},
		{"cni", "service", func(j *Job) { g(j).Networks = []*NetworkResource{{Mode: "cni/net"}} }, `network, mode: only "bridge", "host" and "none" are supported`},
		{"bridge for docker", "service", func(j *Job) {
			g(j).Networks, g(j).Tasks[0].Driver = []*NetworkResource{{Mode: "bridge"}}, "docker"
		}, `containers cannot join the network of their allocation; leave the mode out, and set network_mode = "bridge"`},
		{"bridge for a driver that knows none", "service", func(j *Job) {
			g(j).Networks, g(j).Tasks[0].Driver = []*NetworkResource{{Mode: "bridge"}}, "java"
		}, `tasks of driver "java" cannot join the network of their allocation; exec and raw_exec can`},
		{"bridge for a gang", "batch", func(j *Job) {
			g(j).Networks, g(j).Gang = []*NetworkResource{{Mode: "bridge"}}, &Gang{}
		}, `"bridge": the members of a gang and the ranks of a launch meet at addresses of their nodes; use mode "host"`},
		{"hostname without bridge", "service", func(j *Job) { g(j).Networks = []*NetworkResource{{Hostname: "a"}} }, `only a network of mode "bridge" has a hostname`},
		{"bad hostname", "service", func(j *Job) { g(j).Networks = []*NetworkResource{{Mode: "bridge", Hostname: "a b"}} }, `"a b" is not a host's name`},
		{"bad resolver", "service", func(j *Job) {
			g(j).Networks = []*NetworkResource{{DNS: &DNSConfig{Servers: []string{"one.example"}}}}
		}, `dns.servers: "one.example" is not an IP address`},
		{"bad search", "service", func(j *Job) {
			g(j).Networks = []*NetworkResource{{DNS: &DNSConfig{Searches: []string{"a\nnameserver 192.0.2.1"}}}}
		}, `searches and options are single words`},
		{"canary", "service", func(j *Job) { j.Update = &UpdateStrategy{Canary: ptr(1)} }, "update, canary: canaries are not supported yet"},
		{"update of the job", "service", func(j *Job) { j.Update = &UpdateStrategy{Stagger: wdur(-time.Second)} }, "update.stagger: -1s is negative"}, // once, not for each group again
		{"update of a group", "service", func(j *Job) { g(j).Update = &UpdateStrategy{Stagger: wdur(-time.Second)} }, `group "g", update.stagger: -1s is negative`},
		{"large weight", "batch", func(j *Job) { j.Weights = &ScoreWeights{Reliability: ptr(101)} }, "score_weights.reliability: 101 is out of range: want 0 to 100"},
		{"negative weight", "batch", func(j *Job) { j.Weights = &ScoreWeights{Cost: ptr(-1)} }, "score_weights.cost: -1 is out of range"},
		{"update times", "service", func(j *Job) { j.Update = &UpdateStrategy{MinHealthyTime: wdur(time.Hour)} }, "less than healthy_deadline"},
		{"migrate batch", "batch", func(j *Job) { g(j).Migrate = &MigrateStrategy{} }, "only service jobs migrate"},
		{"scaling", "service", func(j *Job) { g(j).Scaling = &ScalingPolicy{Min: ptr(int64(3)), Max: ptr(int64(2))} }, "min (3) is more than max (2)"},
		{"template", "batch", func(j *Job) { k(j).Templates = []*Template{{}} }, `group "g", task "t", template 1: needs data or source`},
		{"identity without audience", "batch", func(j *Job) { k(j).Identities = []*WorkloadIdentity{{Name: "store"}} }, `task "t", identity 1, aud: is missing: name the service`},
		{"identity for the cluster", "batch", func(j *Job) {
			k(j).Identities = []*WorkloadIdentity{{Name: "store", Audience: []string{"a", "nomadproject.io"}}}
		}, "whoever gets the token could act as the task"},
		{"default identity for others", "batch", func(j *Job) { k(j).Identities = []*WorkloadIdentity{{Audience: []string{"store"}}} }, "give an identity for others a name"},
		{"identity twice", "batch", func(j *Job) { k(j).Identities = []*WorkloadIdentity{{}, {}} }, "is another identity's already"},
		{"identity for a month", "batch", func(j *Job) { k(j).Identities = []*WorkloadIdentity{{TTL: Duration(30 * 24 * time.Hour)}} }, "want 1m0s to 168h0m0s"},
		{"identity elsewhere", "batch", func(j *Job) { k(j).Identities = []*WorkloadIdentity{{Filepath: "../t"}} }, "leads out of the task's directory"},
		{"identity with a script", "batch", func(j *Job) { k(j).Identities = []*WorkloadIdentity{{ChangeMode: "script"}} }, "want noop, restart, signal"},
		{"vault", "batch", func(j *Job) { k(j).Vault = &Vault{} }, "vault: not supported"},
		{"gpu memory", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Memory: "20 gigs"}} }, "gpu.memory: \"20 gigs\" is not an amount of memory"},
		{"numa without cores", "batch", func(j *Job) { k(j).Resources = &Resources{NUMA: &NUMAResource{Affinity: "require"}} }, "reserves no cores"},
		{"numa of a stranger", "batch", func(j *Job) {
			k(j).Resources = &Resources{Cores: ptr(2), GPU: &GPU{Memory: "20GiB"}, NUMA: &NUMAResource{Affinity: "require", Devices: []string{"gpu", "fpga"}}}
		}, "no device \"fpga\""},
		{"numa with a device twice", "batch", func(j *Job) {
			k(j).Resources = &Resources{Cores: ptr(2), GPU: &GPU{Count: ptr(2)}, NUMA: &NUMAResource{Affinity: "prefer", Devices: []string{"gpu", "gpu"}}}
		}, "twice"},
		{"gpu memory and share", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Memory: "20GiB", Share: ptr(5)}} }, "contradict each other"},
		{"gpu model", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Memory: "1GiB", Model: "H100|"}} }, "want a word of the model's name"},
		{"gpu compute alone", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Compute: ptr(50)}} }, "compute = 50 without memory"},
		{"gpu compute", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Memory: "1GiB", Compute: ptr(101)}} }, "want 1 to 100 percent"},
		{"gpu share", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Share: ptr(0)}} }, "want 1 to 100 percent of the GPU's memory"},
		{"gpu enforce", "batch", func(j *Job) { k(j).Resources = &Resources{GPU: &GPU{Memory: "1GiB", Enforce: "strong"}} }, "enforce"},
		{"gpu or", "batch", func(j *Job) {
			k(j).Resources = &Resources{GPU: &GPU{Model: "H200", Or: []*GPUOr{{Count: ptr(0)}}}}
		}, "gpu, or[0].count: 0; want 1 to 4096"},
		{"gpu meta", "batch", func(j *Job) { k(j).Meta = map[string]string{"muster.gpu.memroy": "20GiB"} }, "did you mean \"memory\""},
		{"gpu meta number", "batch", func(j *Job) { k(j).Meta = map[string]string{"muster_gpu_count": "two"} }, "muster_gpu_count = \"two\"; want a whole number"},
		{"env name", "batch", func(j *Job) { k(j).Env = map[string]string{"A=B": "x"} }, "cannot be the name of a variable"},
		{"logs", "batch", func(j *Job) { k(j).LogConfig = &LogConfig{MaxFiles: ptr(100)} }, "do not fit on an ephemeral_disk"},
		{"service port", "service", func(j *Job) {
			g(j).Networks = []*NetworkResource{{DynamicPorts: []Port{{Label: "http"}}}}
			g(j).Services = []*Service{{Name: "s", PortLabel: "htp", Provider: "nomad"}}
		}, `did you mean "http"?`},
		{"leaders", "batch", func(j *Job) {
			k(j).Leader = true
			g(j).Tasks = append(g(j).Tasks, &Task{Name: "x", Driver: "exec", Leader: true})
		}, "only one may be"},
		{"disconnect", "service", func(j *Job) {
			g(j).Disconnect = &DisconnectStrategy{LostAfter: wdur(time.Minute), StopOnClientAfter: wdur(time.Hour)}
		}, "must not be longer than lost_after"},
		{"stop on client", "service", func(j *Job) {
			g(j).Disconnect = &DisconnectStrategy{StopOnClientAfter: wdur(time.Second)}
		}, "stop_on_client_after: 1s is too short"},
		{"stop after disconnect", "service", func(j *Job) { g(j).StopAfterClientDisconnect = wdur(0) }, "stop_after_client_disconnect: 0s is too short"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := small(c.typ)
			c.spoil(j)
			out, p := Prepare(j)
			if out != nil || !slices.ContainsFunc(p.Errors, func(e string) bool { return strings.Contains(e, c.want) }) {
				t.Errorf("want an error with %q, got %q", c.want, p.Errors)
			}
		})
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	j := small("batch")
	j.Priority, j.TaskGroups[0].Count, j.TaskGroups[0].Tasks[0].Driver = ptr(500), ptr(-1), ""
	_, p := Prepare(j)
	if len(p.Errors) != 3 || !strings.HasPrefix(p.Err().Error(), "3 errors occurred:\n\t* priority: 500") {
		t.Errorf("%v; want len(p.Errors) = 3, p.Err().Error() to begin with \"3 errors occurred:\\n\\t* priority: 500\"", p.Err())
	}
}

func TestWarnings(t *testing.T) {
	j := small("service")
	j.Update = &UpdateStrategy{MinHealthyTime: wdur(10 * time.Second), HealthyDeadline: wdur(3 * time.Minute), ProgressDeadline: wdur(9 * time.Minute)}
	j.TaskGroups[0].Services = []*Service{{Name: "s", CanaryTags: []string{"c"}}, {Name: "not_for_us", Provider: "consul", Cluster: "default"}}
	_, p := Prepare(j)
	want := []string{
		`group "g", service, canary_tags: ` + noCanary,
		`group "g", service, provider: there is no Consul integration: this service is not registered and its checks do not run; write provider = "nomad"`,
	}
	if p.Err() != nil || !slices.Equal(p.Warnings, want) {
		t.Errorf("%v\n%s; want %v", p.Err(), p.WarningText(), want)
	}
}
