//go:build e2e

// Package cluster kills the parts of a real cluster: three servers and three clients as processes in network
// namespaces with their own addresses, mTLS and ACLs on.
package cluster

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

type cluster struct {
	t       *testing.T
	dir     string
	net     *harness.Net
	procs   map[string]*harness.Proc
	api     *harness.API
	servers []string
	clients []string
}

func newCluster(t *testing.T, backend string, clients ...string) *cluster {
	harness.NeedNamespaces(t)
	c := &cluster{t: t, dir: t.TempDir(), procs: map[string]*harness.Proc{}, servers: []string{"s1", "s2", "s3"}, clients: clients}
	t.Cleanup(func() { harness.KillBelow(t, c.dir) })
	c.net = harness.NewNet(t, append(append([]string{}, c.servers...), c.clients...)...)

	// A CA and a certificate for each agent, made by the binary itself.
	run := func(args ...string) {
		cmd := exec.Command(harness.Bin(t), args...)
		cmd.Dir = c.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("muster %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("tls", "ca", "create")
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	gossip := base64.StdEncoding.EncodeToString(key)
	var joins []string
	for _, s := range c.servers {
		joins = append(joins, fmt.Sprintf("%q", c.net.Host(s).IP+":4648"))
	}
	join := "[" + strings.Join(joins, ", ") + "]"
	n := 0
	for _, name := range append(append([]string{}, c.servers...), c.clients...) {
		h := c.net.Host(name)
		role := "-client"
		if name[0] == 's' {
			role = "-server"
		}
		run("tls", "cert", "create", role, "-additional-ipaddress", h.IP)
		// Certificates are numbered in order of creation; keep each agent's own under its name.
		kind := role[1:]
		crt, _ := filepath.Glob(filepath.Join(c.dir, "global-"+kind+"-*.pem"))
		for _, f := range crt {
			base := name + ".pem"
			if strings.Contains(f, "-key.pem") {
				base = name + "-key.pem"
			}
			if err := os.Rename(f, filepath.Join(c.dir, base)); err != nil {
				t.Fatal(err)
			}
		}
		n++
		ca, _ := filepath.Glob(filepath.Join(c.dir, "*-agent-ca.pem"))
		if len(ca) != 1 {
			t.Fatalf("want one CA certificate, have %v", ca)
		}
		conf := fmt.Sprintf(`
name       = %q
data_dir   = %q
bind_addr  = %q
log_level  = "INFO"
leave_on_terminate = false
acl { enabled = true }
tls {
  http = true
  rpc  = true
  ca_file   = %q
  cert_file = %q
  key_file  = %q
  verify_server_hostname = true
  verify_https_client    = false
}
`, name, filepath.Join(c.dir, "data-"+name), h.IP, ca[0], filepath.Join(c.dir, name+".pem"), filepath.Join(c.dir, name+"-key.pem"))
		if name[0] == 's' {
			conf += fmt.Sprintf("server {\n  enabled = true\n  bootstrap_expect = 3\n  restart_grace = \"5s\"\n  raft_logstore {\n    backend = %q\n  }\n  encrypt = %q\n  server_join {\n    retry_join = %s\n  }\n}\n", backend, gossip, join)
		} else {
			conf += fmt.Sprintf("client {\n  enabled = true\n  servers = %s\n  options = { \"driver.raw_exec.enable\" = \"1\" }\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\nserver {\n  encrypt = %q\n}\n", strings.ReplaceAll(join, "4648", "4647"), gossip)
		}
		if err := os.WriteFile(filepath.Join(c.dir, name+".hcl"), []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ca, _ := filepath.Glob(filepath.Join(c.dir, "*-agent-ca.pem"))
	var addrs []string
	for _, s := range c.servers {
		addrs = append(addrs, "https://"+c.net.Host(s).IP+":4646")
	}
	c.api = harness.NewAPI(t, c.net.Dial, ca[0], addrs...)
	for _, s := range c.servers {
		c.start(s)
	}
	c.api.Bootstrap(t, 30*time.Second)
	for _, s := range c.clients {
		c.start(s)
	}
	c.eventually(30*time.Second, "ready nodes", func() (bool, string) {
		var ns []struct{ Name, Status string }
		err := c.api.Call("GET", "/v1/nodes", nil, &ns)
		ready := 0
		for _, n := range ns {
			if n.Status == "ready" {
				ready++
			}
		}
		return err == nil && ready == len(clients), fmt.Sprint(ns, err)
	})
	return c
}

func (c *cluster) start(name string) {
	c.procs[name] = harness.Start(c.t, c.net.Host(name), name, nil, "agent", "-config", filepath.Join(c.dir, name+".hcl"))
}

// convert converts the raft log of a server that is not running to another backend.
func (c *cluster) convert(name, from, to string) {
	c.t.Helper()
	out, err := exec.Command(harness.Bin(c.t), "operator", "raft", "migrate-backend", "-force", "-to", to, filepath.Join(c.dir, "data-"+name)).CombinedOutput()
	if err != nil {
		c.t.Fatalf("convert the raft log of %s: %v\n%s", name, err, out)
	}
	c.t.Logf("%s: %s", name, out)
	file := filepath.Join(c.dir, name+".hcl")
	conf, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(conf), fmt.Sprintf("backend = %q", from), fmt.Sprintf("backend = %q", to), 1)), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) eventually(d time.Duration, what string, ok func() (bool, string)) time.Duration {
	c.t.Helper()
	return harness.Eventually(c.t, d, what, ok)
}

// leader returns the name of the server that leads and is not the dead one: right after its death the others still name it.
func (c *cluster) leader(dead ...string) string {
	c.t.Helper()
	name := ""
	c.eventually(10*time.Second, "a leader", func() (bool, string) {
		name = ""
		var l string
		if err := c.api.Call("GET", "/v1/status/leader", nil, &l); err != nil {
			return false, err.Error()
		}
		for _, s := range c.servers {
			if strings.HasPrefix(l, c.net.Host(s).IP+":") && !slices.Contains(dead, s) {
				name = s
			}
		}
		return name != "", l
	})
	return name
}

func job(id, typ string, count int, command string, args ...string) map[string]any {
	return map[string]any{"Job": map[string]any{
		"ID": id, "Name": id, "Type": typ, "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{
			"Name": "g", "Count": count,
			"ReschedulePolicy": map[string]any{"Unlimited": true, "Delay": 0 + 5_000_000_000, "DelayFunction": "constant", "Attempts": 0, "Interval": 0, "MaxDelay": 0},
			"Tasks": []any{map[string]any{
				"Name": "t", "Driver": "raw_exec",
				"Config":    map[string]any{"command": command, "args": args},
				"Resources": map[string]any{"CPU": 10, "MemoryMB": 10},
			}},
		}},
	}}
}

