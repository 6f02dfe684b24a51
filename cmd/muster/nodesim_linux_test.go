package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/loglimit"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// simServer starts an agent with a server part of region eu; more is JSON for its configuration.
func simServer(ctx context.Context, t *testing.T, more string) *runningAgent {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "server.json")
	text := fmt.Sprintf(`{"name":"s1","region":"eu","data_dir":%q,"log_level":"WARN",%s"ports":{"http":0,"rpc":0,"serf":0},"server":{"enabled":true,"bootstrap_expect":1}}`, filepath.Join(dir, "data"), more)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return startAgent(ctx, t, "-config", conf)
}

// TestNodesimRegisters: a simulated node is as its flags describe it, and registers with the server that they name.
func TestNodesimRegisters(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := simServer(ctx, t, "")
	a.start(append(strings.Fields("nodesim -count 1 -region eu -prefix rack -dc dc9 -pool h100 -node-class big -meta team=nlp -cpu 6000 -cores 3 -memory 5000 -disk 7000 -gpus 2xH100 -join-over 1ms"), "-server-addr", a.leader)...)
	var list []wire.NodeListStub
	a.poll("node", func() bool { return a.get("/v1/nodes", &list) && len(list) == 1 })
	var n wire.Node
	if !a.get("/v1/node/"+list[0].ID, &n) {
		t.Fatal("the node cannot be read")
	}
	r := n.NodeResources
	got := fmt.Sprint(n.Name, n.Datacenter, n.NodePool, n.NodeClass, n.Meta["team"], r.Cpu.CpuShares, r.Cpu.TotalCpuCores, r.Memory.MemoryMB, r.Disk.DiskMB, len(r.Devices[0].Instances))
	if want := fmt.Sprint("rack-0", "dc9", "h100", "big", "nlp", 6000, 3, 5000, 7000, 2); got != want {
		t.Errorf("the node is %s, want %s", got, want)
	}
	cancel()
	for range 2 {
		<-a.ended
	}
}

// TestNodesimOverTLS: where servers speak TLS, the three files let simulated nodes register. They do so at times that
// -join-over spreads.
func TestNodesimOverTLS(t *testing.T) {
	f := newAgentFake(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for _, args := range []string{"tls ca create", "tls cert create -server -region eu", "tls cert create -client -region eu"} {
		if r := f.run(t, "", strings.Fields(args)...); r.code != 0 {
			t.Fatalf("%s: exit status %d, %s", args, r.code, r.errOut)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := simServer(ctx, t, fmt.Sprintf(`"tls":{"rpc":true,"ca_file":%[1]q,"cert_file":%[2]q,"key_file":%[3]q},`,
		filepath.Join(dir, "muster-agent-ca.pem"), filepath.Join(dir, "eu-server-muster.pem"), filepath.Join(dir, "eu-server-muster-key.pem")))
	files := map[string]string{"-ca-file": "muster-agent-ca.pem", "-cert-file": "eu-client-muster.pem", "-key-file": "eu-client-muster-key.pem"}
	line := []string{"nodesim", "-count", "40", "-region", "eu", "-server-addr", a.leader, "-join-over", "3s"}
	for flag, file := range files {
		var rest []string
		for other, file := range files {
			if other != flag {
				rest = append(rest, other, file)
			}
		}
		a.start(append(line, rest...)...)
		if err := <-a.ended; err == nil || !strings.Contains(err.Error(), "TLS needs -ca-file, -cert-file and -key-file") {
			t.Errorf("without %s: %v", flag, err)
		}
		line = append(line, flag, file)
	}
	out, _ := a.start(line...)
	a.poll("nodes", func() bool { return strings.Contains(out.String(), "registered in") })
	m := regexp.MustCompile(`40 nodes registered in (\S+);`).FindStringSubmatch(out.String())
	if m == nil {
		t.Fatalf("it says %q", out)
	}
	// Without the flag 40 nodes begin within 40 ms. That all of 40 random times are in the first half of 3 s has the
	// probability 1e-12.
	if took, err := time.ParseDuration(m[1]); err != nil || took < 1500*time.Millisecond {
		t.Errorf("registered in %s, %v: not spread over 3s", m[1], err)
	}
	cancel()
	for range 2 {
		<-a.ended
	}
}

// TestNodesimServesProfiles: the address of -debug-addr is listened at.
func TestNodesimServesProfiles(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e, _, _ := agentEnv()
	root := newRoot(e)
	root.SetArgs(normalize(root, []string{"nodesim", "-debug-addr", l.Addr().String()}))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := root.ExecuteContext(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("an address that is in use: %v", err)
	}
}

// TestNodesimLogIsLimited: the failure of a server is no line for each node and attempt.
func TestNodesimLogIsLimited(t *testing.T) {
	var out strings.Builder
	log := nodesimLog(&out, hclog.Warn)
	for i := range 1000 {
		log.Named("client").Warn("the servers did not accept the node's call", "node", i)
	}
	if n := strings.Count(out.String(), "\n"); n < 1 || n > loglimit.Lines {
		t.Errorf("%d lines, want at most %d", n, loglimit.Lines)
	}
}
