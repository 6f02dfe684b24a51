//go:build e2e

package cluster

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

// loopback is a cluster on this machine with ACLs and without TLS.
type loopback struct {
	t    *testing.T
	dir  string
	rpc  []int
	serf []int
	api  *harness.API
}

// start runs an agent. part is the rest of its configuration.
func (l *loopback) start(name string, ports [3]int, part string) *harness.Proc {
	l.t.Helper()
	text := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\n%s",
		name, filepath.Join(l.dir, name), ports[0], ports[1], ports[2], part)
	conf := filepath.Join(l.dir, name+".hcl")
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return harness.Start(l.t, nil, name, nil, "agent", "-config", conf)
}

// muster runs the command line with the management token.
func (l *loopback) muster(args ...string) string {
	l.t.Helper()
	cmd := exec.Command(harness.Bin(l.t), args...)
	cmd.Env = append(os.Environ(), "MUSTER_ADDR="+l.api.Addrs[0], "MUSTER_TOKEN="+l.api.Token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		l.t.Fatalf("muster %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (l *loopback) raftPeers() (names []string) {
	var resp struct{ Servers []struct{ Node string } }
	if err := l.api.Call("GET", "/v1/operator/raft/configuration", nil, &resp); err != nil {
		return nil
	}
	for _, s := range resp.Servers {
		names = append(names, s.Node)
	}
	return names
}

const acls = "acl {\n  enabled = true\n}\n"

// TestClusterJoins: on loopback, with ACLs and without TLS, three servers with one join key form a cluster. A server
// without it is not added. A client registers by an introduction token, once. A
// restore of a snapshot reaches all servers.
func TestClusterJoins(t *testing.T) {
	l := &loopback{t: t, dir: t.TempDir()}
	t.Cleanup(func() { harness.KillBelow(t, l.dir) })
	var http []int
	var joins, addrs []string
	for range 4 {
		http, l.rpc, l.serf = append(http, harness.FreePort(t)), append(l.rpc, harness.FreePort(t)), append(l.serf, harness.FreePort(t))
	}
	for i := range 3 {
		joins = append(joins, fmt.Sprintf("\"127.0.0.1:%d\"", l.serf[i]))
		addrs = append(addrs, fmt.Sprintf("http://127.0.0.1:%d", http[i]))
	}
	l.api = harness.NewAPI(t, nil, "", addrs...)
	key := l.muster("operator", "join-key", "generate")
	retry := "  retry_join = [" + strings.Join(joins, ", ") + "]\n"
	var logs []*harness.Log
	for i := range 3 {
		s := l.start(fmt.Sprintf("s%d", i+1), [3]int{http[i], l.rpc[i], l.serf[i]}, fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = 3\n  join_key = %q\n%s}\n%s", key, retry, acls))
		logs = append(logs, s.Log)
	}
	l.api.Bootstrap(t, 60*time.Second)
	l.start("rogue", [3]int{http[3], l.rpc[3], l.serf[3]}, "server {\n  enabled = true\n"+retry+"}\n")
	harness.Eventually(t, 30*time.Second, "the leader to refuse the stranger", func() (bool, string) {
		for _, log := range logs {
			if strings.Contains(log.String(), "not adding a server: server=rogue") {
				return true, ""
			}
		}
		return false, logs[0].Tail(5)
	})

	var servers []string
	for i := range 3 {
		servers = append(servers, fmt.Sprintf("\"127.0.0.1:%d\"", l.rpc[i]))
	}
	client := func(name, token string) *harness.Proc {
		return l.start(name, [3]int{harness.FreePort(t), 0, 0}, fmt.Sprintf("client {\n  enabled = true\n  servers = [%s]\n  intro_token = %q\n}\n%s", strings.Join(servers, ", "), token, acls))
	}
	intro := l.muster("node", "intro", "create", "-node-name", "c1")
	stranger := client("c2", intro)
	harness.Eventually(t, 30*time.Second, "a refusal", func() (bool, string) {
		return strings.Contains(stranger.Log.String(), "the introduction token is for node"), stranger.Log.Tail(5)
	})
	client("c1", intro)
	nodes := func() (out []string) {
		var ns []struct{ Name, Status string }
		_ = l.api.Call("GET", "/v1/nodes", nil, &ns)
		for _, n := range ns {
			out = append(out, n.Name+" "+n.Status)
		}
		return out
	}
	harness.Eventually(t, 30*time.Second, "the client to be ready", func() (bool, string) {
		return fmt.Sprint(nodes()) == "[c1 ready]", fmt.Sprint(nodes())
	})
	if peers := l.raftPeers(); len(peers) != 3 || strings.Contains(fmt.Sprint(peers), "rogue") {
		t.Errorf("raft's servers are %v", peers)
	}
	var seen []struct{ Name string }
	own := harness.NewAPI(t, nil, "", fmt.Sprintf("http://127.0.0.1:%d", http[3]))
	if err := own.Call("GET", "/v1/nodes?stale=true", nil, &seen); err == nil && len(seen) > 0 {
		t.Errorf("the stranger has the cluster's state: %v", seen)
	}
	if n := fmt.Sprint(nodes()); n != "[c1 ready]" {
		t.Errorf("the nodes are %s", n)
	}

	// A restore returns when all servers have the state.
	snap := filepath.Join(l.dir, "a.snap")
	l.muster("operator", "snapshot", "save", snap)
	l.muster("namespace", "apply", "later")
	if out := l.muster("operator", "snapshot", "restore", "-yes", snap); !strings.Contains(out, "3 of 3 servers have the restored state") {
		t.Errorf("the restore says %q", out)
	}
	for i := range 3 {
		var spaces []struct{ Name string }
		if err := l.api.At(addrs[i]).Call("GET", "/v1/namespaces?stale=true", nil, &spaces); err != nil || len(spaces) != 1 {
			t.Errorf("server %d has the namespaces %v: %v", i, spaces, err)
		}
	}
}
