package harness

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/freeport"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// Fleet is a few real agents on this machine whose GPUs are made up: the first is a server as well. Tests drive it as a
// person does, with the command line.
type Fleet struct {
	T   testing.TB
	Dir string
	API *API
	RPC string // address of the server
	env []string
	gpu map[string]*fakegpu.File

	agents map[string]*Proc
}

// FleetNode is one agent of a Fleet.
type FleetNode struct {
	Name   string
	GPUs   string // as -dev-gpus takes them: "8xH100"
	Meta   map[string]string
	Pool   string // node pool; "" for the default one
	Server string // more settings of the server. For the first node
	ACL    bool   // the server demands tokens; the fleet's commands have one that may do everything. For the first node

	Adapters []Adapter // RDMA adapters near some of the GPUs
}

// StartFleet starts the agents and waits until all of them are ready and their GPUs are seen. It needs root.
func StartFleet(t testing.TB, nodes ...FleetNode) *Fleet {
	t.Helper()
	if os.Geteuid() != 0 {
		NotRun(t, "the supervisor's cgroups need root")
	}
	f := &Fleet{T: t, Dir: t.TempDir(), gpu: map[string]*fakegpu.File{}, agents: map[string]*Proc{}}
	t.Cleanup(func() { KillBelow(t, f.Dir) })
	rpc := FreePort(t)
	f.RPC = fmt.Sprintf("127.0.0.1:%d", rpc)
	for i, n := range nodes {
		http, own, servers, more := FreePort(t), rpc, "", "server {\n  enabled = true\n  bootstrap_expect = 1\n"+n.Server+"}\n"
		if i > 0 {
			own, servers, more = FreePort(t), fmt.Sprintf("  servers = [%q]\n", f.RPC), ""
		} else {
			addr := fmt.Sprintf("http://127.0.0.1:%d", http)
			f.API, f.env = NewAPI(t, nil, "", addr), append(os.Environ(), "MUSTER_ADDR="+addr)
		}
		meta := ""
		for k, v := range n.Meta {
			meta += fmt.Sprintf("    %s = %q\n", k, v)
		}
		pool := ""
		if n.Pool != "" {
			pool = fmt.Sprintf("  node_pool = %q\n", n.Pool)
		}
		if n.ACL {
			more += "acl {\n  enabled = true\n}\n"
		}
		conf := f.File(n.Name+".agent.hcl", fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\n"+
			"plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\nclient {\n  enabled = true\n%s%s  meta {\n%s  }\n}\n", n.Name, filepath.Join(f.Dir, n.Name), http, own, FreePort(t), servers, pool, meta)+more)
		command := []string{Bin(t)}
		if len(n.Adapters) > 0 {
			command = withAdapters(t, f.Hardware(n.Name), n.GPUs, n.Adapters)
		}
		p := StartProgram(t, nil, command[0], n.Name, nil, append(command[1:], "agent", "-config", conf, "-dev-gpus="+n.GPUs)...)
		f.agents[n.Name] = p
		state := regexp.MustCompile(regexp.QuoteMeta(fakegpu.Env) + `="?([^ "\n]+)`)
		Eventually(t, 30*time.Second, n.Name+" makes up its GPUs", func() (bool, string) {
			got := state.FindStringSubmatch(p.Log.String())
			if got != nil {
				f.gpu[n.Name] = &fakegpu.File{Path: got[1]}
			}
			return got != nil, p.Log.Tail(5)
		})
		if n.ACL {
			var boss struct{ SecretID string }
			Eventually(t, 30*time.Second, "access control has a first token", func() (bool, string) {
				out, err := f.Muster("acl", "bootstrap", "-json")
				return err == nil && json.Unmarshal([]byte(out), &boss) == nil, out
			})
			f.API.Token, f.env = boss.SecretID, append(f.env, "MUSTER_TOKEN="+boss.SecretID)
		}
	}
	Eventually(t, 60*time.Second, "every node has its GPUs", func() (bool, string) {
		var list []struct {
			Name, Status  string
			NodeResources struct{ Devices []struct{ Type string } }
		}
		err := f.API.Call("GET", "/v1/nodes?resources=true", nil, &list)
		good := err == nil && len(list) == len(nodes)
		for _, n := range list {
			good = good && n.Status == "ready" && len(n.NodeResources.Devices) > 0
		}
		return good, fmt.Sprint(list, err)
	})
	return f
}

