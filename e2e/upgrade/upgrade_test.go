//go:build e2e

// Package upgrade rolls a cluster from an old build to a later one and back, under load, and finishes the upgrade. The old
// build is the commit that the file OLD names. The later one is the tree with testdata/next.overlay: a format with a
// command, a table, fields of known commands and a conversion, and newer protocols between agents. While versions are mixed,
// every type of command is sent (commands_test.go).
package upgrade

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/e2e/overlay"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/golden"
	"github.com/muster-sched/muster/internal/version"
)

const root = "../.."

// builds returns the path of a binary in bin/upgrade, where a later run finds it: go build links nothing that is up to date.
func builds(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(root, "bin", "upgrade"))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// buildOld builds the commit that OLD names. MUSTER_OLD_BIN is a binary of it that exists already.
func buildOld(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("MUSTER_OLD_BIN"); bin != "" {
		return bin
	}
	b, err := os.ReadFile("OLD")
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(b))
	if out, err := exec.Command("git", "-C", root, "cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("the commit %s, which e2e/upgrade/OLD names, is not in this clone: fetch the whole history (git fetch --unshallow)\n%s", commit, out)
	}
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `git -C "$1" archive "$2" | tar -x -C "$3"`, "sh", root, commit, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v\n%s", commit, err, out)
	}
	bin := builds(t, "muster-old")
	if err := overlay.Build(dir, "./cmd/muster", bin, "", nil); err != nil {
		t.Fatal(err)
	}
	return bin
}

// buildNext builds the tree with the overlay. MUSTER_NEXT_BIN is a binary of it that exists already.
func buildNext(t *testing.T) string {
	t.Helper()
	if bin := os.Getenv("MUSTER_NEXT_BIN"); bin != "" {
		return bin
	}
	change, err := overlay.Read("testdata/next.overlay", map[string]string{
		"version": version.Version, "newest": fmt.Sprint(feature.Newest), "next": fmt.Sprint(feature.Newest + 1)})
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	bin := builds(t, "muster-next")
	if err := overlay.Build(top, "./cmd/muster", bin, t.TempDir(), change); err != nil {
		t.Fatal(err)
	}
	return bin
}

// agent is a server or a client, which runs one of the two builds.
type agent struct {
	name, conf, addr, raft string
	proc                   *harness.Proc
}

type cluster struct {
	t                *testing.T
	dir              string
	servers, clients []*agent
	api              *harness.API
	load             *load
	rpc              string // addresses of the servers, for configurations
	windows          []*window
	round            int // of eachCommand
}