// packed sends a directory to one server by `muster run -pack`, with a job that runs in it, and returns another job that runs
// in the same directory on every node.
func (c *cluster) packed(server string) map[string]any {
	c.t.Helper()
	dir := filepath.Join(c.t.TempDir(), "code")
	if err := os.MkdirAll(filepath.Join(dir, "lib"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	for name, content := range map[string]string{"main.sh": "#!/bin/sh\n. lib/say.sh && say >said && cat said", "lib/say.sh": "say() { echo packed and sent; }\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			c.t.Fatal(err)
		}
	}
	ca, _ := filepath.Glob(filepath.Join(c.dir, "*-agent-ca.pem"))
	env := []string{"MUSTER_ADDR=https://" + c.net.Host(server).IP + ":4646", "MUSTER_CACERT=" + ca[0], "MUSTER_TOKEN=" + c.api.Token}
	p := harness.Start(c.t, c.net.Host(server), "run", env, "run", "-pack", "-dir", dir, "-name", "packed", "-driver", "raw_exec", "--", "./main.sh")
	if err := p.WaitExit(30 * time.Second); err != nil || !strings.Contains(p.Log.String(), "packed and sent") {
		c.t.Fatalf("run -pack: %v\n%s", err, p.Log)
	}
	var sent struct {
		TaskGroups []struct {
			Tasks []struct{ Artifacts []map[string]any }
		}
	}
	if err := c.api.Call("GET", "/v1/job/packed", nil, &sent); err != nil {
		c.t.Fatal(err)
	}
	again := job("packed-later", "batch", len(c.clients), "${NOMAD_TASK_DIR}/code/main.sh")
	group := again["Job"].(map[string]any)["TaskGroups"].([]any)[0].(map[string]any)
	group["Constraints"] = []any{map[string]any{"Operand": "distinct_hosts", "RTarget": "true"}}
	task := group["Tasks"].([]any)[0].(map[string]any)
	task["Artifacts"], task["WorkDir"] = sent.TaskGroups[0].Tasks[0].Artifacts, "${NOMAD_TASK_DIR}/code"
	return again
}

// TestClusterSurvives runs a service of 6 and a batch job of 50 real processes, kills the leader with -9, then a
// follower, then a client, and checks that no acknowledged write is lost, that tasks which need not die do not, that
// lost ones are replaced and that the servers agree in the end. The raft log of the killed follower is converted to the
// other backend before it starts again.
func TestClusterSurvives(t *testing.T) {
	for _, b := range [][2]string{{"wal", "boltdb"}, {"boltdb", "wal"}} {
		t.Run(b[0], func(t *testing.T) { clusterSurvives(t, b[0], b[1]) })
	}
}

func clusterSurvives(t *testing.T, backend, other string) {
	c := newCluster(t, backend, "c1", "c2", "c3")
	must := func(method, path string, in, out any) {
		t.Helper()
		c.eventually(15*time.Second, method+" "+path, func() (bool, string) {
			err := c.api.Call(method, path, in, out)
			return err == nil, fmt.Sprint(err)
		})
	}
	must("PUT", "/v1/jobs", job("web", "service", 6, "/bin/sleep", "100000"), nil)
	running := func(id string, want int) []harness.Alloc {
		t.Helper()
		var as []harness.Alloc
		took := c.eventually(40*time.Second, fmt.Sprintf("%d allocations of %s running", want, id), func() (bool, string) {
			var err error
			as, err = c.api.Allocs(id)
			return err == nil && harness.Count(as, "running") == want, fmt.Sprintf("%v %s", err, states(as))
		})
		t.Logf("%s: %d running after %s", id, want, took.Round(time.Millisecond))
		return as
	}
	running("web", 6)
	must("PUT", "/v1/jobs", job("crunch", "batch", 50, "/bin/sh", "-c", "sleep 2; echo done $NOMAD_ALLOC_INDEX"), nil)
	c.eventually(60*time.Second, "50 batch allocations complete", func() (bool, string) {
		as, err := c.api.Allocs("crunch")
		return err == nil && harness.Count(as, "complete") == 50, fmt.Sprintf("%v %s", err, states(as))
	})
	before := harness.Tasks(c.dir)
	if len(before) != 6 {
		t.Fatalf("want 6 live tasks, have %v", before)
	}

	// Writers that record what was acknowledged, through everything that follows.
	var acked sync.Map
	var written, refused atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				id := fmt.Sprintf("w%d-%d", w, i)
				err := c.api.Call("PUT", "/v1/jobs", parked(id), nil)
				if err == nil {
					acked.Store(id, true)
					written.Add(1)
				} else {
					refused.Add(1)
				}
			}
		}()
	}

	first := c.leader()
	fetching := c.packed(first)
	c.procs[first].Kill9()
	t.Logf("killed the leader %s", first)
	t.Logf("%s leads now", c.leader(first))
	must("PUT", "/v1/jobs", fetching, nil) // the nodes of which two have not fetched it yet
	c.eventually(30*time.Second, "the directory that the killed server received, on every node", func() (bool, string) {
		as, err := c.api.Allocs("packed-later")
		return err == nil && harness.Count(as, "complete") == len(c.clients), fmt.Sprintf("%v %s", err, states(as))
	})
	must("PUT", "/v1/jobs", job("after-leader", "service", 2, "/bin/sleep", "100000"), nil)
	running("after-leader", 2)
	c.start(first)
	c.following(first)
	sameTasks(t, before, harness.Tasks(c.dir))

	follower := ""
	for _, s := range c.servers {
		if s != c.leader() && s != first {
			follower = s
		}
	}
	c.procs[follower].Kill9()
	t.Logf("killed the follower %s", follower)
	must("PUT", "/v1/jobs", job("after-follower", "service", 1, "/bin/sleep", "100000"), nil)
	running("after-follower", 1)
	c.convert(follower, backend, other)
	c.start(follower)
	c.following(follower)
	sameTasks(t, before, harness.Tasks(c.dir))

	// A client machine dies: agent, supervisor and tasks at once, as in a power cut.
	c.procs["c1"].Kill9()
	harness.KillBelow(t, filepath.Join(c.dir, "data-c1"))
	t.Log("killed the client c1 with everything on it")
	c.eventually(60*time.Second, "c1 down", func() (bool, string) {
		var ns []struct{ Name, Status string }
		err := c.api.Call("GET", "/v1/nodes", nil, &ns)
		for _, n := range ns {
			if n.Name == "c1" && n.Status == "down" {
				return true, ""
			}
		}
		return false, fmt.Sprint(ns, err)
	})
	as := running("web", 6)
	lost := harness.Count(as, "lost")
	t.Logf("web: %d allocations lost with c1, replaced", lost)
	survivors := map[string]harness.Task{}
	for _, tk := range harness.Tasks(c.dir) {
		survivors[tk.AllocID] = tk
	}
	for _, tk := range before {
		for _, a := range as {
			if a.ID == tk.AllocID && a.ClientStatus == "running" && a.NodeName != "c1" {
				if s, ok := survivors[a.ID]; !ok || s.Pid != tk.Pid || s.Start != tk.Start {
					t.Errorf("task of %s changed: was pid %d, is %+v", a.Name, tk.Pid, s)
				}
			}
		}
	}
	// The machine comes back.
	c.start("c1")
	c.eventually(40*time.Second, "c1 ready again", func() (bool, string) {
		var ns []struct{ Name, Status string }
		err := c.api.Call("GET", "/v1/nodes", nil, &ns)
		for _, n := range ns {
			if n.Name == "c1" && n.Status == "ready" {
				return true, ""
			}
		}
		return false, fmt.Sprint(ns, err)
	})

	close(stop)
	wg.Wait()
	missing := 0
	var jobs []struct{ ID string }
	must("GET", "/v1/jobs", nil, &jobs)
	have := map[string]bool{}
	for _, j := range jobs {
		have[j.ID] = true
	}
	acked.Range(func(k, _ any) bool {
		if !have[k.(string)] {
			missing++
			t.Errorf("acknowledged job %s is lost", k)
		}
		return missing < 10
	})
	t.Logf("%d writes acknowledged through two server deaths, %d refused or unanswered, %d lost", written.Load(), refused.Load(), missing)
	if written.Load() < 20 {
		t.Errorf("only %d writes were acknowledged", written.Load())
	}
	c.eventually(30*time.Second, "three servers with one state hash at one index", func() (bool, string) { return c.caughtUp() })
}

