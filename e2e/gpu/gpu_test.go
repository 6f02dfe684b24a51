//go:build e2e

// Package gpu runs shared GPUs end to end on a machine that has none: a real agent finds fake GPUs through the real
// bindings, and real processes allocate their memory.
package gpu

import (
	"errors"
	"fmt"
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

	agent  *harness.Proc
	deaths int // of the process that asks the driver
}

// at returns the machine for a subtest.
func (m *machine) at(t *testing.T) *machine {
	sub := *m
	sub.t = t
	return &sub
}

func newMachine(t *testing.T, gpus string, absent ...string) *machine {
	t.Helper()
	return newMachineWith(t, gpus, "", absent...)
}

// newMachineWith has more in its agent's configuration.
func newMachineWith(t *testing.T, gpus, more string, absent ...string) *machine {
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
	if err := lib.Build(libs, absent...); errors.Is(err, lib.ErrNoCompiler) {
		harness.NotRun(t, "no C compiler for the fake driver libraries")
	} else if err != nil {
		t.Fatal(err)
	}
	src := t.TempDir()
	if err := lib.Sources(src); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join(src, "user.c")
	for name, args := range map[string][]string{
		"gpu-user":    {"-DLOADER", user, "-ldl"},                      // finds the driver at run time, as CUDA's runtime does
		"linked-user": {user, filepath.Join(libs, lib.CUDA), "-ldl"},   // is linked with it
		"static-user": {"-static", user, filepath.Join(src, "cuda.c")}, // has it built in: nothing can be loaded into it
	} {
		args = append([]string{"-o", filepath.Join(dir, name)}, append(args, "-lpthread")...)
		if err := lib.Compile(args...); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(dir, "agent.hcl")
	port := harness.FreePort(t)
	if err := os.WriteFile(conf, fmt.Appendf(nil, "ports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n%s", port, harness.FreePort(t), harness.FreePort(t), more), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, addr: fmt.Sprintf("http://127.0.0.1:%d", port)}
	agent := harness.Start(t, nil, "agent", []string{fakegpu.DirEnv + "=" + libs}, "agent", "-dev", "-dev-gpus="+gpus, "-config", conf)
	t.Cleanup(func() {
		agent.Signal(syscall.SIGINT)
		if err := agent.WaitExit(time.Minute); err != nil {
			t.Errorf("the agent's end: %v", err)
		}
	})
	m.agent = agent
	m.api = harness.NewAPI(t, nil, "", m.addr)
	path := regexp.MustCompile(regexp.QuoteMeta(fakegpu.Env) + `="?([^ "\n]+)`)
	harness.Eventually(t, time.Minute, "the agent finds its GPUs", func() (bool, string) {
		if got := path.FindStringSubmatch(agent.Log.String()); got != nil {
			m.state = got[1]
		}
		var nodes []struct{ Status string }
		err := m.api.Call("GET", "/v1/nodes", nil, &nodes)
		return m.state != "" && err == nil && len(nodes) == 1 && nodes[0].Status == "ready", fmt.Sprint(nodes, err)
	})
	return m
}

// command is a shell command around the program that uses GPU memory: @ is the directory of the programs.
type command string

// holds returns the program that takes so many MiB and keeps them.
func holds(mib int) command { return command(fmt.Sprintf("exec @/gpu-user hold %d", mib)) }

// run submits a job of one task that has a share of a GPU, until the test ends. gpu is the inside of its gpu block.
func (m *machine) run(name, gpu string, c command, more ...string) {
	m.t.Helper()
	if out, err := m.submit(name, gpu, c, more...); err != nil {
		m.t.Fatalf("job run %s: %v\n%s", name, err, out)
	}
	m.t.Cleanup(func() { m.muster("job", "stop", "-purge", "-detach", name) })
}

// submit submits such a job, and returns what the command printed.
func (m *machine) submit(name, gpu string, c command, more ...string) (out string, err error) {
	m.t.Helper()
	script := strings.ReplaceAll(string(c), "@", m.dir)
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
      config {
        command = "/bin/bash"
        args    = ["-c", %q]
      }
      %s
      resources {
        cpu    = 20
        memory = 64
        %s
      }
    }
  }
}
`, name, script, strings.Join(more, "\n"), gpu)
	if strings.Contains(strings.Join(more, ""), "RESCHEDULE") {
		text = strings.Replace(strings.Replace(text, "attempts  = 0\n      unlimited = false", "attempts = 2\n      interval = \"1h\"\n      delay = \"5s\"\n      delay_function = \"constant\"\n      unlimited = false", 1), "# RESCHEDULE", "", 1)
	}
	path := filepath.Join(m.dir, name+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
	return m.muster("job", "run", "-detach", path)
}

// share is a gpu block for a share of a GPU.
func share(memory string, more ...string) string {
	return fmt.Sprintf("gpu {\nmemory = %q\n%s\n}", memory, strings.Join(more, "\n"))
}

// says waits until a job's task has written a line that contains the text.
func (m *machine) says(job, text string) string {
	m.t.Helper()
	var out string
	harness.Eventually(m.t, 30*time.Second, fmt.Sprintf("%s says %q", job, text), func() (bool, string) {
		as, err := m.api.Allocs(job)
		if err != nil || len(as) == 0 {
			return false, fmt.Sprint(as, err)
		}
		out, _ = m.muster("alloc", "logs", "-stdout", as[len(as)-1].ID)
		return strings.Contains(out, text), out
	})
	return out
}

// event waits until a job's task has an event of a kind that contains the text.
func (m *machine) event(job, kind, text string) string {
	m.t.Helper()
	var said string
	harness.Eventually(m.t, 40*time.Second, fmt.Sprintf("%s has event %q with %q", job, kind, text), func() (bool, string) {
		as, err := m.api.Allocs(job)
		if err != nil {
			return false, err.Error()
		}
		all := ""
		for _, a := range as {
			for _, e := range a.TaskStates["t"].Events {
				all += e.Type + ": " + e.DisplayMessage + "\n"
				if e.Type == kind && strings.Contains(e.DisplayMessage, text) {
					said = e.DisplayMessage
					return true, ""
				}
			}
		}
		return false, all
	})
	return said
}

// waits waits until a job is not placed, and "job why" contains the text.
func (m *machine) waits(job, text string) {
	m.t.Helper()
	harness.Eventually(m.t, 20*time.Second, job+" waits", func() (bool, string) {
		out, err := m.muster("job", "why", job)
		return err == nil && strings.Contains(out, text), out
	})
	if as, err := m.api.Allocs(job); err != nil || len(as) != 0 {
		m.t.Errorf("%s was placed: %v %v", job, as, err)
	}
}

// stop ends a job and waits until nothing of it holds a GPU.
func (m *machine) stop(jobs ...string) {
	m.t.Helper()
	for _, job := range jobs {
		m.muster("job", "stop", "-detach", job)
	}
	for _, job := range jobs {
		harness.Eventually(m.t, 30*time.Second, job+" has ended", func() (bool, string) {
			as, err := m.api.Allocs(job)
			return err == nil && harness.Count(as, "running") == 0 && harness.Count(as, "pending") == 0, fmt.Sprint(as, err)
		})
	}
}

// file returns the state of the made-up GPUs.
func (m *machine) file() *fakegpu.File { return &fakegpu.File{Path: m.state} }

func (m *machine) edit(change func(*fakegpu.State)) {
	m.t.Helper()
	if err := m.file().Edit(change); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) gpus() *fakegpu.State {
	m.t.Helper()
	s, err := m.file().Read()
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

// device is one GPU of the node as the servers know it.
type device struct {
	Group      string
	ID         string
	Healthy    bool
	HealthDesc string `json:"HealthDescription"`
	Attributes map[string]string
	Node       map[string]string // attributes of the node
}

// devices asks the servers for the node's GPUs.
func (m *machine) devices() map[string]device {
	m.t.Helper()
	var nodes []struct{ ID string }
	if err := m.api.Call("GET", "/v1/nodes", nil, &nodes); err != nil || len(nodes) != 1 {
		m.t.Fatal(nodes, err)
	}
	var node struct {
		Attributes    map[string]string
		NodeResources struct {
			Devices []struct {
				Vendor, Type, Name string
				Instances          []device
				Attributes         map[string]struct {
					Int    *int64
					String *string
					Bool   *bool
					Unit   string
				}
			}
		}
	}
	if err := m.api.Call("GET", "/v1/node/"+nodes[0].ID, nil, &node); err != nil {
		m.t.Fatal(err)
	}
	out := map[string]device{}
	for _, g := range node.NodeResources.Devices {
		attrs := map[string]string{}
		for k, a := range g.Attributes {
			switch {
			case a.Int != nil:
				attrs[k] = strings.TrimSpace(fmt.Sprint(*a.Int, " ", a.Unit))
			case a.String != nil:
				attrs[k] = *a.String
			case a.Bool != nil:
				attrs[k] = fmt.Sprint(*a.Bool)
			}
		}
		for _, in := range g.Instances {
			in.Group, in.Attributes, in.Node = g.Name, attrs, node.Attributes
			out[in.ID] = in
		}
	}
	return out
}

// until waits until the node's GPUs are so.
func (m *machine) until(what string, ok func(map[string]device) bool) {
	m.t.Helper()
	m.within(20*time.Second, what, ok)
}

func (m *machine) within(d time.Duration, what string, ok func(map[string]device) bool) {
	m.t.Helper()
	harness.Eventually(m.t, d, what, func() (bool, string) {
		all := m.devices()
		return ok(all), fmt.Sprintf("%+v", all)
	})
}

// relook makes the agent detect everything again: a fault ends the process that asks the driver.
func (m *machine) relook() {
	m.t.Helper()
	if err := m.file().Crash("nvmlDeviceGetTemperature"); err != nil {
		m.t.Fatal(err)
	}
	harness.Eventually(m.t, 20*time.Second, "the driver's process dies", func() (bool, string) {
		return strings.Count(m.agent.Log.String(), "the process that asks the NVIDIA driver ended") > m.deaths, ""
	})
	m.deaths = strings.Count(m.agent.Log.String(), "the process that asks the NVIDIA driver ended")
	if err := m.file().Heal("nvmlDeviceGetTemperature"); err != nil {
		m.t.Fatal(err)
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