// clientConf is the part of an agent's configuration that lets it register and run tasks.
func (c *cluster) clientConf() string {
	c.t.Helper()
	var intro struct{ JWT string }
	c.call("PUT", "/v1/acl/identity/client-introduction-token", nil, &intro)
	return fmt.Sprintf("acl {\n  enabled = true\n}\nclient {\n  enabled = true\n  servers = [%s]\n  intro_token = %q\n}\nplugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n", c.rpc, intro.JWT)
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, dir: t.TempDir()}
	t.Cleanup(func() { harness.KillBelow(t, c.dir) })
	var joins, calls, addrs []string
	add := func(name string) (*agent, string) {
		http, rpc, serf := harness.FreePort(t), harness.FreePort(t), harness.FreePort(t)
		a := &agent{name: name, conf: filepath.Join(c.dir, name+".hcl"), addr: fmt.Sprintf("http://127.0.0.1:%d", http), raft: fmt.Sprintf("127.0.0.1:%d", rpc)}
		conf := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nleave_on_terminate = false\nports {\n  http = %d\n  rpc  = %d\n  serf = %d\n}\n",
			name, filepath.Join(c.dir, name), http, rpc, serf)
		if name[0] == 's' {
			joins, calls, addrs = append(joins, fmt.Sprintf("%q", fmt.Sprint("127.0.0.1:", serf))), append(calls, fmt.Sprintf("%q", a.raft)), append(addrs, a.addr)
		}
		return a, conf
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	key := base64.StdEncoding.EncodeToString(secret)
	confs := map[*agent]string{}
	for _, name := range []string{"s1", "s2", "s3", "c1", "c2"} {
		a, conf := add(name)
		confs[a] = conf
		if name[0] == 's' {
			c.servers = append(c.servers, a)
		} else {
			c.clients = append(c.clients, a)
		}
	}
	for a, conf := range confs {
		if a.name[0] == 's' {
			conf += fmt.Sprintf("acl {\n  enabled = true\n}\nserver {\n  enabled = true\n  bootstrap_expect = 3\n  join_key = %q\n  server_join {\n    retry_join = [%s]\n  }\n}\n", key, strings.Join(joins, ", "))
		}
		if err := os.WriteFile(a.conf, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.api, c.rpc = harness.NewAPI(t, nil, "", addrs...), strings.Join(calls, ", ")
	return c
}

func (c *cluster) start(a *agent, bin string) {
	c.t.Helper()
	a.proc = harness.StartProgram(c.t, nil, bin, a.name, nil, "agent", "-config", a.conf)
}

// stop ends an agent as an operator does.
func (c *cluster) stop(a *agent) {
	c.t.Helper()
	a.proc.Signal(syscall.SIGTERM)
	if err := a.proc.WaitExit(30 * time.Second); err != nil && !strings.Contains(err.Error(), "exit status") {
		c.t.Fatalf("stop %s: %v", a.name, err)
	}
}

// call is a request to any server.
func (c *cluster) call(method, path string, in, out any) {
	c.t.Helper()
	harness.Eventually(c.t, 20*time.Second, method+" "+path, func() (bool, string) {
		err := c.api.Call(method, path, in, out)
		return err == nil, fmt.Sprint(err)
	})
}

// leader returns the server that leads.
func (c *cluster) leader() *agent {
	c.t.Helper()
	var addr string
	var a *agent
	harness.Eventually(c.t, 30*time.Second, "a leader", func() (bool, string) {
		err := c.api.Call("GET", "/v1/status/leader", nil, &addr)
		if i := slices.IndexFunc(c.servers, func(a *agent) bool { return a.raft == addr }); err == nil && i >= 0 {
			a = c.servers[i]
		}
		return a != nil, fmt.Sprint(addr, err)
	})
	return a
}

// roll replaces the servers one by one, then the agents. The first server that was replaced leads the mixed cluster, which
// is when a release can do harm; mixed is called then, and with each every command is sent. It wants at most one election for a server.
func (c *cluster) roll(bin string, each bool, mixed func()) {
	c.t.Helper()
	before := c.term()
	lead := c.leader()
	order := slices.DeleteFunc(slices.Clone(c.servers), func(a *agent) bool { return a == lead })
	for i, a := range append(order, lead) {
		c.stop(a)
		if each && i == len(order) {
			c.windows[len(c.windows)-1].read(c.t, filepath.Join(c.dir, a.name))
		}
		c.start(a, bin)
		c.follows(a)
		if i == 0 {
			c.call("PUT", "/v1/operator/raft/transfer-leadership?address="+a.raft, nil, nil)
			harness.Eventually(c.t, 20*time.Second, a.name+" leads", func() (bool, string) { return c.leader() == a, "" })
			mixed()
			if each {
				c.windows = append(c.windows, &window{leader: filepath.Base(bin), from: c.index(), seen: map[int]int{}})
				c.eachCommand(bin)
			}
		}
		c.load.more(c.t, 30)
	}
	if got := c.term() - before; got > len(c.servers) {
		c.t.Errorf("%d elections while %d servers were replaced, want at most one for a server", got, len(c.servers))
	}
	for _, a := range c.clients {
		c.stop(a)
		c.start(a, bin)
	}
	c.ready()
	c.hashes()
}

// term returns raft's term, which every election raises.
func (c *cluster) term() int {
	c.t.Helper()
	var self struct {
		Stats map[string]map[string]string `json:"stats"`
	}
	c.call("GET", "/v1/agent/self", nil, &self)
	n, err := strconv.Atoi(self.Stats["raft"]["term"])
	if err != nil {
		c.t.Fatalf("the term is %q: %v", self.Stats["raft"]["term"], err)
	}
	return n
}

// follows waits until a server that was replaced has applied what the cluster had when it was asked, and autopilot calls
// all servers healthy.
func (c *cluster) follows(a *agent) {
	c.t.Helper()
	type hash struct{ Index uint64 }
	var want hash
	c.call("GET", "/v1/operator/state-hash", nil, &want)
	harness.Eventually(c.t, 60*time.Second, a.name+" follows", func() (bool, string) {
		if gone, err := a.proc.Exited(); gone {
			c.t.Fatalf("%s has ended: %v\n%s", a.name, err, a.proc.Log.Tail(20))
		}
		var have hash
		var h struct{ Healthy bool }
		err := c.api.At(a.addr).Call("GET", "/v1/operator/state-hash?stale=true", nil, &have)
		if err == nil {
			err = c.api.At(a.addr).Call("GET", "/v1/operator/autopilot/health", nil, &h)
		}
		return err == nil && h.Healthy && have.Index >= want.Index, fmt.Sprint(have, want, err)
	})
}

// ready waits until all nodes are ready.
func (c *cluster) ready() {
	c.t.Helper()
	harness.Eventually(c.t, 60*time.Second, "all nodes are ready", func() (bool, string) {
		var list []struct{ Name, Status string }
		err := c.api.Call("GET", "/v1/nodes", nil, &list)
		good := err == nil && len(list) == len(c.clients)
		for _, n := range list {
			good = good && n.Status == "ready"
		}
		for _, a := range c.clients {
			if gone, err := a.proc.Exited(); gone {
				c.t.Fatalf("%s has ended: %v\n%s", a.name, err, a.proc.Log.Tail(20))
			}
		}
		return good, fmt.Sprint(list, err)
	})
}

// hashes waits until all servers have the same state hash at one index.
func (c *cluster) hashes() {
	c.t.Helper()
	type hash struct {
		Server, Hash  string
		Index, Format uint64
	}
	harness.Eventually(c.t, 60*time.Second, "equal state hashes", func() (bool, string) {
		var all []hash
		for _, a := range c.servers {
			var h hash
			if err := c.api.At(a.addr).Call("GET", "/v1/operator/state-hash?stale=true", nil, &h); err != nil {
				return false, err.Error()
			}
			all = append(all, h)
		}
		for _, h := range all {
			if h.Index != all[0].Index || h.Hash != all[0].Hash || h.Format != all[0].Format {
				return false, fmt.Sprint(all)
			}
		}
		return true, ""
	})
}

// tasks returns pid and start time of every process of the steady job, as the kernel has them.
func (c *cluster) tasks() map[string]string {
	c.t.Helper()
	as, err := c.api.Allocs("steady")
	if err != nil {
		c.t.Fatal(err)
	}
	out := map[string]string{}
	for _, task := range harness.Tasks(c.dir) {
		if slices.ContainsFunc(as, func(a harness.Alloc) bool { return a.ID == task.AllocID }) {
			out[fmt.Sprint(task.Pid)] = fmt.Sprint(task)
		}
	}
	return out
}

// load writes to the cluster until it is stopped, and remembers what was acknowledged.
type load struct {
	pause sync.RWMutex // held for reading while something is written
	mu    sync.Mutex
	acked map[string]string // description by namespace
	wg    sync.WaitGroup
	stop  context.CancelFunc
}

func startLoad(t *testing.T, c *cluster) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{acked: map[string]string{}, stop: cancel}
	t.Cleanup(l.end)
	for w := range 3 {
		l.wg.Add(1)
		go func() {
			defer l.wg.Done()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ctx.Err() == nil; i++ {
				l.write(c, w, i)
				<-tick.C
			}
		}()
	}
	return l
}

