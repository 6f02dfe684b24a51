//go:build e2e

package queue

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// whyJob is a batch job of one command.
func whyJob(id string, gpus, priority int, head, command string) string {
	gpu := ""
	if gpus > 0 {
		gpu = fmt.Sprintf("gpu    = { count = %d }", gpus)
	}
	return fmt.Sprintf(`job %q {
  type     = "batch"
  priority = %d
  %s
  group "g" {
    restart { attempts = 0 }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", %q]
      }
      resources {
        cpu    = 20
        memory = 32
        %s
      }
    }
  }
}
`, id, priority, head, command, gpu)
}

// TestWhyIsTrue: what job run and job why say of jobs on a cluster as it is by default.
func TestWhyIsTrue(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "8xH100"})
	says := func(what, text string, want []string, not ...string) {
		t.Helper()
		for _, w := range want {
			if !regexp.MustCompile(w).MatchString(text) {
				t.Errorf("%s does not say %q:\n%s", what, w, text)
			}
		}
		for _, w := range not {
			if regexp.MustCompile(w).MatchString(text) {
				t.Errorf("%s says %q:\n%s", what, w, text)
			}
		}
	}
	run := func(id, text string) string {
		out, _ := f.Muster("job", "run", f.File(id+".hcl", text))
		return out
	}
	for i := range 4 { // a history of runs below a second
		f.Must("job", "run", "-detach", f.File("short.hcl", whyJob(fmt.Sprint("short", i), 1, 50, "", "sleep 0.3")))
	}
	harness.Eventually(t, 30*time.Second, "the short runs have ended", func() (bool, string) {
		var as []harness.Alloc
		err := f.API.Call("GET", "/v1/allocations", nil, &as)
		return err == nil && harness.Count(as, "complete") == 4, fmt.Sprint(as, err)
	})
	out := run("nine", whyJob("nine", 9, 50, "", "true"))
	says("job run of what can never run", out, []string{`nothing placed; 1 allocation waiting`, `can never be placed here: .*short by 1 GPU`}, `status "complete"`, `waits until`, `device`)
	says("job why -nodes", f.Must("job", "why", "-nodes", "nine"), []string{`one +g +too little nvidia/gpu, short by 1 GPU`})
	f.Must("job", "stop", "-detach", "-yes", "nine")

	f.Must("job", "run", "-detach", f.File("fails.hcl", whyJob("fails", 0, 50, "", "exit 1")))
	harness.Eventually(t, 20*time.Second, "it says when what failed is tried again", func() (bool, string) {
		text, _ := f.Muster("job", "why", "fails")
		return regexp.MustCompile(`retries +in \d+s .*alloc-failure`).MatchString(text), text
	})
	f.Must("job", "stop", "-detach", "-yes", "fails")

	f.Must("job", "run", "-detach", f.File("array.hcl", whyJob("array", 0, 50, "array = { count = 3, concurrency = 1 }", "sleep 300")))
	harness.Eventually(t, 20*time.Second, "an index runs", func() (bool, string) {
		text, _ := f.Muster("job", "why", "array")
		return strings.Contains(text, "1 running") && strings.Contains(text, "2 to start later"), text
	})
	says("job status of an array at its concurrency", f.Must("job", "status", "array"), []string{`(?m)^g +2 +0 +1 `}, `Placement Failure`)
	f.Must("job", "stop", "-detach", "-yes", "array")

	run("low", whyJob("low", 8, 10, "preemptible = true", "sleep 600"))
	f.Running(harness.Work{ID: "low"}, 1)
	run("urgent", whyJob("urgent", 8, 90, "", "sleep 1"))
	says("job why of an urgent job", f.Must("job", "why", "urgent"), []string{`low may not be preempted before \S+Z \(preempt_min_runtime\)`, `waits +group g: until another 8`})
	harness.Eventually(t, 30*time.Second, "the start is expected when low may be preempted", func() (bool, string) {
		text := f.Must("job", "why", "urgent")
		return regexp.MustCompile(`starts +when low may be preempted: in about \d+s`).MatchString(text), text + f.Must("queue")
	})
	// Then it goes first, though its runs are predicted to last less than a second.
	harness.Eventually(t, 90*time.Second, "priority 90 preempts priority 10", func() (bool, string) {
		text := f.Must("job", "status", "urgent")
		return regexp.MustCompile(`(?m)^g +0 +\d+ +\d+ +0 `).MatchString(text), text + f.Must("job", "why", "urgent")
	})
}
