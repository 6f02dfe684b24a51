package wire

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Each row breaks one thing of a job with own blocks and names what the error must say.
func TestValidateOwn(t *testing.T) {
	g := func(j *Job) *TaskGroup { return j.TaskGroups[0] }
	dep := func(d ...*DependsOn) func(*Job) { return func(j *Job) { j.DependsOn = d } }
	arr := func(a Array) func(*Job) { return func(j *Job) { j.Array = &a } }
	meta := func(kv ...string) func(*Job) {
		return func(j *Job) {
			j.Meta = map[string]string{}
			for i := 0; i < len(kv); i += 2 {
				j.Meta[kv[i]] = kv[i+1]
			}
		}
	}
	gmeta := func(k, v string) func(*Job) { return func(j *Job) { g(j).Meta = map[string]string{k: v} } }
	for _, c := range []struct {
		name  string
		typ   string
		spoil func(*Job)
		want  string
	}{
		{"volume of a plugin", "batch", func(j *Job) { g(j).Volumes = map[string]*VolumeRequest{"v": {Type: "csi", Source: "x"}} }, `only "host" is supported`},
		{"template outside", "batch", func(j *Job) {
			g(j).Tasks[0].Templates = []*Template{{EmbeddedTmpl: ptr("x"), DestPath: ptr("/local/app.conf")}}
		}, `"/local/app.conf" is a directory of the node: paths are below the task's directory, write "local/app.conf"`},
		{"artifact outside", "batch", func(j *Job) {
			g(j).Tasks[0].Artifacts = []*TaskArtifact{{GetterSource: ptr("https://h/x"), RelativeDest: ptr("/alloc/data")}}
		}, `write "${NOMAD_ALLOC_DIR}/data"`},
		{"template outside of a container", "batch", func(j *Job) {
			g(j).Tasks[0].Driver, g(j).Tasks[0].Templates = "docker", []*Template{{EmbeddedTmpl: ptr("x"), DestPath: ptr("/etc/app.conf")}}
		}, "write a path below /local, /secrets or /alloc"},
		{"artifact of the node", "batch", func(j *Job) { g(j).Tasks[0].Artifacts = []*TaskArtifact{{GetterSource: ptr("file:///etc/shadow")}} }, "mount a host volume"},
		{"members without a gang", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{Members: ptr(1)} }, "add gang {}"},
		{"no members", "batch", func(j *Job) { g(j).Gang, g(j).Checkpoint = &Gang{}, &Checkpoint{Members: ptr(0)} }, "want a number from 1"},
		{"more members than there are", "batch", func(j *Job) {
			g(j).Count, g(j).Gang, g(j).Checkpoint = ptr(2), &Gang{}, &Checkpoint{Members: ptr(3)}
		}, "no checkpoint would be complete"},
		{"placement", "batch", func(j *Job) { j.Placement = ptr("a b") }, "is not a placement policy"},
		{"runtime", "batch", func(j *Job) { j.Runtime = &Runtime{Expected: wdur(2 * time.Hour), Limit: wdur(time.Hour)} }, "expected (2h0m0s) is longer than limit (1h0m0s)"},
		{"runtime zero", "batch", func(j *Job) { j.Runtime = &Runtime{Limit: wdur(0)} }, "leave it out for no limit"},
		{"deadline", "batch", func(j *Job) { j.Deadline = ptr("tomorrow") }, "deadline: \"tomorrow\" is not a time"},
		{"begin", "batch", func(j *Job) { j.Begin, j.Deadline = ptr("2031-01-01T00:00:00Z"), ptr("2030-01-01T00:00:00Z") }, "begin: 2031-01-01T00:00:00Z is not before the deadline"},
		{"periodic deadline", "batch", func(j *Job) {
			j.Periodic, j.Deadline = &PeriodicConfig{Spec: ptr("@daily")}, ptr("2031-01-01T00:00:00Z")
		}, "a deadline is one moment"},
		{"requeue", "batch", func(j *Job) { j.Requeue = &Requeue{On: []string{"preemt"}} }, `requeue.on: "preemt" is not known: want preempt, limit, node_lost, gpu_error, failure or exit:N; did you mean "preempt"?`},
		{"requeue exit", "batch", func(j *Job) { j.Requeue = &Requeue{On: []string{"exit:0"}} }, "want an exit code from 1 to 255"},
		{"requeue max", "batch", func(j *Job) { j.Requeue = &Requeue{Max: ptr(-1)} }, "requeue.max: -1 is out of range"},
		{"requeue service", "service", func(j *Job) { j.Requeue = &Requeue{} }, "only batch jobs return to the queue"},
		{"waits for itself", "batch", dep(&DependsOn{Name: "j"}), `depends_on "j": the job would wait for itself`},
		{"when", "batch", dep(&DependsOn{Name: "a", When: "succes"}), `did you mean "success"?`},
		{"same dependency", "batch", dep(&DependsOn{Name: "a"}, &DependsOn{Name: "a"}), "two dependencies with this name"},
		{"on_timeout", "batch", dep(&DependsOn{Name: "a", OnTimeout: "run"}), "needs a timeout"},
		{"at_least", "batch", dep(&DependsOn{Name: "a", Group: "x", AtLeast: ptr(3)}), "has 1 dependencies, so want 1 to 1"},
		{"at_least differ", "batch", dep(&DependsOn{Name: "a", Group: "x", AtLeast: ptr(1)}, &DependsOn{Name: "b", Group: "x"}), "they must be equal"},
		{"at_least alone", "batch", dep(&DependsOn{Name: "a", AtLeast: ptr(1)}), "add group"},
		{"toleration", "batch", func(j *Job) { j.Tolerations = []*Toleration{{Key: "a", Effect: "noschedule"}} }, `did you mean "no-schedule"?`},
		{"array count", "batch", arr(Array{Count: ptr(100_001)}), "array.count: 100001 is too many; want at most 100000"},
		{"array none", "batch", arr(Array{}), "array.count: 0; want 1 to"},
		{"array concurrency", "batch", arr(Array{Count: ptr(2), Concurrency: ptr(-1)}), "concurrency: -1 is negative"},
		{"array params", "batch", arr(Array{Count: ptr(2), Params: map[string][]string{"LR": {"1"}}}), "array.params.LR: 1 values for 2 indices"},
		{"array param name", "batch", arr(Array{Count: ptr(1), Params: map[string][]string{"1x": {"1"}}}), "cannot be the name of a parameter"},
		{"array service", "service", arr(Array{Count: ptr(2)}), "must be of type batch"},
		{"array and count", "batch", func(j *Job) { j.Array = &Array{Count: ptr(2)}; g(j).Count = ptr(4) }, "leave count out"},
		{"array of gangs", "batch", func(j *Job) { j.Array = &Array{Count: ptr(2)}; g(j).Gang = &Gang{} }, "each index of an array stands alone"},
		{"gang min", "batch", func(j *Job) { g(j).Count, g(j).Gang = ptr(2), &Gang{Min: ptr(3)} }, `group "g", gang.min: 3 is more than the group's count, 2`},
		{"gang failure", "batch", func(j *Job) { g(j).Gang = &Gang{OnFailure: "restart"} }, "want restart_all, continue"},
		{"gang system", "system", func(j *Job) { g(j).Gang = &Gang{} }, "runs once on every node"},
		{"elastic", "batch", func(j *Job) { g(j).Elastic = &Elastic{Min: ptr(3), Max: ptr(2)} }, "min (3) is more than max (2)"},
		{"elastic count", "batch", func(j *Job) { g(j).Elastic = &Elastic{Min: ptr(3), Max: ptr(5)} }, "the group's count (1), where it begins"},
		{"elastic gang", "batch", func(j *Job) {
			g(j).Count, g(j).Gang, g(j).Elastic = ptr(4), &Gang{Min: ptr(3)}, &Elastic{Min: ptr(2), Max: ptr(5)}
		}, "less than gang.min (3)"},
		{"topology", "batch", func(j *Job) { g(j).Topology = &Topology{Inside: "nvlnk"} }, `did you mean "nvlink"?`},
		{"topology empty", "batch", func(j *Job) { g(j).Topology = &Topology{Mode: "required"} }, "says neither inside nor across"},
		{"launch", "batch", func(j *Job) { g(j).Launch = &Launch{Mode: "rank", Compat: []string{"torchrn"}} }, `did you mean "torchrun"?`},
		{"checkpoint signal", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{Signal: "SIGUSR3"} }, "not a signal"},
		{"checkpoint on", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{On: []string{"preemt"}} }, `did you mean "preempt"?`},
		{"checkpoint pattern", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{Path: "*/x.pt"} }, "only the last part may be a pattern"},
		{"checkpoint poll", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{Path: "x", Poll: wdur(time.Millisecond)} }, "too often"},
		{"checkpoint interval", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{Path: "x", Interval: wdur(time.Hour)} }, "add signal, command or url"},
		{"checkpoint ranks", "batch", func(j *Job) { g(j).Checkpoint = &Checkpoint{To: "ranks"} }, "who gets the signal"},
		{"mig", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{GPU: &GPU{MIG: "small"}} }, "something like \"1g.10gb\""},
		{"mig and memory", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{GPU: &GPU{MIG: "1g.10gb", Memory: "1GiB"}} }, "its own memory and compute"},
		{"launch gpus", "batch", func(j *Job) { g(j).Launch = &Launch{Mode: "rank", GPUs: "mine"} }, `"mine"`},
		{"launch gpus by node", "batch", func(j *Job) { g(j).Launch = &Launch{Mode: "node", GPUs: "own"} }, "the launcher of the job decides"},
		{"power of a share", "batch", func(j *Job) {
			g(j).Tasks[0].Resources = &Resources{GPU: &GPU{Memory: "1GiB", PowerLimit: ptr(300)}}
		}, "ask for whole GPUs"},
		{"power of nothing", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{GPU: &GPU{PowerLimit: ptr(0)}} }, "want 1 to 100000 watts"},
		{"pressure of a whole GPU", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{GPU: &GPU{Pressure: &GPUPressure{At: []int{80}}}} }, "pressure without a share"},
		{"pressure thresholds", "batch", func(j *Job) {
			g(j).Tasks[0].Resources = &Resources{GPU: &GPU{Memory: "1GiB", Pressure: &GPUPressure{At: []int{90, 80}}}}
		}, "want them ascending"},
		{"pressure told twice", "batch", func(j *Job) {
			g(j).Tasks[0].Resources = &Resources{GPU: &GPU{Memory: "1GiB", Pressure: &GPUPressure{Signal: "SIGUSR1", URL: "http://x/"}}}
		}, "exclude each other"},
		{"pressure address", "batch", func(j *Job) {
			g(j).Tasks[0].Resources = &Resources{GPU: &GPU{Memory: "1GiB", Pressure: &GPUPressure{URL: "ftp://x/"}}}
		}, "begins with http://"},
		{"rdma word", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{GPU: &GPU{RDMA: "prefered"}} }, `did you mean "preferred"?`},
		{"umask", "batch", func(j *Job) { g(j).Tasks[0].Umask = "29" }, `"29" is not a umask`},
		{"work_dir", "batch", func(j *Job) { g(j).Tasks[0].WorkDir = "here" }, `"here" must be absolute`},
		{"log_path", "batch", func(j *Job) { g(j).Tasks[0].LogPath = "/x/%q" }, `"%q" is no placeholder`},
		{"log_path of docker", "batch", func(j *Job) { g(j).Tasks[0].Driver, g(j).Tasks[0].LogPath = "docker", "/x/%j" }, "wants the driver exec or raw_exec"},
		{"log_error_path", "batch", func(j *Job) { g(j).Tasks[0].LogErrorPath = "/x/" }, "want a file"},
		{"ulimits", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{Ulimits: map[string]string{"nice": "1"}} }, `no limit "nice"`},
		{"ulimits value", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{Ulimits: map[string]string{"core": "big"}} }, `"big": want a number`},
		{"shm", "batch", func(j *Job) { g(j).Tasks[0].Resources = &Resources{MemoryMB: ptr(64), ShmMB: ptr(65)} }, "65 is more than memory = 64"},
		{"meta unknown", "batch", meta("muster.deadlin", "x"), `did you mean "deadline"?`},
		{"meta twice", "batch", meta("muster.queue", "a", "muster_queue", "b"), "another value"},
		{"meta number", "batch", gmeta("muster_gang_min", "two"), `group "g", meta muster_gang_min: "two"; want a whole number`},
		{"meta of the job", "batch", gmeta("muster.deadline", "x"), "belongs into the meta of the job"},
		{"meta of a group", "batch", meta("muster.gang.min", "2"), "belongs into the meta of a group"},
		{"meta of a task", "batch", meta("muster.gpu.count", "2"), "belongs into the meta of a task"},
		{"meta against block", "batch", func(j *Job) {
			meta("muster.runtime.limit", "2h")(j)
			j.Runtime = &Runtime{Limit: wdur(time.Hour)}
		}, "the job says 1h0m0s and its meta says \"2h\"; remove one of them"},
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

