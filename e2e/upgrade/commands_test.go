//go:build e2e

package upgrade

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/server/raftlog"
)

// unsent are the commands that this test cannot make the servers write while their versions are mixed, and why.
var unsent = map[string]string{
	"Plan":          "plans are written together, by Plans",
	"Batch":         "no server proposes a batch",
	"ClusterInit":   "it is the first command of a cluster",
	"UpgradeFinish": "it is refused while versions are mixed, and used when they are not",
	"AcctCollect":   "it needs an accounting record that is 30 days old, or 100,000 of them",
	"NodeEvent":     "agents send it when the health of a driver or a GPU changes",
}

// commandTypes returns the numbers of the commands by name, from the table of package fsm.
func commandTypes(t *testing.T) map[string]int {
	t.Helper()
	b, err := os.ReadFile(root + "/fsm/commands.go")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\t(?:command|encodedCommand)\((\d+), apply(\w+)`).FindAllStringSubmatch(string(b), -1) {
		n, _ := strconv.Atoi(m[1])
		out[m[2]] = n
	}
	if rows := len(regexp.MustCompile(`(?m)^\t\w+\(\d+, `).FindAll(b, -1)); len(out) == 0 || len(out) != rows {
		t.Fatalf("fsm/commands.go has %d rows of commands, of which %d are understood", rows, len(out))
	}
	for name, why := range unsent {
		if out[name] == 0 {
			t.Errorf("there is no command %s, of which is said that %s", name, why)
		}
	}
	return out
}

// window is the part of the log that was written while one build led and other servers ran another one.
type window struct {
	leader string
	from   uint64      // the index before
	seen   map[int]int // entries by the number of their command
}

func (c *cluster) index() uint64 {
	c.t.Helper()
	var h struct{ Index uint64 }
	c.call("GET", "/v1/operator/state-hash", nil, &h)
	return h.Index
}

// read counts the entries that a stopped server has in its log.
func (w *window) read(t *testing.T, dataDir string) {
	t.Helper()
	log, err := raftlog.Open(filepath.Join(dataDir, "server", "raft"), raftlog.Options{Backend: raftlog.Default}, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	first, err := log.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	last, err := log.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var e raft.Log
	for i := max(first, w.from+1); i <= last; i++ {
		if err := log.GetLog(i, &e); err != nil {
			t.Fatal(err)
		}
		if e.Type == raft.LogCommand && len(e.Data) > 0 {
			w.seen[int(e.Data[0])]++
		}
	}
}

// check wants every command of the table to be in a window.
func (w *window) check(t *testing.T) {
	t.Helper()
	types := commandTypes(t)
	sent := 0
	for _, name := range slices.Sorted(maps.Keys(types)) {
		switch n, why := w.seen[types[name]], unsent[name]; {
		case n > 0 && why == "":
			sent++
		case n > 0:
			t.Errorf("command %s (type %d) was applied %d times, although %s", name, types[name], n, why)
		case why == "":
			t.Errorf("no command %s (type %d) was applied while %s led a cluster of mixed versions; send it in e2e/upgrade/commands_test.go", name, types[name], w.leader)
		}
	}
	t.Logf("%d of %d types of commands were applied while %s led a cluster of mixed versions; not sent: %s", sent, len(types), w.leader, strings.Join(slices.Sorted(maps.Keys(unsent)), ", "))
}

type dict = map[string]any

// sleeper is a job of tasks that sleep, on the node of a name.
func sleeper(id, node string, group dict) dict {
	task := dict{"Name": "t", "Driver": "raw_exec", "Config": dict{"command": "/bin/sleep", "args": []string{"100000"}}, "Resources": dict{"CPU": 10, "MemoryMB": 16},
		"KillTimeout": time.Second, "Identities": []dict{{"Name": "out", "Audience": []string{"upgrade"}, "Env": true}},
		"Services": []dict{{"Name": id, "Provider": "nomad", "PortLabel": "p"}}}
	g := dict{"Name": "g", "Count": 1, "Tasks": []dict{task}, "Networks": []dict{{"DynamicPorts": []dict{{"Label": "p"}}}}}
	maps.Copy(g, group)
	return dict{"ID": id, "Name": id, "Type": "service", "TaskGroups": []dict{g}, "Constraints": []dict{{"LTarget": "${node.unique.name}", "RTarget": node, "Operand": "="}}}
}

// try sends a request until it is accepted.
func (c *cluster) try(d time.Duration, method, path string, in, out any) {
	c.t.Helper()
	harness.Eventually(c.t, d, method+" "+path, func() (bool, string) {
		err := c.api.Call(method, path, in, out)
		return err == nil, fmt.Sprint(err)
	})
}

// eachCommand makes the servers write each command that is not in unsent. The first server that was replaced leads. A
// third agent, of the build bin, comes for it and goes.
func (c *cluster) eachCommand(bin string) {
	c.t.Helper()
	began := time.Now()
	c.round++
	name := fmt.Sprint("round", c.round)

	c.restoreSnapshot(bin) // first: the log begins again with it
	node := c.extra(bin, name)
	c.call("PUT", "/v1/namespace/"+name, dict{"Name": name}, nil)
	c.call("DELETE", "/v1/namespace/"+name, nil, nil)
	c.call("PUT", "/v1/node/pool/"+name, dict{"Name": name}, nil)
	c.call("DELETE", "/v1/node/pool/"+name, nil, nil)
	c.call("PUT", "/v1/queue/"+name, dict{"Weight": 2}, nil)
	c.call("DELETE", "/v1/queue/"+name, nil, nil)
	c.call("PUT", "/v1/quota/"+name, dict{"Name": name, "Limits": []dict{{"Region": "global", "RegionLimit": dict{"CPU": 1000}}}}, nil)
	c.call("DELETE", "/v1/quota/"+name, nil, nil)

	// Rights.
	c.bootstrapAgain()
	c.call("PUT", "/v1/acl/policy/"+name, dict{"Name": name, "Rules": `namespace "default" { policy = "read" }`}, nil)
	var role struct{ ID string }
	c.call("PUT", "/v1/acl/role", dict{"Name": name, "Policies": []dict{{"Name": name}}}, &role)
	var token struct{ AccessorID string }
	c.call("PUT", "/v1/acl/token", dict{"Name": name, "Type": "client", "Policies": []string{name}}, &token)
	c.call("DELETE", "/v1/acl/token/"+token.AccessorID, nil, nil)
	c.call("DELETE", "/v1/acl/role/"+role.ID, nil, nil)
	c.call("DELETE", "/v1/acl/policy/"+name, nil, nil)
	var once struct {
		OneTimeToken struct{ OneTimeSecretID string }
	}
	c.call("PUT", "/v1/acl/token/onetime", nil, &once)
	c.call("PUT", "/v1/acl/token/onetime/exchange", dict{"OneTimeSecretID": once.OneTimeToken.OneTimeSecretID}, nil)

	// Settings.
	var conf struct{ SchedulerConfig dict }
	c.call("GET", "/v1/operator/scheduler/configuration", nil, &conf)
	conf.SchedulerConfig["PauseEvalBroker"] = true
	c.call("PUT", "/v1/operator/scheduler/configuration", conf.SchedulerConfig, nil)
	c.try(10*time.Second, "DELETE", "/v1/evaluations", dict{"Filter": `Status == "complete"`}, nil)
	conf.SchedulerConfig["PauseEvalBroker"] = false
	c.call("PUT", "/v1/operator/scheduler/configuration", conf.SchedulerConfig, nil)
	var pilot dict
	c.call("GET", "/v1/operator/autopilot/configuration", nil, &pilot)
	c.call("PUT", "/v1/operator/autopilot/configuration", pilot, nil)

	// A node, and work that runs on it.
	node.ready(c)
	c.call("PUT", "/v1/jobs", dict{"Job": sleeper(name, node.name, nil)}, nil)
	run := c.allocOf(name)
	c.call("PUT", "/v1/job/"+name+"/suspend", dict{}, nil)
	c.call("PUT", "/v1/job/"+name+"/resume", dict{}, nil)

	// Work that waits.
	wait := "/v1/job/wait-" + name
	c.call("PUT", "/v1/jobs", dict{"Job": batch("wait-" + name)}, nil)
	c.call("PUT", wait+"/hold", dict{}, nil)
	c.call("PUT", wait+"/release", dict{}, nil)
	c.call("PUT", wait+"/evaluate", dict{"JobID": "wait-" + name}, nil)
	c.call("PUT", wait+"/stable", dict{"JobID": "wait-" + name, "JobVersion": 0, "Stable": true}, nil)
	c.call("PUT", wait+"/versions/first/tag", dict{"Version": 0}, nil)
	c.call("PUT", wait+"/scale", dict{"Count": 2, "Target": dict{"Group": "g"}}, nil)
	c.call("DELETE", wait, nil, nil)
	c.call("PUT", "/v1/system/gc", nil, nil)
	periodic := batch("periodic-" + name)
	periodic["Periodic"] = dict{"Enabled": true, "Spec": "0 0 1 1 *", "SpecType": "cron"}
	c.call("PUT", "/v1/jobs", dict{"Job": periodic}, nil)
	c.call("PUT", "/v1/job/periodic-"+name+"/periodic/force", nil, nil)
	c.call("DELETE", "/v1/job/periodic-"+name, nil, nil)
	c.call("PUT", "/v1/reservation/"+name, dict{"NodePool": "default", "Duration": "1h", "Start": time.Now().Add(time.Hour), "Nodes": []string{node.id}}, nil)
	c.call("DELETE", "/v1/reservation/"+name, nil, nil)

	// Variables, and their keys. A rotation also makes a new key for identities, since the task above has one.
	c.call("PUT", "/v1/var/"+name, dict{"Items": dict{"a": "b"}}, nil)
	c.call("PUT", "/v1/var/gone-"+name, dict{"Items": dict{"a": "b"}}, nil)
	c.call("DELETE", "/v1/var/gone-"+name, nil, nil)
	var old []struct{ KeyID string }
	c.call("GET", "/v1/operator/keyring/keys", nil, &old)
	c.call("PUT", "/v1/operator/keyring/rotate", nil, nil)
	c.call("PUT", "/v1/operator/keyring/rotate?full=true", nil, nil)
	for _, k := range old {
		c.try(20*time.Second, "DELETE", "/v1/operator/keyring/key/"+url.PathEscape(k.KeyID), nil, nil)
	}

	// The end of the work, and of the node.
	var services []struct{ ID string }
	harness.Eventually(c.t, 20*time.Second, "the service of "+name, func() (bool, string) {
		err := c.api.Call("GET", "/v1/service/"+name, nil, &services)
		return err == nil && len(services) == 1, fmt.Sprint(err, services)
	})
	c.call("DELETE", "/v1/service/"+name+"/"+services[0].ID, nil, nil)
	c.call("PUT", "/v1/allocation/"+run+"/stop", dict{}, nil)
	c.call("DELETE", "/v1/job/"+name+"?purge=true", nil, nil)
	node.agent.proc.Signal(syscall.SIGSTOP) // so that the gang does not assemble
	c.call("PUT", "/v1/jobs", dict{"Job": sleeper("gang-"+name, node.name, dict{"Count": 2, "Gang": dict{"Timeout": time.Second}})}, nil)
	harness.Eventually(c.t, 20*time.Second, "the gang to be placed, and given up", func() (bool, string) {
		as, err := c.api.Allocs("gang-" + name)
		return err == nil && slices.ContainsFunc(as, func(a harness.Alloc) bool { return a.DesiredStatus == "stop" }), fmt.Sprint(as, err)
	})
	c.call("DELETE", "/v1/job/gang-"+name+"?purge=true", nil, nil)
	node.agent.proc.Signal(syscall.SIGCONT)
	at := "/v1/node/" + node.id
	c.call("PUT", at+"/taints", dict{"Add": []dict{{"Key": "upgrade", "Effect": "no-schedule"}}}, nil)
	c.call("PUT", at+"/eligibility", dict{"Eligibility": "ineligible"}, nil)
	c.call("PUT", at+"/drain", dict{"DrainSpec": dict{"Deadline": time.Second}}, nil)
	node.agent.proc.Signal(syscall.SIGTERM)
	if err := node.agent.proc.WaitExit(30 * time.Second); err != nil && !strings.Contains(err.Error(), "exit status") {
		c.t.Fatal(err)
	}
	c.call("PUT", at+"/purge", nil, nil)
	c.t.Logf("each command was sent in %s", time.Since(began).Round(100*time.Millisecond))
}

// extraNode is an agent that is there for one round.
type extraNode struct {
	*agent
	id string
}

// extra starts an agent that registers by an introduction token.
func (c *cluster) extra(bin, name string) *extraNode {
	c.t.Helper()
	a := &agent{name: "x-" + name}
	a.conf = filepath.Join(c.dir, a.name+".hcl")
	conf := fmt.Sprintf("name = %q\ndata_dir = %q\nbind_addr = \"127.0.0.1\"\nports {\n  http = %d\n}\n", a.name, filepath.Join(c.dir, a.name), harness.FreePort(c.t))
	if err := os.WriteFile(a.conf, []byte(conf+c.clientConf()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.start(a, bin)
	return &extraNode{agent: a}
}

// ready waits until the node is ready.
func (n *extraNode) ready(c *cluster) {
	c.t.Helper()
	harness.Eventually(c.t, 30*time.Second, n.name+" is ready", func() (bool, string) {
		var list []struct{ ID, Name, Status string }
		err := c.api.Call("GET", "/v1/nodes", nil, &list)
		for _, x := range list {
			if x.Name == n.name && x.Status == "ready" {
				n.id = x.ID
			}
		}
		return n.id != "", fmt.Sprint(list, err)
	})
}

// allocOf waits until the allocation of a job runs.
func (c *cluster) allocOf(job string) (id string) {
	c.t.Helper()
	harness.Eventually(c.t, 30*time.Second, job+" runs", func() (bool, string) {
		as, err := c.api.Allocs(job)
		for _, a := range as {
			if a.ClientStatus == "running" {
				id = a.ID
			}
		}
		return id != "", fmt.Sprint(as, err)
	})
	return id
}

// bootstrapAgain makes another first token, as the holder of a server's disk may.
func (c *cluster) bootstrapAgain() {
	c.t.Helper()
	err := c.api.Call("PUT", "/v1/acl/bootstrap", nil, nil)
	m := regexp.MustCompile(`reset index: (\d+)`).FindStringSubmatch(fmt.Sprint(err))
	if m == nil {
		c.t.Fatalf("a second bootstrap: %v", err)
	}
	for _, s := range c.servers {
		if err := os.WriteFile(filepath.Join(c.dir, s.name, "server", "acl-bootstrap-reset"), []byte(m[1]), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	c.call("PUT", "/v1/acl/bootstrap", nil, nil)
}

// restoreSnapshot saves the state and restores it at once. Nothing else is written meanwhile, so that nothing is lost.
func (c *cluster) restoreSnapshot(bin string) {
	c.t.Helper()
	c.load.pause.Lock()
	defer c.load.pause.Unlock()
	file := filepath.Join(c.t.TempDir(), "state.snap")
	for _, args := range [][]string{{"operator", "snapshot", "save", file}, {"operator", "snapshot", "restore", "-yes", file}} {
		cmd := exec.Command(bin, args...)
		cmd.Env = append(os.Environ(), "MUSTER_ADDR="+c.leader().addr, "MUSTER_TOKEN="+c.api.Token)
		if out, err := cmd.CombinedOutput(); err != nil {
			c.t.Fatalf("muster %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
