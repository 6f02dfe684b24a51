//go:build e2e

package dev

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

// variableJob reads its own variable into a file, and the job's into its environment. On SIGHUP the task prints the
// file's content; the script of the third template prints it by itself.
const variableJob = `job "vars" {
  type = "service"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo start $TOKEN $(cat local/conf); trap 'echo hup $(cat local/conf)' HUP; while :; do sleep 0.1; done"]
      }
      template {
        data          = "{{ with nomadVar \"nomad/jobs/vars/g/t\" }}password={{ .password }}{{ end }}"
        destination   = "local/conf"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        splay         = "0s"
      }
      template {
        data        = "TOKEN={{ with nomadVar \"nomad/jobs/vars\" }}{{ .token }}{{ end }}"
        destination = "secrets/env"
        env         = true
        splay       = "0s"
      }
      template {
        data        = "{{ range nomadVarList \"nomad/jobs\" }}{{ .Path }} {{ end }}"
        destination = "local/list"
        change_mode = "script"
        change_script {
          command = "/bin/sh"
          args    = ["-c", "cat $NOMAD_TASK_DIR/list > $NOMAD_TASK_DIR/seen"]
        }
        splay = "0s"
      }
    }
  }
}
`

// TestVariablesReachTasks: a task waits for the variable that its template names and says so, starts when it is written, and
// is signalled, restarted or its script run when it changes. The agent's log and the job's events have no values.
func TestVariablesReachTasks(t *testing.T) {
	dir := t.TempDir()
	port := harness.FreePort(t)
	conf, job := filepath.Join(dir, "ports.hcl"), filepath.Join(dir, "vars.hcl")
	for file, text := range map[string]string{job: variableJob,
		conf: fmt.Sprintf("log_level = \"TRACE\"\nports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", port, harness.FreePort(t), harness.FreePort(t))} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := fmt.Sprintf("http://127.0.0.1:%d", port)
	run := func(stdin string, args ...string) (string, error) {
		cmd := exec.Command(harness.Bin(t), args...)
		cmd.Dir, cmd.Env, cmd.Stdin = dir, append(os.Environ(), "MUSTER_ADDR="+addr), strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(stdin string, args ...string) string {
		t.Helper()
		out, err := run(stdin, args...)
		if err != nil {
			t.Fatalf("muster %v: %v\n%s", args, err, out)
		}
		return out
	}
	agent := harness.Start(t, nil, "dev", nil, "agent", "-dev", "-config", conf)
	harness.Eventually(t, 30*time.Second, "job run", func() (bool, string) {
		out, err := run("", "job", "run", "-detach", job)
		return err == nil, out
	})
	has := func(what, want string, args ...string) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, what, func() (bool, string) {
			out, err := run("", args...)
			return err == nil && strings.Contains(out, want), out
		})
	}
	has("an event that names what is missing", "Missing: nomad.var.block(nomad/jobs/vars/g/t@default.global), nomad.var.block(nomad/jobs/vars@default.global)", "operator", "api", "/v1/job/vars/allocations")
	must("", "var", "put", "nomad/jobs/vars/g/t", "password=@-")
	if out, err := run("", "var", "put", "nomad/jobs/vars/g/t", "password=x"); err == nil || !strings.Contains(out, "-force") {
		t.Errorf("overwritten without -force: %v\n%s", err, out)
	}
	must("PLANTED-ONE", "var", "put", "-force", "nomad/jobs/vars/g/t", "password=@-")
	must("PLANTED-TOKEN", "var", "put", "nomad/jobs/vars", "token=@-")
	logs := []string{"alloc", "logs", "-stdout", "-job", "vars"}
	has("the start with both", "start PLANTED-TOKEN password=PLANTED-ONE\n", logs...)

	changed := time.Now()
	must("PLANTED-TWO", "var", "put", "-force", "nomad/jobs/vars/g/t", "password=@-")
	has("the signal", "hup password=PLANTED-TWO\n", logs...)
	t.Logf("from the change of the variable to what the task says of it: %s", time.Since(changed).Round(time.Millisecond))
	if out := must("", logs...); strings.Count(out, "start ") != 1 {
		t.Errorf("the task was restarted by a signal's template:\n%s", out)
	}

	// Another job's variable is not seen, one below its own is.
	must("", "var", "put", "nomad/jobs/other", "k=v")
	must("", "var", "put", "nomad/jobs/vars/g", "k=v")
	has("the script", "nomad/jobs/vars nomad/jobs/vars/g nomad/jobs/vars/g/t", "alloc", "fs", "-job", "vars", "t/local/seen")

	must("PLANTED-OTHER", "var", "put", "-force", "nomad/jobs/vars", "token=@-")
	has("the restart", "start PLANTED-OTHER password=PLANTED-TWO\n", logs...)
	status := must("", "operator", "api", "/v1/job/vars/allocations")
	for _, where := range []struct{ name, text string }{{"the agent's log", agent.Log.String()}, {"the allocation", status}} {
		if strings.Contains(where.text, "PLANTED") {
			t.Errorf("%s has a value of a variable", where.name)
		}
	}
	must("", "job", "stop", "-purge", "vars")
	end(t, agent)
}
