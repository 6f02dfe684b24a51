//go:build e2e

// Package gang runs gangs and preemption with real agents and processes on nodes whose GPUs are made up.
package gang

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// cluster is a server with a client, and another client, on one machine.
type cluster struct {
	t   *testing.T
	dir string
	api *harness.API
	env []string
}

func start(t *testing.T) *cluster {
	dir := t.TempDir()
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	http, rpc := harness.FreePort(t), harness.FreePort(t)
	conf := func(name, text string) string {
		path := filepath.Join(dir, name+".hcl")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	common := `
name      = %q
data_dir  = %q
bind_addr = "127.0.0.1"
ports {
  http = %d
  rpc  = %d
  serf = %d
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
client {
  enabled = true
  %s
}
`
	one := conf("one", fmt.Sprintf(common, "one", filepath.Join(dir, "one"), http, rpc, harness.FreePort(t), "")+"server {\n  enabled = true\n  bootstrap_expect = 1\n}\n")
	two := conf("two", fmt.Sprintf(common, "two", filepath.Join(dir, "two"), harness.FreePort(t), harness.FreePort(t), harness.FreePort(t), fmt.Sprintf("servers = [\"127.0.0.1:%d\"]", rpc)))
	harness.Start(t, nil, "one", nil, "agent", "-config", one, "-dev-gpus=4xH100")
	harness.Start(t, nil, "two", nil, "agent", "-config", two, "-dev-gpus=4xH100")
	addr := fmt.Sprintf("http://127.0.0.1:%d", http)
	c := &cluster{t: t, dir: dir, api: harness.NewAPI(t, nil, "", addr), env: append(os.Environ(), "MUSTER_ADDR="+addr)}
	harness.Eventually(t, 60*time.Second, "two nodes with GPUs", func() (bool, string) {
		out, err := c.muster("gpu", "list")
		return err == nil && strings.Contains(out, "H100") && strings.Contains(out, " 8 "), out
	})
	return c
}

func (c *cluster) muster(args ...string) (string, error) {
	cmd := exec.Command(harness.Bin(c.t), args...)
	cmd.Dir, cmd.Env = c.dir, c.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// run submits a batch job of one group.
func (c *cluster) run(id, settings, group, script string, gpus int) {
	c.t.Helper()
	gpu := ""
	if gpus > 0 {
		gpu = fmt.Sprintf("gpu = { count = %d }", gpus)
	}
	text := fmt.Sprintf(`
job %q {
  type = "batch"
  %s
  group "g" {
    %s
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      resources {
        cpu    = 10
        memory = 16
        %s
      }
    }
  }
}
`, id, settings, group, script, gpu)
	path := filepath.Join(c.dir, id+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if out, err := c.muster("job", "run", "-detach", path); err != nil {
		c.t.Fatalf("job run %s: %v\n%s\n%s", id, err, out, text)
	}
}

// running waits until so many allocations of a job run at once, and gives them.
func (c *cluster) running(id string, n int) []harness.Alloc {
	c.t.Helper()
	var as []harness.Alloc
	harness.Eventually(c.t, 120*time.Second, id+" runs", func() (bool, string) {
		var err error
		as, err = c.api.Allocs(id)
		why, _ := c.muster("job", "why", id)
		return err == nil && harness.Count(as, "running") == n, fmt.Sprint(err, as, why)
	})
	return as
}

func (c *cluster) ended(id string) {
	c.t.Helper()
	harness.Eventually(c.t, 60*time.Second, id+" ends well", func() (bool, string) {
		as, err := c.api.Allocs(id)
		return err == nil && harness.Count(as, "complete") > 0 && harness.Count(as, "running")+harness.Count(as, "pending") == 0, fmt.Sprint(err, as)
	})
}

func (c *cluster) why(id string, want ...string) {
	c.t.Helper()
	harness.Eventually(c.t, 20*time.Second, "why "+id, func() (bool, string) {
		out, err := c.muster("job", "why", id)
		for _, w := range want {
			if !strings.Contains(out, w) {
				return false, fmt.Sprintf("want %q in\n%s", w, out)
			}
		}
		return err == nil, out
	})
}

// TestGangAndPreemption: a gang waits for two whole nodes and says so; a smaller job runs past it; a job of high
// priority takes the place of one that saves its state; then the gang starts, all at once, and the victim continues
// from its checkpoint.
func TestGangAndPreemption(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "the supervisor's cgroups need root")
	}
	c := start(t)
	state, stop := filepath.Join(c.dir, "state"), filepath.Join(c.dir, "stop")

	// The filler counts, saves the count on the notice, and continues from it.
	c.run("filler", `priority = 20`, `checkpoint = { signal = "SIGUSR1", on = ["preempt"], grace = "30s" }`, fmt.Sprintf(
		`n=0; [ -f %[1]s ] && n=$(cat %[1]s) && echo "resumed from $n"; trap 'echo $n > %[1]s; echo "saved $n"; exit 0' USR1; while [ ! -f %[2]s ]; do n=$((n+1)); sleep 0.1; done`, state, stop), 4)
	first := c.running("filler", 1)[0]

	c.run("gang", `priority = 50`, "count = 2\n    gang = { timeout = \"1m\" }", "sleep 15", 4)
	c.why("gang", "GANG", "1 of 2 members found")
	if as, err := c.api.Allocs("gang"); err != nil || len(as) != 0 {
		t.Fatalf("the gang waits, and has %v %v", as, err)
	}

	if out, err := c.muster("job", "status", "gang"); err != nil || !strings.Contains(out, "State   = waiting") || !strings.Contains(out, "Missing = 2 members without a place: 1 of 2 members found; 2 nodes: too little nvidia/gpu") {
		t.Errorf("job status of a gang that waits: %v\n%s", err, out)
	}

	// Half a node is enough for the next one, and it is over before the gang could start.
	c.run("small", "priority = 50\n  runtime = { expected = \"2s\", limit = \"5s\" }", "", "sleep 1; echo done", 2)
	c.ended("small")

	if out, err := c.muster("operator", "scheduler", "set-config", "-preempt-batch-scheduler=true"); err != nil {
		t.Fatalf("set-config: %v\n%s", err, out)
	}
	// It needs both nodes: one is free, on the other one it waits for the filler to save its state.
	c.run("urgent", `priority = 90`, "count = 2\n    gang = { timeout = \"2m\" }", "sleep 3", 4)
	c.running("urgent", 2)
	as, err := c.api.Allocs("filler")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if a.ID != first.ID {
			continue
		}
		told := ""
		for _, e := range a.TaskStates["main"].Events {
			if e.Type == "Checkpoint" {
				told = e.DisplayMessage
			}
		}
		if a.DesiredStatus != "evict" || a.ClientStatus != "complete" || !strings.Contains(told, "preempted") {
			t.Errorf("the victim is %s and %s; it was told %q", a.DesiredStatus, a.ClientStatus, told)
		}
	}
	saved, err := os.ReadFile(state)
	if err != nil || strings.TrimSpace(string(saved)) == "0" {
		t.Fatalf("the victim saved %q, %v", saved, err)
	}
	c.ended("urgent")
	log, err := c.muster("operator", "decisions", "-kind", "preempt", "-job", "filler", "-o", "wide")
	if err != nil || !strings.Contains(log, "urgent") || !strings.Contains(log, "filler") || !strings.Contains(log, "GPU seconds are lost") {
		t.Errorf("the decision log has no row of this preemption: %v\n%s", err, log)
	}

	// The gang comes before the filler, whose priority is lower: its reserved nodes are not given to work of unknown
	// run time.
	nodes := map[string]bool{}
	for _, a := range c.running("gang", 2) {
		nodes[a.NodeName] = true
	}
	if len(nodes) != 2 {
		t.Errorf("the gang runs on %v", nodes)
	}

	// The filler is back, with what it had.
	harness.Eventually(t, 60*time.Second, "the victim goes on", func() (bool, string) {
		out, err := c.muster("alloc", "logs", "-stdout", "-job", "filler", "main")
		why, _ := c.muster("job", "why", "filler")
		return err == nil && strings.Contains(out, "resumed from "+strings.TrimSpace(string(saved))), out + why
	})
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.ended("filler")
}