// full is a job that says everything, natively.
func full() *Job {
	j := small("batch")
	j.Queue, j.Placement, j.Preemptible, j.Hold = ptr("research/nlp"), ptr("binpack"), ptr(true), ptr(true)
	j.Runtime = &Runtime{Expected: wdur(time.Hour), Limit: wdur(2 * time.Hour)}
	j.Begin, j.Deadline = ptr("2030-01-01T00:00:00Z"), ptr("2031-01-01T00:00:00Z")
	j.Requeue = &Requeue{On: []string{"preempt", "exit:75"}, Max: ptr(3), AvoidFailedNodes: ptr(true)}
	j.DependsOn = []*DependsOn{{Name: "prep"}, {Name: "other", When: "started", Timeout: wdur(time.Hour)}}
	j.Tolerations = []*Toleration{{Key: "dedicated", Value: "nlp", Effect: "no-schedule"}, {Key: "spot"}}
	g := j.TaskGroups[0]
	g.Count = ptr(4)
	g.Gang = &Gang{Min: ptr(2), Timeout: wdur(time.Minute), OnFailure: "continue", Standby: ptr(1)}
	g.Elastic = &Elastic{Min: ptr(2), Max: ptr(8)}
	g.Topology = &Topology{Inside: "nvlink", Across: "leaf", Mode: "required"}
	g.Launch = &Launch{Mode: "rank", Ranks: ptr(8), Compat: []string{"torchrun", "slurm"}, Port: ptr(29500), GPUs: "all"}
	g.Checkpoint = &Checkpoint{Signal: "SIGUSR1", Command: []string{"/bin/save", "now"}, URL: "http://localhost:1/x", To: "ranks", On: []string{"preempt"},
		Before: wdur(time.Minute), Grace: wdur(time.Second), Dir: "/ckpt", Storage: "lustre1", Cost: wdur(time.Second), Path: "step-*.pt", Poll: wdur(10 * time.Second), Interval: wdur(30 * time.Minute), Members: ptr(2)}
	g.Tasks[0].Resources = &Resources{ShmMB: ptr(64), GPU: &GPU{Memory: "1GiB", RDMA: "none"}, RDMA: ptr(true), Ulimits: map[string]string{"core": "0", "memlock": "64:unlimited"}}
	g.Tasks[0].WorkDir, g.Tasks[0].Umask, g.Tasks[0].LogPath, g.Tasks[0].LogErrorPath = "/work", "0027", "/log/%j.%t", "/log/%j.%t.err"
	return j
}

