package taskenv

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func input() Input {
	task := &structs.Task{Name: "web", Env: map[string]string{}, Resources: structs.Resources{CPU: 500, MemoryMiB: 256, MemoryMaxMiB: 512}}
	job := &structs.Job{Namespace: "team", ID: "shop", Name: "the shop", ParentID: "parent", Region: "eu", Meta: map[string]string{"level": "job", "only-job": "j"}, Groups: []*structs.Group{{Name: "front", Meta: map[string]string{"level": "group"}, Tasks: []*structs.Task{task}}}}
	return Input{
		Region: "eu",
		Node: &structs.Node{
			ID: structs.NodeID{0xab}, Name: "n1", Datacenter: "dc7", Class: "big", Pool: "gpu",
			Attributes: map[string]string{"kernel.name": "linux", "unique.network.ip-address": "192.0.2.1"}, Meta: map[string]string{"rack": "r1"},
			Resources: structs.NodeResources{MHzPerCore: 2000, Networks: []structs.NodeNetwork{{IP: "192.0.2.1"}}},
		},
		Alloc: &structs.Allocation{ID: structs.AllocID{0x12, 0x34}, Namespace: "team", JobID: "shop", Job: job, Group: "front", NameIndex: 2},
		Task:  task, AllocDir: "/a/alloc", TaskDir: "/a/web/local", SecretsDir: "/a/web/secrets", Inherit: []string{},
	}
}

func TestEveryVariableHasItsTwin(t *testing.T) {
	in := input()
	in.Alloc.Ports = []structs.PortGrant{{Label: "http", Value: 8080}}
	vars := New(in).Vars()
	want := map[string]string{
		"ALLOC_ID": "12340000-0000-0000-0000-000000000000", "SHORT_ALLOC_ID": "12340000", "ALLOC_INDEX": "2", "ALLOC_NAME": "shop.front[2]",
		"ALLOC_DIR": "/a/alloc", "TASK_DIR": "/a/web/local", "SECRETS_DIR": "/a/web/secrets", "GROUP_NAME": "front", "JOB_ID": "shop", "JOB_NAME": "the shop",
		"JOB_PARENT_ID": "parent", "TASK_NAME": "web", "CPU_LIMIT": "500", "MEMORY_LIMIT": "256", "MEMORY_MAX_LIMIT": "512", "REGION": "eu", "DC": "dc7", "NAMESPACE": "team",
		"ADDR_http": "192.0.2.1:8080", "IP_http": "192.0.2.1", "PORT_http": "8080", "HOST_PORT_http": "8080", "HOST_ADDR_http": "192.0.2.1:8080", "HOST_IP_http": "192.0.2.1", "ALLOC_PORT_http": "8080",
		"META_level": "group", "META_LEVEL": "group", "META_only_job": "j", "META_ONLY_JOB": "j",
	}
	for k, v := range want {
		if vars["NOMAD_"+k] != v || vars["MUSTER_"+k] != v {
			t.Errorf("%s: NOMAD %q, MUSTER %q, want %q", k, vars["NOMAD_"+k], vars["MUSTER_"+k], v)
		}
	}
	for k := range vars {
		if rest, ok := strings.CutPrefix(k, "NOMAD_"); ok {
			if _, twin := vars["MUSTER_"+rest]; !twin {
				t.Errorf("%s has no twin", k)
			}
		}
	}
}

func TestNetworkOfItsOwn(t *testing.T) {
	in := input()
	in.Alloc.Ports = []structs.PortGrant{{Label: "http", Value: 20001, To: 80}}
	in.Network = &Network{IP: "172.26.64.2", Interface: "eth0"}
	vars := New(in).Vars()
	for k, v := range map[string]string{
		"IP_http": "192.0.2.1", "PORT_http": "80", "ADDR_http": "192.0.2.1:20001", "HOST_IP_http": "192.0.2.1", "HOST_PORT_http": "20001", "HOST_ADDR_http": "192.0.2.1:20001",
		"ALLOC_IP_http": "172.26.64.2", "ALLOC_PORT_http": "80", "ALLOC_ADDR_http": "172.26.64.2:80", "ALLOC_INTERFACE_http": "eth0",
	} {
		if vars["NOMAD_"+k] != v || vars["MUSTER_"+k] != v {
			t.Errorf("%s: NOMAD %q, MUSTER %q, want %q", k, vars["NOMAD_"+k], vars["MUSTER_"+k], v)
		}
	}
}