// FreePort returns a free port.
func FreePort(t testing.TB) int {
	t.Helper()
	p, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// GPUs returns the state of the fake driver of a node.
func (f *Fleet) GPUs(node string) *fakegpu.File { return f.gpu[node] }

// Hardware returns the directory with the files that the kernel has for a node's adapters (see withAdapters).
func (f *Fleet) Hardware(node string) string { return filepath.Join(f.Dir, node+".hardware") }

// Lose ends a node as a loss of power does: the agent, its supervisor and all tasks at once.
func (f *Fleet) Lose(node string) {
	f.T.Helper()
	f.agents[node].Kill9()
	KillBelow(f.T, filepath.Join(f.Dir, node))
}

// As is the fleet for another user: its commands have a token of that name, with the rights of the fleet's own.
func (f *Fleet) As(name string) *Fleet {
	f.T.Helper()
	var token struct{ SecretID string }
	if out := f.Must("acl", "token", "create", "-name", name, "-type", "management", "-json"); json.Unmarshal([]byte(out), &token) != nil {
		f.T.Fatalf("the token of %s: %s", name, out)
	}
	own := *f
	own.env = append(slices.Clone(f.env), "MUSTER_TOKEN="+token.SecretID)
	return &own
}

// File writes a file in the fleet's directory and gives its path.
func (f *Fleet) File(name, text string) string {
	f.T.Helper()
	path := filepath.Join(f.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.T.Fatal(err)
	}
	return path
}

// Muster runs a command and gives what it printed.
func (f *Fleet) Muster(args ...string) (string, error) {
	cmd := exec.Command(Bin(f.T), args...)
	cmd.Dir, cmd.Env = f.Dir, f.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Must is Muster for commands that must succeed.
func (f *Fleet) Must(args ...string) string {
	f.T.Helper()
	out, err := f.Muster(args...)
	if err != nil {
		f.T.Fatalf("muster %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Work is a batch job of one group and task.
type Work struct {
	ID        string
	Namespace string
	Settings  string // of the job
	Group     string // settings of the group
	Driver    string // "": raw_exec
	Script    string // of a shell; "": it runs for ever
	GPUs      string // the gpu block's arguments: "count = 2"; "": none
	Resources string // more of the task's resources
}

// HCL returns the job file.
func (w *Work) HCL() string {
	driver, script, gpu, ns := w.Driver, w.Script, "", ""
	if driver == "" {
		driver = "raw_exec"
	}
	if script == "" {
		script = "sleep 1000"
	}
	if w.GPUs != "" {
		gpu = "gpu = { " + w.GPUs + " }"
	}
	if w.Namespace != "" {
		ns = fmt.Sprintf("namespace = %q", w.Namespace)
	}
	return fmt.Sprintf(`
job %q {
  type = "batch"
  %s
  %s
  group "g" {
    %s
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "main" {
      driver = %q
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      resources {
        cpu    = 10
        memory = 16
        %s
        %s
      }
    }
  }
}
`, w.ID, ns, w.Settings, w.Group, driver, script, gpu, w.Resources)
}

// Run submits work.
func (f *Fleet) Run(w Work) {
	f.T.Helper()
	f.Must("job", "run", "-detach", f.File(w.ID+".hcl", w.HCL()))
}

// Running waits until so many allocations of a job run at once, and gives all of the job's.
func (f *Fleet) Running(w Work, n int) []Alloc {
	f.T.Helper()
	ns := w.Namespace
	if ns == "" {
		ns = "default"
	}
	var as []Alloc
	Eventually(f.T, 60*time.Second, w.ID+" runs", func() (bool, string) {
		as = nil
		err := f.API.Call("GET", "/v1/job/"+w.ID+"/allocations?all=true&namespace="+ns, nil, &as)
		if err == nil && Count(as, "running") == n {
			return true, ""
		}
		why, _ := f.Muster("job", "why", "-namespace", ns, w.ID)
		return false, fmt.Sprint(err, as, why)
	})
	return as
}

// Stop ends and forgets jobs, and waits until nothing of them runs.
func (f *Fleet) Stop(ws ...Work) {
	f.T.Helper()
	for _, w := range ws {
		ns := w.Namespace
		if ns == "" {
			ns = "default"
		}
		f.Must("job", "stop", "-yes", "-detach", "-namespace", ns, w.ID)
		Eventually(f.T, 60*time.Second, w.ID+" has ended", func() (bool, string) {
			var as []Alloc
			err := f.API.Call("GET", "/v1/job/"+w.ID+"/allocations?all=true&namespace="+ns, nil, &as)
			for _, a := range as {
				if a.ClientStatus == "running" || a.ClientStatus == "pending" {
					return false, fmt.Sprintf("%+v", a)
				}
			}
			return err == nil, fmt.Sprint(err)
		})
		f.Must("job", "stop", "-yes", "-purge", "-detach", "-namespace", ns, w.ID)
	}
}
