//go:build e2e

package history

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// diskSize is enough for a server whose log is cut often. All disks lie in memory, because a server ends when a write
// takes 5 s, and the disk of a busy machine takes as long at times. Even the disks in memory do, if rarely: a server may
// end so only if a write of the test itself took longer than stall.
const (
	diskSize = 64 << 20
	memory   = 1 << 30
	stall    = 2 * time.Second
)

// region is the other region. It has one server.
const region = "west"

var (
	servers = []string{"s1", "s2", "s3"} // of the region that runs the tasks
	agents  = []string{"c1", "c2"}
	other   = []string{"w1"} // of the other region
)

// cluster is two federated regions with a disk for each server of the first.
type cluster struct {
	t     *summary
	dir   string
	net   *harness.Net
	api   *harness.API // of the servers
	disks map[string]*harness.Disk
	guard string // a protection

	longest atomic.Int64 // nanoseconds that a write to a disk without faults took, at most

	mu     sync.Mutex
	procs  map[string]*harness.Proc
	starts map[string]int       // how often a process was started
	since  map[string]time.Time // the last start
	sick   map[string]bool      // the disk fails now
	mayEnd map[string]bool      // a process whose disk failed may end by itself
}

func newCluster(t *summary, seed uint64) *cluster {
	harness.NeedNamespaces(t)
	dir, err := os.MkdirTemp("/var/tmp", "muster-history-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	harness.NewMemoryDisk(t, dir, memory)
	t.Cleanup(func() { harness.KillBelow(t, dir) })
	c := &cluster{t: t, dir: dir, disks: map[string]*harness.Disk{}, procs: map[string]*harness.Proc{}, starts: map[string]int{}, since: map[string]time.Time{}, sick: map[string]bool{}, mayEnd: map[string]bool{},
		guard: protection(seed)}
	c.net = harness.NewNet(t, slices.Concat(servers, agents, other)...)
	for i, s := range servers {
		if i == 1 {
			c.disks[s] = harness.NewMemoryDisk(t, c.data(s), diskSize)
		} else {
			c.disks[s] = harness.NewDisk(t, c.data(s), diskSize)
		}
	}
	harness.NewDisk(t, c.data("probe"), diskSize)
	c.probe()
	key, join := secret(), secret()
	ca := ""
	if c.guard == mutual {
		ca = c.certificates()
	}
	for i, h := range c.net.Hosts {
		backend := []string{"wal", "boltdb"}[(seed+uint64(i))/2%2]
		if err := os.WriteFile(filepath.Join(dir, h.Name+".hcl"), []byte(c.config(h, backend, key, join)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, c.addr(s))
	}
	c.api = harness.NewAPI(t, c.net.Dial, ca, addrs...)
	for _, s := range slices.Concat(servers, other) {
		c.start(s)
	}
	if c.guard != open {
		c.bootstrap()
	}
	for _, a := range agents {
		if c.guard == acls {
			c.introduce(a)
		}
		c.start(a)
	}
	harness.Eventually(t, 60*time.Second, "both regions and their nodes", func() (bool, string) {
		var nodes []struct{ Status string }
		err := c.api.Call("GET", "/v1/nodes", nil, &nodes)
		if err == nil {
			err = c.api.Call("GET", "/v1/vars?region="+region, nil, nil)
		}
		ready := 0
		for _, n := range nodes {
			if n.Status == "ready" {
				ready++
			}
		}
		return err == nil && ready == len(agents), fmt.Sprint(nodes, err)
	})
	// A server that joins again votes after a second, so that the schedule continues soon.
	pilot := dict{"CleanupDeadServers": true, "LastContactThreshold": "200ms", "MaxTrailingLogs": 250, "ServerStabilizationTime": "1s"}
	if err := c.api.Call("PUT", "/v1/operator/autopilot/configuration", pilot, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

// probe measures writes to another disk until the test ends.
func (c *cluster) probe() {
	f, err := os.Create(filepath.Join(c.data("probe"), "probe"))
	if err != nil {
		c.t.Fatal(err)
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	c.t.Cleanup(func() { close(stop); <-ended; f.Close() })
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
			began := time.Now()
			_, err := f.WriteAt(make([]byte, 4096), 0)
			if err = errors.Join(err, f.Sync()); err != nil {
				c.t.Errorf("the disk without faults: %v", err)
				return
			}
			c.longest.Store(max(c.longest.Load(), int64(time.Since(began))))
		}
	}()
}

// stalled returns how long a write to a disk without faults took, at most.
func (c *cluster) stalled() time.Duration { return time.Duration(c.longest.Load()) }

func (c *cluster) data(name string) string { return filepath.Join(c.dir, "data-"+name) }
func (c *cluster) addr(name string) string {
	if c.guard == mutual {
		return "https://" + c.net.Host(name).IP + ":4646"
	}
	return "http://" + c.net.Host(name).IP + ":4646"
}

// secret returns a new key for gossip or servers.
func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

// certificates makes a CA, whose file it returns, and a certificate for each host.
func (c *cluster) certificates() (ca string) {
	c.t.Helper()
	dir := filepath.Join(c.dir, "tls")
	if err := os.Mkdir(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	run := func(args ...string) {
		cmd := exec.Command(harness.Bin(c.t), args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("muster %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	found := func(pattern string) string {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		if len(files) != 1 {
			c.t.Fatalf("want one %s, have %v", pattern, files)
		}
		return files[0]
	}
	run("tls", "ca", "create")
	for _, h := range c.net.Hosts {
		role, of := "server", "global"
		if slices.Contains(agents, h.Name) {
			role = "client"
		}
		if slices.Contains(other, h.Name) {
			of = region
		}
		run("tls", "cert", "create", "-"+role, "-region", of, "-additional-ipaddress", h.IP)
		for _, end := range []string{"-key.pem", ".pem"} { // the key first, since both names end with .pem
			if err := os.Rename(found(of+"-"+role+"-*"+end), filepath.Join(dir, h.Name+end)); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return found("*-agent-ca.pem")
}

// bootstrap makes the first token of both regions; they get the same one, because tokens are of a region.
func (c *cluster) bootstrap() {
	c.t.Helper()
	c.api.Bootstrap(c.t, 60*time.Second)
	harness.Eventually(c.t, 60*time.Second, "the first token of the other region", func() (bool, string) {
		err := c.api.At(c.addr(other[0])).Call("PUT", "/v1/acl/bootstrap", map[string]string{"BootstrapSecret": c.api.Token}, nil)
		var status *harness.StatusError
		return err == nil || errors.As(err, &status) && strings.Contains(status.Body, "already done"), fmt.Sprint(err)
	})
}

// introduce gives an agent a token to register with.
func (c *cluster) introduce(name string) {
	c.t.Helper()
	var intro struct{ JWT string }
	if err := c.api.Call("PUT", "/v1/acl/identity/client-introduction-token", nil, &intro); err != nil {
		c.t.Fatal(err)
	}
	path := filepath.Join(c.dir, name+".hcl")
	conf, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	with := strings.Replace(string(conf), "client {\n", fmt.Sprintf("client {\n  intro_token = %q\n", intro.JWT), 1)
	if err := os.WriteFile(path, []byte(with), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// config returns the configuration of a host's agent. Logs are cut often, so that servers that lag receive snapshots.
func (c *cluster) config(h *harness.Host, backend, key, joinKey string) string {
	join := func(port string, hosts []string) string {
		var all []string
		for _, s := range hosts {
			all = append(all, fmt.Sprintf("%q", c.net.Host(s).IP+":"+port))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	conf := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = %q\n", h.Name, c.data(h.Name), h.IP)
	proof := ""
	switch c.guard {
	case open:
		conf += "insecure = true\n"
	case acls:
		conf += "acl {\n  enabled = true\n}\ninsecure = true\n"
		proof = fmt.Sprintf("  join_key = %q\n", joinKey)
	case mutual:
		dir := filepath.Join(c.dir, "tls")
		ca, _ := filepath.Glob(filepath.Join(dir, "*-agent-ca.pem"))
		conf += fmt.Sprintf("acl {\n  enabled = true\n}\ntls {\n  http = true\n  rpc = true\n  ca_file = %q\n  cert_file = %q\n  key_file = %q\n  verify_server_hostname = true\n  verify_https_client = false\n}\n",
			ca[0], filepath.Join(dir, h.Name+".pem"), filepath.Join(dir, h.Name+"-key.pem"))
	}
	if slices.Contains(agents, h.Name) {
		return conf + fmt.Sprintf("client {\n  enabled = true\n  servers = %s\n}\nserver {\n  encrypt = %q\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", join("4647", servers), key)
	}
	expect := len(servers)
	if slices.Contains(other, h.Name) {
		conf += fmt.Sprintf("region = %q\n", region)
		expect = len(other)
	}
	return conf + fmt.Sprintf(`server {
  enabled                 = true
  bootstrap_expect        = %d
  encrypt                 = %q
%s  raft_snapshot_threshold = 300
  raft_snapshot_interval  = "1s"
  raft_trailing_logs      = 200
  raft_logstore {
    backend = %q
    wal {
      segment_size_mb = 1
    }
  }
  server_join {
    retry_join     = %s
    retry_interval = "1s"
  }
}
`, expect, key, proof, backend, join("4648", slices.Concat(servers, other)))
}

func (c *cluster) start(name string) {
	p := harness.Start(c.t, c.net.Host(name), name, nil, "agent", "-config", filepath.Join(c.dir, name+".hcl"))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.procs[name] = p
	c.starts[name]++
	c.since[name] = time.Now()
}

// catchUp is how long a server that was started may take until it has its state.
const catchUp = 5 * time.Second

// answersItself reports whether stale reads of a server show its own state. With ACLs, one that does not know the newest
// rights yet leaves them to the leader, and its own state may then be older than what the leader has shown.
func (c *cluster) answersItself(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.guard == open || time.Since(c.since[name]) > catchUp
}

func (c *cluster) proc(name string) *harness.Proc {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.procs[name]
}

// kill ends a process with -9.
func (c *cluster) kill(name string) {
	c.examine(name)
	c.proc(name).Kill9()
}

// revive starts a process that was killed, or that ended because its disk had failed.
func (c *cluster) revive(name string) {
	if ended, _ := c.proc(name).Exited(); ended {
		c.examine(name)
		c.start(name)
		c.mayEnd[name] = c.sick[name]
	}
}

// reviveAll revives every other process, when no fault of it is left. One whose disk had failed may take a while to end.
func (c *cluster) reviveAll(except ...string) {
	for _, h := range c.net.Hosts {
		if !slices.Contains(except, h.Name) {
			c.revive(h.Name)
		}
	}
}

// fail notes that the disk of a server fails from now on, and heal that it is well again.
func (c *cluster) fail(name string) { c.sick[name], c.mayEnd[name] = true, true }
func (c *cluster) heal(name string) { c.sick[name] = false }

// examine fails the test if a process has crashed.
func (c *cluster) examine(name string) {
	c.t.Helper()
	p := c.proc(name)
	log := p.Log.String()
	for _, bad := range []string{"panic:", "fatal error:", "DATA RACE"} {
		if strings.Contains(log, bad) {
			c.t.Errorf("%s crashed:\n%s", name, p.Log.Tail(60))
		}
	}
	ended, err := p.Exited()
	if strings.Contains(log, "the disk of the raft log hangs") && c.stalled() > stall {
		c.t.Logf("%s ended because a write hung; so did one of the test, for %s: the machine was busy", name, c.stalled())
		return
	}
	if ended && err != nil && !strings.Contains(err.Error(), "killed") && !c.mayEnd[name] {
		c.t.Errorf("%s ended by itself (%v) although its disk was well:\n%s", name, err, p.Log.Tail(30))
	}
}

// incarnation names a server together with the number of its start.
func (c *cluster) incarnation(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("%s#%d", name, c.starts[name])
}

// leader returns the server that leads according to most of those that answer, or "".
func (c *cluster) leader() string {
	votes := map[string]int{}
	best := ""
	for _, s := range servers {
		var l string
		if c.api.At(c.addr(s)).Within(time.Second).Call("GET", "/v1/status/leader", nil, &l) != nil {
			continue
		}
		for _, n := range servers {
			if strings.HasPrefix(l, c.net.Host(n).IP+":") {
				votes[n]++
			}
			if votes[n] > votes[best] {
				best = n
			}
		}
	}
	return best
}

// settled waits until a server leads and all servers have the same state.
func (c *cluster) settled() {
	c.t.Helper()
	harness.Eventually(c.t, 60*time.Second, "three servers with one state hash at one index", func() (bool, string) {
		c.reviveAll()
		type hash struct {
			Server, Hash string
			Index        uint64
		}
		var got []hash
		for _, s := range servers {
			var h hash
			if err := c.api.At(c.addr(s)).Call("GET", "/v1/operator/state-hash?stale=true", nil, &h); err != nil {
				return false, s + ": " + err.Error()
			}
			got = append(got, h)
		}
		same := func(h hash) bool { return h.Index == got[0].Index && h.Hash == got[0].Hash }
		return !slices.ContainsFunc(got, func(h hash) bool { return !same(h) }), fmt.Sprint(got)
	})
}

// rejoin removes a server from raft, and lets it join again with an empty disk.
func (c *cluster) rejoin(name string, wait time.Duration) {
	c.t.Helper()
	peer := c.net.Host(name).IP + ":4647"
	harness.Eventually(c.t, 30*time.Second, "removing "+name, func() (bool, string) {
		c.reviveAll(name)
		err := c.api.Call("DELETE", "/v1/operator/raft/peer?address="+peer, nil, nil)
		var status *harness.StatusError
		return err == nil || errors.As(err, &status) && status.Status == 404, fmt.Sprint(err) // 404: an earlier attempt removed it
	})
	time.Sleep(wait)
	c.kill(name)
	if d := c.disks[name]; d != nil {
		d.Replace()
	}
	c.start(name)
	c.heal(name)
	c.mayEnd[name] = false
	c.voters()
}

// voters waits until all servers vote. There must be no fault.
func (c *cluster) voters() {
	c.t.Helper()
	harness.Eventually(c.t, 60*time.Second, "all servers to vote", func() (bool, string) {
		c.reviveAll()
		var conf struct {
			Servers []struct {
				Node   string
				Voter  bool
				Leader bool
			}
		}
		err := c.api.Call("GET", "/v1/operator/raft/configuration", nil, &conf)
		n := 0
		for _, s := range conf.Servers {
			if s.Voter {
				n++
			}
		}
		return err == nil && n == len(servers) && len(conf.Servers) == n, fmt.Sprint(conf, err)
	})
}
