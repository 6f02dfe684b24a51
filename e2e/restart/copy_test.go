//go:build e2e

package restart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestRestartCopiedNode: a second agent with a copy of a node's data directory, as a cloned machine has it, ends with a
// sentence, starts nothing, and leaves the node and its tasks as they were. The first agent may still be killed and
// started again.
func TestRestartCopiedNode(t *testing.T) {
	m := newMachine(t)
	m.start()
	ran := filepath.Join(m.dir, "ran")
	m.submit("web", "service", "raw_exec", "echo started >> "+ran+"; exec sleep 100000", 2)
	m.until("web", "running", 2)
	tasks := func() string {
		var out []string
		for _, tk := range harness.Tasks(m.dir) {
			out = append(out, fmt.Sprint(tk))
		}
		slices.Sort(out)
		return strings.Join(out, ", ")
	}
	before := tasks()
	if strings.Count(before, "{") != 2 {
		t.Fatalf("tasks are %s", before)
	}

	other := filepath.Join(m.dir, "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(m.data, "client"), other).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	conf := filepath.Join(m.dir, "other.hcl")
	text := fmt.Sprintf("name = \"two\"\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n}\nclient {\n  enabled = true\n  servers = [\"127.0.0.1:%d\"]\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n",
		other, harness.FreePort(t), m.ports[1])
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	copied := harness.Start(t, nil, "copy", nil, "agent", "-config", conf)
	if err := copied.WaitExit(60 * time.Second); err == nil {
		t.Error("the copy ended without an error")
	}
	if log := copied.Log.String(); !strings.Contains(log, "this agent ends, because another one has the same node id") || !strings.Contains(log, "remove "+filepath.Join(other, "client")) {
		t.Errorf("the copy does not say why it ends:\n%s", copied.Log.Tail(20))
	}
	check := func(when string) {
		t.Helper()
		if after := tasks(); after != before {
			t.Errorf("%s the tasks are %s, before %s", when, after, before)
		}
		if b, _ := os.ReadFile(ran); strings.Count(string(b), "started") != 2 {
			t.Errorf("%s tasks have been started %q", when, b)
		}
		var ns []struct{ Name, Status string }
		if err := m.api.Call("GET", "/v1/nodes", nil, &ns); err != nil || len(ns) != 1 || ns[0].Name != "one" || ns[0].Status != "ready" {
			t.Errorf("%s the nodes are %+v, %v", when, ns, err)
		}
	}
	check("after the copy")
	m.agent.Kill9()
	m.start()
	check("after a restart")
}
