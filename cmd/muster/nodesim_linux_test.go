package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// TestNodesimRegisters: a simulated node is as its flags describe it, and registers with the server that they name.
func TestNodesimRegisters(t *testing.T) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "server.json")
	text := fmt.Sprintf(`{"name":"s1","region":"eu","data_dir":%q,"log_level":"WARN","ports":{"http":0,"rpc":0,"serf":0},"server":{"enabled":true,"bootstrap_expect":1}}`, filepath.Join(dir, "data"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a := startAgent(ctx, t, "-config", conf)
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