// fullMeta is the same job for clients that know only Nomad's fields.
func fullMeta(dot string) *Job {
	j := small("batch")
	spell := func(m map[string]string) map[string]string {
		out := map[string]string{}
		for k, v := range m {
			out[strings.ReplaceAll("muster."+k, ".", dot)] = v
		}
		return out
	}
	j.Meta = spell(map[string]string{
		"queue": "research/nlp", "placement": "binpack", "preemptible": "true", "hold": "true", "runtime.expected": "1h", "runtime.limit": "2h",
		"begin": "2030-01-01T01:00:00+01:00", "deadline": "2031-01-01T00:00:00Z", "requeue.on": "preempt, exit:75", "requeue.max": "3",
		"requeue.avoid_failed_nodes": "true", "depends_on": "prep, other:started:1h", "toleration": "dedicated=nlp:no-schedule, spot",
	})
	g := j.TaskGroups[0]
	g.Count = ptr(4)
	g.Meta = spell(map[string]string{
		"gang.min": "2", "gang.timeout": "1m", "gang.on_failure": "continue", "gang.standby": "1", "elastic.min": "2", "elastic.max": "8",
		"topology.inside": "nvlink", "topology.across": "leaf", "topology.mode": "required",
		"launch.mode": "rank", "launch.ranks": "8", "launch.compat": "torchrun,slurm", "launch.port": "29500", "launch.gpus": "all",
		"checkpoint.signal": "SIGUSR1", "checkpoint.command": "/bin/save, now", "checkpoint.url": "http://localhost:1/x", "checkpoint.to": "ranks",
		"checkpoint.on": "preempt", "checkpoint.before": "1m", "checkpoint.grace": "1s", "checkpoint.dir": "/ckpt", "checkpoint.cost": "1s",
		"checkpoint.path": "step-*.pt", "checkpoint.poll": "10s", "checkpoint.storage": "lustre1", "checkpoint.interval": "30m", "checkpoint.members": "2",
	})
	g.Tasks[0].Meta = spell(map[string]string{"shm": "64", "gpu.memory": "1GiB", "gpu.rdma": "none", "rdma": "true", "ulimits": "core=0, memlock=64:unlimited",
		"work_dir": "/work", "umask": "0027", "log_path": "/log/%j.%t", "log_error_path": "/log/%j.%t.err"})
	return j
}