// write sends one of the usual writes.
func (l *load) write(c *cluster, w, i int) {
	l.pause.RLock()
	defer l.pause.RUnlock()
	name := fmt.Sprintf("load-%d-%d", w, i)
	if err := c.api.Call("PUT", "/v1/namespace/"+name, map[string]string{"Name": name, "Description": fmt.Sprint(i)}, nil); err == nil {
		l.mu.Lock()
		l.acked[name] = fmt.Sprint(i)
		l.mu.Unlock()
	}
	id := "job-" + name
	if c.api.Call("PUT", "/v1/jobs", map[string]any{"Job": batch(id)}, nil) == nil {
		_ = c.api.Call("PUT", "/v1/job/"+id+"/priority", map[string]int{"Priority": 60}, nil)
		_ = c.api.Call("DELETE", "/v1/job/"+id, nil, nil)
	}
}

func (l *load) end() {
	l.stop()
	l.wg.Wait()
}

// more waits until n more writes were acknowledged.
func (l *load) more(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.acked)
	}
	from := count()
	harness.Eventually(t, 30*time.Second, fmt.Sprint(n, " more writes are acknowledged"), func() (bool, string) { return count() >= from+n, fmt.Sprint(count() - from) })
}

// check wants every acknowledged write to be there.
func (l *load) check(t *testing.T, c *cluster) {
	t.Helper()
	var list []struct{ Name, Description string }
	c.call("GET", "/v1/namespaces?per_page=10000", nil, &list)
	have := map[string]string{}
	for _, n := range list {
		have[n.Name] = n.Description
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := 0
	for name, want := range l.acked {
		if have[name] != want {
			lost++
		}
	}
	if lost > 0 || len(l.acked) == 0 {
		t.Errorf("%d of %d acknowledged writes are lost", lost, len(l.acked))
	}
	t.Logf("%d writes were acknowledged, %d are lost", len(l.acked), lost)
}

// batch is a job that no node can run.
func batch(id string) map[string]any {
	return map[string]any{"ID": id, "Name": id, "Type": "batch", "Constraints": []any{map[string]string{"LTarget": "${node.class}", "RTarget": "none", "Operand": "="}},
		"TaskGroups": []any{map[string]any{"Name": "g", "Count": 1, "Tasks": []any{map[string]any{"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/true"}}}}}}
}

