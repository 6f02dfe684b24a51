//go:build e2e

package limits

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestFailingProlog: the prolog of the first node fails. The node drains and says why, and a batch job without a single
// attempt to spare runs on the other.
func TestFailingProlog(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "clients need root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	http, rpc := harness.FreePort(t), harness.FreePort(t)
	hookedAgent(t, dir, "bad", withHooks(`
    prolog {
      command = ["/bin/sh", "-c", "echo GPU 3 is missing; exit 7"]
      timeout = "5s"
    }`), http, rpc)
	api := harness.NewAPI(t, nil, "", fmt.Sprintf("http://127.0.0.1:%d", http))
	type node struct {
		ID, Name, Status, SchedulingEligibility string
		LastDrain                               *struct{ Meta map[string]string }
	}
	var nodes []node
	ready := func(n int) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, "the nodes to be ready", func() (bool, string) {
			err := api.Call("GET", "/v1/nodes", nil, &nodes)
			ok := 0
			for _, n := range nodes {
				if n.Status == "ready" {
					ok++
				}
			}
			return err == nil && ok == n, fmt.Sprint(nodes, err)
		})
	}
	ready(1)
	job := map[string]any{"Job": map[string]any{
		"ID": "work", "Name": "work", "Type": "batch", "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{
			"Name": "g", "Count": 3, "RestartPolicy": map[string]any{"Attempts": 0, "Mode": "fail"}, "ReschedulePolicy": map[string]any{"Attempts": 0, "Unlimited": false},
			"EphemeralDisk": map[string]any{"SizeMB": 10}, "Tasks": []any{map[string]any{
				"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/true"},
				"Resources": map[string]any{"CPU": 10, "MemoryMB": 10}, "LogConfig": map[string]any{"MaxFiles": 1, "MaxFileSizeMB": 1},
			}},
		}},
	}}
	if err := api.Call("PUT", "/v1/jobs", job, nil); err != nil {
		t.Fatal(err)
	}
	var full node
	harness.Eventually(t, 30*time.Second, "the node to be drained", func() (bool, string) {
		err := api.Call("GET", "/v1/node/"+nodes[0].ID, nil, &full)
		return err == nil && full.SchedulingEligibility == "ineligible" && full.LastDrain != nil, fmt.Sprintf("%+v %v", full, err)
	})
	if m := full.LastDrain.Meta["message"]; !strings.Contains(m, "the prolog of the node failed: exit status 7: GPU 3 is missing") {
		t.Errorf("the drain says %q", m)
	}
	harness.Eventually(t, 20*time.Second, "the event that tells what the prolog said", func() (bool, string) {
		as, err := api.Allocs("work")
		if err != nil || len(as) == 0 {
			return false, fmt.Sprint(as, err)
		}
		return strings.Contains(events(as[0]), "Prolog Failed: the prolog of the node failed: exit status 7: GPU 3 is missing"), events(as[0])
	})
	hookedAgent(t, dir, "good", fmt.Sprintf("client {\n  enabled = true\n  servers = [\"127.0.0.1:%d\"]\n}\n", rpc), harness.FreePort(t), harness.FreePort(t))
	harness.Eventually(t, 60*time.Second, "the work to be done elsewhere", func() (bool, string) {
		as, err := api.Allocs("work")
		done := 0
		for _, a := range as {
			if a.NodeName == "good" && a.ClientStatus == "complete" {
				done++
			}
			if a.ClientStatus == "failed" {
				t.Fatalf("an allocation failed: %s", events(a))
			}
		}
		return err == nil && done == 3, fmt.Sprintf("%d done: %+v %v", done, as, err)
	})
	harness.Eventually(t, 30*time.Second, "the drain to be complete", func() (bool, string) {
		var n struct {
			DrainStrategy *struct{}
			LastDrain     struct{ Status string }
		}
		err := api.Call("GET", "/v1/node/"+full.ID, nil, &n)
		return err == nil && n.DrainStrategy == nil && n.LastDrain.Status == "complete", fmt.Sprintf("%+v %v", n, err)
	})
}

// hookedAgent starts an agent; more is what its configuration has besides names and ports.
func hookedAgent(t *testing.T, dir, name, more string, http, rpc int) {
	t.Helper()
	conf := filepath.Join(dir, name+".hcl")
	text := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n%s",
		name, filepath.Join(dir, name), http, rpc, harness.FreePort(t), more)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Start(t, nil, name, nil, "agent", "-config", conf)
}

// withHooks returns the configuration of a server that is a client as well, with commands of the operator.
func withHooks(hooks string) string {
	return "server {\n  enabled = true\n  bootstrap_expect = 1\n}\nclient {\n  enabled = true\n  hooks {" + hooks + "\n  }\n}\n"
}

// TestEnabledWhileUnwell: an operator enables a node whose health command still fails. It drains again with the reason;
// once it is repaired it stays enabled.
func TestEnabledWhileUnwell(t *testing.T) {
	if os.Geteuid() != 0 {
		harness.NotRun(t, "clients need root")
	}
	dir := t.TempDir()
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	http, well, ran := harness.FreePort(t), filepath.Join(dir, "well"), filepath.Join(dir, "ran")
	hookedAgent(t, dir, "sick", withHooks(fmt.Sprintf(`
    health {
      command  = ["/bin/sh", "-c", "echo >> %s; test -e %s || { echo 3 rows wait for their remapping; exit 1; }"]
      interval = "1s"
    }`, ran, well)), http, harness.FreePort(t))
	api := harness.NewAPI(t, nil, "", fmt.Sprintf("http://127.0.0.1:%d", http))
	var nodes []struct{ ID string }
	harness.Eventually(t, 30*time.Second, "the node", func() (bool, string) {
		err := api.Call("GET", "/v1/nodes", nil, &nodes)
		return err == nil && len(nodes) == 1, fmt.Sprint(nodes, err)
	})
	var n struct {
		SchedulingEligibility string
		Events                []struct{ Subsystem, Message string }
		LastDrain             *struct{ Meta map[string]string }
	}
	look := func() (drains int) {
		n.Events, n.LastDrain = nil, nil
		if err := api.Call("GET", "/v1/node/"+nodes[0].ID, nil, &n); err != nil {
			t.Fatal(err)
		}
		for _, e := range n.Events {
			if strings.Contains(e.Message, "strategy set: the health command of the node failed: exit status 1: 3 rows wait") {
				drains++
			}
		}
		return drains
	}
	drained := func(times int) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, "the node to be drained", func() (bool, string) {
			return look() == times && n.SchedulingEligibility == "ineligible" && n.LastDrain != nil && strings.Contains(n.LastDrain.Meta["message"], "3 rows wait"), fmt.Sprintf("%+v", n)
		})
	}
	enable := func() {
		t.Helper()
		if err := api.Call("PUT", "/v1/node/"+nodes[0].ID+"/eligibility", map[string]string{"Eligibility": "eligible"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	runs := func(more int) {
		t.Helper()
		count := func() int { b, _ := os.ReadFile(ran); return len(b) }
		from := count()
		harness.Eventually(t, 30*time.Second, "the health command to run", func() (bool, string) { return count() >= from+more, "" })
	}
	drained(1)
	runs(2)
	enable()
	drained(2)
	if err := os.WriteFile(well, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runs(2)
	enable()
	runs(2)
	if d := look(); d != 2 || n.SchedulingEligibility != "eligible" {
		t.Errorf("after its cure the node was drained %d times and is %s", d, n.SchedulingEligibility)
	}
}
