//go:build e2e

package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestGroupsRunAsOne: an all_at_once job of a gang of two and a group of one. When the group of one fails, everything starts
// again together; when a job of a higher priority takes the place of a member, all of it stops, and nothing starts before
// there is room for all; when a node drains, all of it moves; and when a node is lost, all of it starts again on those that are left.
func TestGroupsRunAsOne(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "2xH100", Server: "  restart_grace = \"5s\"\n"}, harness.FleetNode{Name: "two", GPUs: "2xH100"}, harness.FleetNode{Name: "three", GPUs: "2xH100"})
	dir := t.TempDir()
	f.Must("job", "run", "-detach", f.File("train.hcl", fmt.Sprintf(`
job "train" {
  type        = "batch"
  priority    = 20
  all_at_once = true
  preemptible = true

  group "workers" {
    count = 2
    gang  = { timeout = "1m" }
    reschedule {
      attempts       = 0
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["1000"]
      }
      resources {
        cpu    = 10
        memory = 16
        gpu    = { count = 2 }
      }
    }
  }

  group "ps" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts       = 0
      delay          = "5s"
      delay_function = "constant"
      unlimited      = true
    }
    task "main" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while [ ! -f %[1]s/fail ]; do sleep 0.1; done; rm %[1]s/fail; exit 7"]
      }
      resources {
        cpu    = 10
        memory = 16
      }
    }
  }
}
`, dir)))
	train := harness.Work{ID: "train"}
	ids := func() (out []string) {
		for _, a := range live(f, train, 3) {
			out = append(out, a.ID)
		}
		return out
	}
	again := func(what string, was []string) []string {
		t.Helper()
		now := ids()
		for _, id := range now {
			if slices.Contains(was, id) {
				t.Errorf("%s: allocation %s went on without the others", what, id)
			}
		}
		return now
	}
	first := ids()

	write(t, dir, "fail")
	harness.Eventually(t, 60*time.Second, "the first allocations end", func() (bool, string) {
		as, err := f.API.Allocs("train")
		n := 0
		for _, a := range as {
			if slices.Contains(first, a.ID) && (a.ClientStatus == "complete" || a.ClientStatus == "failed") {
				n++
			}
		}
		return err == nil && n == 3, fmt.Sprint(as, err)
	})
	second := again("a failure", first)
	told := 0
	for _, id := range first {
		if text := f.Must("alloc", "status", id); strings.Contains(text, "an allocation of the all_at_once job failed: train.ps[0] on") && strings.Contains(text, "exit code 7") {
			told++
		}
	}
	if told != 2 {
		t.Errorf("alloc status says of %d allocations that the other group failed, want 2", told)
	}

	soon(f)
	urgent := harness.Work{ID: "urgent", Settings: "priority = 90", Group: "count = 2\n    gang = { timeout = \"1m\" }", GPUs: "count = 2"}
	f.Run(urgent)
	f.Running(urgent, 2)
	harness.Eventually(t, 60*time.Second, "all of it stops, and waits for room for all", func() (bool, string) {
		as, err := f.API.Allocs("train")
		why, _ := f.Muster("job", "why", "train")
		return err == nil && harness.Count(as, "running")+harness.Count(as, "pending") == 0 && strings.Contains(why, "all_at_once: nothing starts until group workers fits, too"), fmt.Sprint(as, err, why)
	})
	as, err := f.API.Allocs("train")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range as {
		if slices.Contains(second, a.ID) && a.DesiredStatus != "evict" {
			t.Errorf("%s was not preempted with the others: %s", a.Name, a.DesiredStatus)
		}
	}
	f.Stop(urgent)
	third := again("a preemption", second)

	node := ""
	for _, a := range live(f, train, 3) {
		if a.Name == "train.workers[0]" {
			node = a.NodeName
		}
	}
	f.Must("node", "drain", "-enable", "-deadline", "2s", "-yes", "-detach", node)
	harness.Eventually(t, 60*time.Second, "nothing runs on the node that drains", func() (bool, string) {
		as, err := f.API.Allocs("train")
		gone := err == nil
		for _, a := range as {
			gone = gone && (a.NodeName != node || a.ClientStatus == "complete" || a.ClientStatus == "failed")
		}
		return gone, fmt.Sprint(as, err)
	})
	fourth := again("a drain", third)

	f.Must("node", "eligibility", "-enable", node)
	for _, a := range live(f, train, 3) { // a node with a member, other than the first one, which has the server
		if strings.Contains(a.Name, "workers") && a.NodeName != "one" {
			node = a.NodeName
		}
	}
	began := time.Now()
	f.Lose(node)
	harness.Eventually(t, 90*time.Second, "all of it has ended after the loss of "+node, func() (bool, string) {
		as, err := f.API.Allocs("train")
		n := 0
		for _, a := range as {
			if slices.Contains(fourth, a.ID) && a.ClientStatus != "running" && a.ClientStatus != "pending" {
				n++
			}
		}
		return err == nil && n == 3, fmt.Sprint(as, err)
	})
	ended := time.Since(began)
	again("the loss of a node", fourth)
	t.Logf("after the loss of %s all of it had ended in %v and ran again in %v", node, ended.Round(time.Second), time.Since(began).Round(time.Second))
	f.Stop(train)
}