func TestReplace(t *testing.T) {
	in := input()
	in.Task.Env = map[string]string{"A": "${node.class}-${NOMAD_TASK_NAME}", "NOMAD_ALLOC_ID": "forged", "B": "${meta.rack}", "NOMAD_SECRETS_DIR": "forged"}
	e := New(in)
	for text, want := range map[string]string{
		"${node.unique.id}": "ab000000-0000-0000-0000-000000000000", "${node.unique.name}": "n1", "${node.datacenter}": "dc7", "${node.region}": "eu", "${node.class}": "big", "${node.pool}": "gpu",
		"${attr.kernel.name}": "linux", "${attr.unique.network.ip-address}": "192.0.2.1", "${meta.rack}": "r1", "${NOMAD_JOB_ID}/${MUSTER_JOB_ID}": "shop/shop",
		`${env["A"]}`: "big-web", "${env.A}": "big-web", "${ NOMAD_DC }": "dc7", "x${A}y${B}z": "xbig-webyr1z",
		"${nope}": "${nope}", "${attr.nope}": "${attr.nope}", "${": "${", "$": "$", "$${NOMAD_DC}": "$dc7", "${env[A}": "${env[A}", "plain": "plain", "": "",
		"${NOMAD_DC": "${NOMAD_DC", "${A:-default}": "${A:-default}", "${}": "${}",
	} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			if got := e.Replace(Verbatim(text)); got != text {
				t.Errorf("as it is: %q becomes %q", text, got)
			}
			if got := e.Replace(text); got != want {
				t.Errorf("%q became %q, want %q", text, got, want)
			}
		})
	}
	if e.Get("NOMAD_ALLOC_ID") == "forged" || e.Get("NOMAD_SECRETS_DIR") == "forged" {
		t.Error("a job took over the agent's own variables")
	}
	// What a replacement contains is not looked at again.
	in.Node.Meta["rack"] = "${attr.kernel.name}"
	if got := New(in).Get("B"); got != "${attr.kernel.name}" {
		t.Errorf("replaced twice: %q", got)
	}
}

// TestPerson: a task finds its own user and home, where its job does not say others.
func TestPerson(t *testing.T) {
	t.Setenv("HOME", "/root")
	in := input()
	in.Inherit, in.Task.Env = nil, map[string]string{"LOGNAME": "worker"}
	e := New(in)
	if got := e.Get("HOME"); got != "/root" {
		t.Errorf("a task of the agent's own user has the home %q", got)
	}
	e.Person("alice", "/home/alice")
	if home, user, log := e.Get("HOME"), e.Get("USER"), e.Get("LOGNAME"); home != "/home/alice" || user != "alice" || log != "worker" {
		t.Errorf("home %q, user %q, login %q", home, user, log)
	}
}

func TestConfig(t *testing.T) {
	e := New(input())
	got, err := e.Config(structs.RawConfig(`{"command":"/bin/${NOMAD_TASK_NAME}","args":["${meta.rack}",{"${NOMAD_DC}":"${nope}"}],"n":3,"b":true,"z":null}`))
	want := map[string]any{"command": "/bin/web", "args": []any{"r1", map[string]any{"dc7": "${nope}"}}, "n": 3.0, "b": true, "z": nil}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("config is %v, %v", got, err)
	}
	if m, err := e.Config(nil); err != nil || len(m) != 0 {
		t.Errorf("no config: %v, %v", m, err)
	}
	for _, bad := range []string{"[]", "3", "{", `"x"`} {
		if _, err := e.Config(structs.RawConfig(bad)); err == nil {
			t.Errorf("config %s was accepted", bad)
		}
	}
}