// TestBuilds makes both builds. CI runs it early, at low priority, since it takes minutes where the build cache is cold
// (make upgrade-builds).
func TestBuilds(t *testing.T) {
	for _, bin := range []string{buildOld(t), buildNext(t)} {
		if out, err := exec.Command(bin, "version").CombinedOutput(); err != nil {
			t.Errorf("%s version: %v\n%s", bin, err, out)
		}
	}
}

func TestUpgrade(t *testing.T) {
	began := time.Now()
	before, next := buildOld(t), buildNext(t)
	t.Logf("built both after %s", time.Since(began).Round(time.Second))
	c := newCluster(t)
	for _, a := range c.servers {
		c.start(a, before)
	}
	c.api.Bootstrap(t, 60*time.Second)
	for _, a := range c.clients {
		f, err := os.OpenFile(a.conf, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(c.clientConf()); err != nil {
			t.Fatal(err)
		}
		f.Close()
		c.start(a, before)
	}
	c.ready()
	const steady = 4
	c.call("PUT", "/v1/jobs", map[string]any{"Job": map[string]any{"ID": "steady", "Type": "service", "TaskGroups": []any{map[string]any{"Name": "g", "Count": steady,
		"Tasks": []any{map[string]any{"Name": "t", "Driver": "raw_exec", "Config": map[string]any{"command": "/bin/sleep", "args": []string{"100000"}},
			"Resources": map[string]int{"CPU": 10, "MemoryMB": 16}}}}}}}, nil)
	c.running(steady)
	tasks := c.tasks()
	c.load = startLoad(t, c)

	format := c.format()
	for i := range harness.Number(t, "ROUNDS", 1) {
		t.Logf("%s: rolling forth", time.Since(began).Round(time.Second))
		c.roll(next, i == 0, c.refused)
		t.Logf("%s: rolling back", time.Since(began).Round(time.Second))
		c.roll(before, i == 0, c.refused)
	}
	t.Logf("%s: rolling forth to stay", time.Since(began).Round(time.Second))
	c.roll(next, false, c.refused)
	if got := c.format(); got != format {
		t.Errorf("format %d is in force, although nobody has finished the upgrade from %d", got, format)
	}
	c.finish(next)
	c.load.end()
	c.load.check(t, c)
	c.hashes()
	c.running(steady)
	if now := c.tasks(); !maps.Equal(now, tasks) {
		t.Errorf("tasks were restarted:\nbefore %v\nnow    %v", tasks, now)
	}
	c.noWayBack(before)
	for _, w := range c.windows {
		w.check(t)
	}
}

// running waits until the steady job runs, with no restart.
func (c *cluster) running(n int) {
	c.t.Helper()
	harness.Eventually(c.t, 60*time.Second, "the steady job runs", func() (bool, string) {
		as, err := c.api.Allocs("steady")
		return err == nil && len(as) == n && harness.Count(as, "running") == n, fmt.Sprint(as, err)
	})
}

// status is what `muster operator upgrade status` shows.
type status struct {
	Format, Next uint64
	Why          string
	Servers      []struct {
		Name, Muster, Formats string
		Leader                bool
	}
	Gates []struct {
		Name string
		Open bool
	}
}

func (c *cluster) format() uint64 {
	c.t.Helper()
	var st status
	c.call("GET", "/v1/operator/upgrade", nil, &st)
	return st.Format
}

// refused wants what is new to be refused before the upgrade is finished, without harm. An old leader does not know it.
func (c *cluster) refused() {
	c.t.Helper()
	var st status
	c.call("GET", "/v1/operator/upgrade", nil, &st)
	for _, s := range st.Servers {
		if s.Leader && s.Muster == version.Version {
			return
		}
	}
	if st.Next != st.Format || st.Why == "" {
		c.t.Errorf("an upgrade could be finished while a server runs the old build: %+v", st)
	}
	if err := c.api.Call("PUT", "/v1/operator/upgrade/finish", nil, nil); err == nil {
		c.t.Error("an upgrade was finished while a server runs the old build")
	}
	for path, in := range map[string]any{"/v1/system/reconcile/summaries": nil, "/v1/namespace/early": map[string]string{"Name": "early", "Description": "probe"}} {
		err := c.api.Call("PUT", path, in, nil)
		if se, ok := err.(*harness.StatusError); !ok || se.Status != 409 || !strings.Contains(se.Body, "muster operator upgrade finish") {
			c.t.Errorf("PUT %s before the upgrade is finished: %v; want 409 with what to do", path, err)
		}
	}
}

// finish finishes the upgrade and uses what is new.
func (c *cluster) finish(next string) {
	c.t.Helper()
	var st status
	c.call("GET", "/v1/operator/upgrade", nil, &st)
	if st.Next <= st.Format || st.Why != "" || len(st.Servers) != len(c.servers) {
		c.t.Fatalf("the upgrade cannot be finished: %+v", st)
	}
	c.followPage(next)
	if got := c.format(); got != st.Next {
		c.t.Fatalf("format %d is in force after the commands of the page, want %d", got, st.Next)
	}
	c.call("PUT", "/v1/system/reconcile/summaries", nil, nil)
	c.call("PUT", "/v1/namespace/late", map[string]string{"Name": "late", "Description": "probe"}, nil)
	c.hashes()
}

// upgradePage is what operators read.
const upgradePage = root + "/docs/operate/upgrade.md"

// followPage runs the commands of the page about upgrades, in order. The last one finishes the upgrade.
func (c *cluster) followPage(bin string) {
	c.t.Helper()
	page, err := os.ReadFile(upgradePage)
	if err != nil {
		c.t.Fatal(err)
	}
	dir, last := c.t.TempDir(), ""
	for line := range strings.Lines(string(page)) {
		args, ok := strings.CutPrefix(strings.TrimSpace(line), "muster ")
		if !ok {
			continue
		}
		cmd := exec.Command(bin, strings.Fields(args)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "MUSTER_ADDR="+c.leader().addr, "MUSTER_TOKEN="+c.api.Token)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("muster %s, as %s says: %v\n%s", args, upgradePage, err, out)
		}
		last = args
	}
	if last != "operator upgrade finish -yes" {
		c.t.Errorf("the last command of %s is %q", upgradePage, last)
	}
	if _, err := os.Stat(filepath.Join(dir, "before-upgrade.snap")); err != nil {
		c.t.Errorf("the snapshot that %s saves: %v", upgradePage, err)
	}
}