// parked is a job that is only state: a parameterized template.
func parked(id string) map[string]any {
	j := job(id, "batch", 1, "/bin/true")
	j["Job"].(map[string]any)["ParameterizedJob"] = map[string]any{"Payload": "optional"}
	return j
}

func states(as []harness.Alloc) string {
	m := map[string]int{}
	for _, a := range as {
		m[a.DesiredStatus+"/"+a.ClientStatus]++
	}
	b, _ := json.Marshal(m)
	return string(b)
}

func sameTasks(t *testing.T, before, now []harness.Task) {
	t.Helper()
	live := map[string]harness.Task{}
	for _, tk := range now {
		live[tk.AllocID] = tk
	}
	for _, tk := range before {
		if l := live[tk.AllocID]; l.Pid != tk.Pid || l.Start != tk.Start {
			t.Errorf("the task of allocation %s did not survive: pid %d, now %+v", tk.AllocID, tk.Pid, l)
		}
	}
}

// following waits until a server that was started again has applied what the leader has now.
func (c *cluster) following(name string) {
	c.t.Helper()
	type hash struct{ Index uint64 }
	var want, have hash
	c.eventually(10*time.Second, "the leader's index", func() (bool, string) {
		err := c.api.At("https://"+c.net.Host(c.leader()).IP+":4646").Call("GET", "/v1/operator/state-hash?stale=true", nil, &want)
		return err == nil, fmt.Sprint(err)
	})
	took := c.eventually(30*time.Second, name+" following", func() (bool, string) {
		err := c.api.At("https://"+c.net.Host(name).IP+":4646").Call("GET", "/v1/operator/state-hash?stale=true", nil, &have)
		return err == nil && have.Index >= want.Index, fmt.Sprint(have, want, err)
	})
	c.t.Logf("%s follows again after %s", name, took.Round(time.Millisecond))
}

// caughtUp asks each server for its own state hash and says whether all agree at one index.
func (c *cluster) caughtUp() (bool, string) {
	type hash struct {
		Server, Hash string
		Index        uint64
	}
	var got []hash
	for _, a := range c.api.Addrs {
		var h hash
		if err := c.api.At(a).Call("GET", "/v1/operator/state-hash?stale=true", nil, &h); err != nil {
			return false, err.Error()
		}
		got = append(got, h)
	}
	for _, h := range got[1:] {
		if h.Index != got[0].Index || h.Hash != got[0].Hash {
			return false, fmt.Sprint(got)
		}
	}
	return true, ""
}
