//go:build e2e

// Package gpu runs shared GPUs end to end on a machine that has none: a real agent finds fake GPUs through the real
// bindings, and real processes allocate their memory.
package gpu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
)

// machine is a dev agent with fake GPUs, and a program that allocates their memory.
type machine struct {
	t     *testing.T
	api   *harness.API
	dir   string
	state string
	addr  string
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func newMachine(t *testing.T, gpus string) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		harness.NotRun(t, "tasks are isolated by root only")
	}
	dir, err := os.MkdirTemp("/var/tmp", "muster-gpu-") // not below a directory that only root may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	libs := filepath.Join(dir, "lib")
	if err := lib.Build(libs); errors.Is(err, lib.ErrNoCompiler) {
		harness.NotRun(t, "no C compiler for the fake driver libraries")
	} else if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	if err := lib.Sources(src); err != nil {
		t.Fatal(err)
	}
	if err := lib.Compile("-o", filepath.Join(dir, "user"), filepath.Join(src, "user.c"), filepath.Join(libs, lib.CUDA)); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "agent.hcl")
	port := freePort(t)
	if err := os.WriteFile(conf, fmt.Appendf(nil, "ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n", port, freePort(t), freePort(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, addr: fmt.Sprintf("http://127.0.0.1:%d", port)}
	agent := harness.Start(t, nil, "agent", []string{fakegpu.DirEnv + "=" + libs}, "agent", "-dev", "-dev-gpus="+gpus, "-config", conf)
	t.Cleanup(func() {
		agent.Signal(syscall.SIGINT)
		if err := agent.WaitExit(30 * time.Second); err != nil {
			t.Errorf("the agent's end: %v", err)
		}
	})
	m.api = harness.NewAPI(t, nil, "", m.addr)
	path := regexp.MustCompile(regexp.QuoteMeta(fakegpu.Env) + `="?([^ "\n]+)`)
	harness.Eventually(t, 20*time.Second, "the agent finds its GPUs", func() (bool, string) {
		if got := path.FindStringSubmatch(agent.Log.String()); got != nil {
			m.state = got[1]
		}
		var nodes []struct{ Status string }
		err := m.api.Call("GET", "/v1/nodes", nil, &nodes)
		return m.state != "" && err == nil && len(nodes) == 1 && nodes[0].Status == "ready", fmt.Sprint(nodes, err)
	})
	return m
}

// run submits a job of one task that has a share of a GPU and allocates so much of it.
func (m *machine) run(name, share string, allocMiB int, more string) {
	m.t.Helper()
	text := fmt.Sprintf(`
job %q {
  type = "batch"
  group "g" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "t" {
      driver = "exec"
      env {
        LD_LIBRARY_PATH      = %q
        MUSTER_FAKEGPU_STATE = %q
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "(echo init; echo ctx 0; echo alloc %d; echo info; sleep 600) | %s/user"]
      }
      resources {
        cpu    = 20
        memory = 32
        gpu {
          memory = %q
          %s
        }
      }
    }
  }
}
`, name, filepath.Join(m.dir, "lib"), m.state, allocMiB<<20, m.dir, share, more)
	path := filepath.Join(m.dir, name+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
	if out, err := m.muster("job", "run", "-detach", path); err != nil {
		m.t.Fatalf("job run %s: %v\n%s", name, err, out)
	}
}

func (m *machine) muster(args ...string) (string, error) {
	cmd := exec.Command(harness.Bin(m.t), args...)
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+m.addr)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// gpuOf waits until a job's only allocation is in a state, and gives the GPU it has with how the share is enforced.
func (m *machine) gpuOf(job, status string) (gpu, backend string, alloc harness.Alloc) {
	m.t.Helper()
	harness.Eventually(m.t, 30*time.Second, job+" is "+status, func() (bool, string) {
		as, err := m.api.Allocs(job)
		if err != nil || len(as) != 1 || as[0].ClientStatus != status {
			return false, fmt.Sprintf("%+v %v", as, err)
		}
		alloc = as[0]
		return true, ""
	})
	var full struct {
		AllocatedResources struct {
			Tasks map[string]struct {
				Devices []struct {
					DeviceIDs []string
					Shares    []struct {
						DeviceID string
						Backend  string
					}
				}
			}
		}
	}
	if err := m.api.Call("GET", "/v1/allocation/"+alloc.ID, nil, &full); err != nil {
		m.t.Fatal(err)
	}
	d := full.AllocatedResources.Tasks["t"].Devices
	if len(d) != 1 || len(d[0].Shares) != 1 || len(d[0].DeviceIDs) != 1 {
		m.t.Fatalf("%s has devices %+v", job, d)
	}
	return d[0].DeviceIDs[0], d[0].Shares[0].Backend, alloc
}

// TestSharesAreWatched puts three tasks of 20 GiB on one GPU and a fourth of 30 GiB on the other. One of the three
// allocates more than its share: it is stopped with an event that says how much, and the others go on.
func TestSharesAreWatched(t *testing.T) {
	m := newMachine(t, "2xH100")
	m.run("one", "20GiB", 19*1024, `enforce = "watch"`)
	first, backend, _ := m.gpuOf("one", "running")
	if backend != "watch" {
		t.Errorf("the share is enforced by %q", backend)
	}
	m.run("two", "20GiB", 18*1024, `enforce = "watch"`)
	m.run("greedy", "20GiB", 35*1024, `enforce = "watch"`)
	for _, job := range []string{"two", "greedy"} {
		harness.Eventually(t, 30*time.Second, job+" is placed", func() (bool, string) {
			as, err := m.api.Allocs(job)
			return err == nil && len(as) == 1, fmt.Sprint(as, err)
		})
	}
	m.run("big", "30GiB", 1024, `enforce = "watch"`)
	if other, _, _ := m.gpuOf("big", "running"); other == first {
		t.Error("a share of 30 GiB is on a GPU that has less left")
	}
	if g, _, _ := m.gpuOf("two", "running"); g != first {
		t.Errorf("the second share of 20 GiB is on GPU %s, the first on %s", g, first)
	}
	g, _, a := m.gpuOf("greedy", "failed")
	if g != first {
		t.Errorf("the greedy one was on GPU %s, the others on %s", g, first)
	}
	var said string
	for _, e := range a.TaskStates["t"].Events {
		if e.Type == "GPU Memory Exceeded" {
			said = e.DisplayMessage
		}
	}
	if !strings.Contains(said, "its share is 20480 MiB") || !strings.Contains(said, first) {
		t.Errorf("the event says %q", said)
	}
	for _, job := range []string{"one", "two", "big"} {
		m.gpuOf(job, "running")
	}
	if out, err := m.muster("alloc", "status", a.ID); err != nil || !strings.Contains(out, "GPU Memory Exceeded") || !strings.Contains(out, "enforced by watch") {
		t.Errorf("alloc status: %v\n%s", err, out)
	}
}

// TestEnforcementIsNeverWeaker asks for more than the node has: nothing is placed, and the reason is told. "none" is
// what it says.
func TestEnforcementIsNeverWeaker(t *testing.T) {
	m := newMachine(t, "1xH100")
	m.run("free", "10GiB", 30*1024, `enforce = "none"`)
	if _, backend, _ := m.gpuOf("free", "running"); backend != "none" {
		t.Errorf("enforce = none became %q", backend)
	}
	m.run("strict", "10GiB", 1024, `enforce = "hard"`)
	harness.Eventually(t, 20*time.Second, "the strict job waits", func() (bool, string) {
		out, err := m.muster("job", "why", "strict")
		return err == nil && strings.Contains(out, "hard"), out
	})
	if as, err := m.api.Allocs("strict"); err != nil || len(as) != 0 {
		t.Errorf("a job that asks for a hard wall was placed where none is: %v %v", as, err)
	}
	time.Sleep(4 * time.Second) // long enough for several looks
	m.gpuOf("free", "running")
}