// noWayBack wants the old build to refuse the data of a finished upgrade in one sentence.
func (c *cluster) noWayBack(before string) {
	c.t.Helper()
	a := c.servers[0]
	c.stop(a)
	c.start(a, before)
	if err := a.proc.WaitExit(30 * time.Second); err == nil || strings.Contains(err.Error(), "still runs") {
		c.t.Errorf("the old build started on the data of a finished upgrade: %v", err)
	}
	log := a.proc.Log.String()
	if !strings.Contains(log, "`muster operator upgrade finish` cannot be undone; run Muster 9.9.9 or later") || strings.Contains(log, "goroutine ") {
		c.t.Errorf("the old build does not end with one sentence:\n%s", a.proc.Log.Tail(20))
	}
}

// TestGoldensOfTheOldBuild wants every golden that the old build has to be as it was: it freezes a format that no release has
// yet. While none has, OLD may move to a later commit with a change of the format; afterwards the change needs a gate.
func TestGoldensOfTheOldBuild(t *testing.T) {
	b, err := os.ReadFile("OLD")
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(b))
	list, err := exec.Command("git", "-C", root, "ls-tree", "-r", "--name-only", "--full-tree", commit).Output()
	if err != nil {
		t.Fatalf("the commit %s, which e2e/upgrade/OLD names, is not in this clone: fetch the whole history (git fetch --unshallow)", commit)
	}
	n := 0
	for path := range strings.Lines(string(list)) {
		path = strings.TrimSpace(path)
		if !strings.Contains(path, "/testdata/formats/") {
			continue
		}
		n++
		old, err := exec.Command("git", "-C", root, "show", commit+":"+path).Output()
		if err != nil {
			t.Fatal(err)
		}
		if now, err := os.ReadFile(filepath.Join(root, path)); err != nil || golden.Digest(old) != golden.Digest(now) {
			t.Errorf("%s differs from that of the old build (%v): %s", path, err, golden.Raise)
		}
	}
	if n == 0 {
		t.Errorf("the commit %s has no goldens", commit)
	}
	t.Logf("%d goldens of %s", n, commit)
}