func TestGPUs(t *testing.T) {
	in := input()
	in.Node.Resources.Devices = []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100"}}
	if v := New(in).Vars(); v["CUDA_VISIBLE_DEVICES"] != "" || v["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("a task without a grant sees %q and %q", v["CUDA_VISIBLE_DEVICES"], v["NVIDIA_VISIBLE_DEVICES"])
	}
	in.Alloc.Grants = []structs.Grant{
		{Task: "web", Device: "nvidia/gpu/H100", Instance: "GPU-1", MemoryMiB: 1000, Compute: 50}, {Task: "other", Device: "nvidia/gpu/H100", Instance: "GPU-2"},
		{Task: "web", Device: "nvidia/gpu/H100", Instance: "GPU-3"}, {Task: "web", Device: "acme/fpga/x", Instance: "F-1"},
	}
	v := New(in).Vars()
	for k, want := range map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3", "NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-3", "MUSTER_GPU_COUNT": "2", "MUSTER_GPU_MEMORY_MIB": "1000,0", "MUSTER_GPU_COMPUTE": "50,0"} {
		if v[k] != want {
			t.Errorf("%s is %q, want %q", k, v[k], want)
		}
	}
	in.Node.Resources.Devices, in.Alloc.Grants = nil, nil
	if _, set := New(in).Vars()["CUDA_VISIBLE_DEVICES"]; set {
		t.Error("a machine without GPUs sets CUDA_VISIBLE_DEVICES")
	}
}

// TestTaskCores checks that tasks that may run together never share a core and that each gets what it asks for.
func TestTaskCores(t *testing.T) {
	mk := func(name string, cores int64, hook string, side bool) *structs.Task {
		x := &structs.Task{Name: name, Resources: structs.Resources{Cores: cores}}
		if hook != "" {
			x.Lifecycle = &structs.Lifecycle{Hook: hook, Sidecar: side}
		}
		return x
	}
	g := &structs.Group{Name: "g", Tasks: []*structs.Task{
		mk("init", 3, "prestart", false), mk("side", 1, "prestart", true), mk("a", 2, "", false), mk("b", 1, "", false),
		mk("post", 1, "poststart", false), mk("postside", 1, "poststart", true), mk("end", 4, "poststop", false), mk("none", 0, "", false),
	}}
	n := structs.GroupVector(g).Cores
	a := &structs.Allocation{Group: "g", Job: &structs.Job{Groups: []*structs.Group{g}}}
	for i := range n {
		a.Cores = append(a.Cores, 10+i)
	}
	sets := map[string][]int64{}
	for _, x := range g.Tasks {
		sets[x.Name] = a.TaskCores(x.Name)
		if int64(len(sets[x.Name])) != x.Resources.Cores {
			t.Errorf("%s got %v of %v, wants %d", x.Name, sets[x.Name], a.Cores, x.Resources.Cores)
		}
	}
	together := [][]string{{"side", "postside", "a", "b", "post"}, {"side", "init"}}
	for _, names := range together {
		seen := map[int64]string{}
		for _, name := range names {
			for _, c := range sets[name] {
				if seen[c] != "" {
					t.Errorf("%s and %s share core %d", name, seen[c], c)
				}
				seen[c] = name
			}
		}
	}
	a.Cores = a.Cores[:2]
	if got := a.TaskCores("end"); got != nil {
		t.Errorf("too few cores gave %v", got)
	}
}

func TestCPUSet(t *testing.T) {
	for want, cores := range map[string][]int64{"": nil, "3": {3}, "0-3": {0, 1, 2, 3}, "0-1,4,6-7": {7, 0, 4, 1, 6}} {
		if got := CPUSet(cores); got != want {
			t.Errorf("%v is %q, want %q", cores, got, want)
		}
	}
}

func TestCleanName(t *testing.T) {
	for in, want := range map[string]string{"a-b.c": "a_b_c", "ok_1": "ok_1", "1a": "_a", "x1-2": "x1_2", "ü": "__", "": ""} {
		t.Run(fmt.Sprintf("%q", in), func(t *testing.T) {
			if got := cleanName(in); got != want {
				t.Errorf("%q became %q, want %q", in, got, want)
			}
		})
	}
}

// TestVarsAreCopies: what is set later is not in variables that were taken before.
func TestVarsAreCopies(t *testing.T) {
	e := New(input())
	vars := e.Vars()
	if !e.Set("LATER", "x") || e.Get("LATER") != "x" {
		t.Errorf("LATER is %q", e.Get("LATER"))
	}
	vars["MINE"] = "y"
	if _, set := vars["LATER"]; set || e.Get("MINE") != "" {
		t.Errorf("shared: %v", vars)
	}
	if e := New(input()); !e.Set("NOMAD_TOKEN", "secret") || e.Get("NOMAD_JOB_ID") != "shop" || e.Get("NOMAD_TOKEN") != "secret" {
		t.Error("a variable that is set before the first look replaces the others, or is lost")
	}
}