func TestMetaSaysWhatBlocksSay(t *testing.T) {
	want, p := Prepare(full())
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	for _, dot := range []string{".", "_"} {
		got, p := Prepare(fullMeta(dot))
		if p.Err() != nil {
			t.Fatal(p.Err())
		}
		twice, p := Prepare(JobFromStructs(got)) // what a server shows is acceptable to it again
		if p.Err() != nil {
			t.Fatal(p.Err())
		}
		for _, j := range []*structs.Job{got, twice} {
			j.Meta, j.Groups[0].Meta, j.Groups[0].Tasks[0].Meta = nil, nil, nil
			if d := diff("Job", reflect.ValueOf(want), reflect.ValueOf(j)); d != "" {
				t.Errorf("with %q: %s", dot, d)
			}
		}
	}
	// Every value below an own field has been given above; a new one must be, too.
	have := map[string]bool{}
	j := fullMeta(".")
	for k := range maps.All(j.Meta) {
		have[k] = true
	}
	for k := range maps.All(j.TaskGroups[0].Meta) {
		have[k] = true
	}
	for k := range maps.All(j.TaskGroups[0].Tasks[0].Meta) {
		have[k] = true
	}
	for k := range have {
		name, _ := extensionKey(k)
		delete(have, k)
		have[name] = true
	}
	for _, l := range slices.Concat(jobLeaves, groupLeaves, taskLeaves) {
		if !have[l.name] && !strings.HasPrefix(l.name, "array_") {
			t.Errorf("no meta spelling of %s is tested", l.name)
		}
	}
}

func TestArrayFromMeta(t *testing.T) {
	j := small("batch")
	j.Meta = map[string]string{"muster.array.count": "3", "muster.array.concurrency": "2", "muster.array.params.LR": "0.1, 0.2,0.3"}
	out, p := Prepare(j)
	if p.Err() != nil || out.Array == nil || out.Array.Count != 3 || out.Array.Concurrency != 2 || !slices.Equal(out.Array.Params["LR"], []string{"0.1", "0.2", "0.3"}) {
		t.Fatalf(`%v %+v; want out.Array.Count = 3, out.Array.Concurrency = 2, out.Array.Params["LR"] = %v`, p.Err(), out, []string{"0.1", "0.2", "0.3"})
	}
	if again, p := Prepare(JobFromStructs(out)); p.Err() != nil || !reflect.DeepEqual(out.Array, again.Array) {
		t.Errorf("there and back: %v %+v", p.Err(), again)
	}
}

func TestMIGProfile(t *testing.T) {
	j := small("batch")
	j.TaskGroups[0].Tasks[0].Resources = &Resources{GPU: &GPU{MIG: "1g.10gb", Count: ptr(2), Or: []*GPUOr{{MIG: "2g.20gb+me"}}}}
	out, p := Prepare(j)
	if p.Err() != nil {
		t.Fatal(p.Err())
	}
	want := []structs.GPURequest{{Count: 2, MIG: "1g.10gb"}, {Count: 1, MIG: "2g.20gb+me"}}
	if got := out.Groups[0].Tasks[0].Resources.GPU; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestGangOfOneGPUAllocationsWarns(t *testing.T) {
	for gpus, want := range map[int]bool{1: true, 8: false} {
		j := small("batch")
		j.TaskGroups[0].Count, j.TaskGroups[0].Gang = ptr(16), &Gang{}
		j.TaskGroups[0].Tasks[0].Resources = &Resources{GPU: &GPU{Count: ptr(gpus)}}
		_, p := Prepare(j)
		if got := strings.Contains(fmt.Sprint(p.Warnings), "16 allocations of one GPU each"); got != want || p.Err() != nil {
			t.Errorf("%d GPUs: %v %q", gpus, p.Err(), p.Warnings)
		}
	}
}
