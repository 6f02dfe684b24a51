//go:build e2e

// Package lost proves what the servers believe of a node whose machine is lost, whose agent has ended, or to which nothing
// happens while leaders change. The agents have the default configuration.
package lost

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

const (
	servers = 3
	agents  = 10
	grace   = 20 * time.Second // restart_grace of the servers; the default takes too long for a test
	goal    = 5 * time.Second  // for the loss of a machine
	flaps   = 20 * time.Second // of changes of the leader; FLAPS replaces it
	full    = 20 * time.Second // of full load; LOAD replaces it
)

type cluster struct {
	*harness.Cluster
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{harness.NewCluster(t, servers, agents, fmt.Sprintf("restart_grace = %q", grace)), t}
	for _, h := range c.Net.Hosts[:servers] {
		c.eventually(30*time.Second, h.Name+" to have reached every agent", func() (bool, string) {
			var text string
			err := c.API.At("http://"+h.IP+":4646").Call("GET", "/v1/metrics?format=prometheus", nil, &text)
			return strings.Contains(text, fmt.Sprintf("muster_server_nodes_reached %d\n", agents)), fmt.Sprint(err)
		})
	}
	return c
}

func (c *cluster) eventually(d time.Duration, what string, f func() (bool, string)) {
	c.t.Helper()
	harness.Eventually(c.t, d, what, f)
}

// become waits until a node has a status, and fails if another node has not the status ready then.
func (c *cluster) become(node, status string, d time.Duration) time.Duration {
	c.t.Helper()
	began := time.Now()
	c.eventually(d, node+" to be "+status, func() (bool, string) {
		got := c.Nodes()
		for other, s := range got {
			if other != node && s != "ready" {
				c.t.Fatalf("%s is %s, and nothing happened to it", other, s)
			}
		}
		return got[node] == status, got[node]
	})
	return time.Since(began)
}

type dict = map[string]any

// run starts a job of one task that prefers a node.
func (c *cluster) run(id, node string) harness.Alloc {
	c.t.Helper()
	job := dict{"ID": id, "Name": id, "Type": "service", "Datacenters": []string{"*"}, "TaskGroups": []dict{{
		"Name": "g", "Count": 1,
		"Affinities": []dict{{"LTarget": "${node.unique.name}", "RTarget": node, "Operand": "=", "Weight": 100}},
		"Tasks": []dict{{"Name": "t", "Driver": "raw_exec", "Config": dict{"command": "/bin/sh", "args": []string{"-c", "while :; do sleep 1; done"}},
			"Resources": dict{"CPU": 20, "MemoryMB": 20}}},
	}}}
	if err := c.API.Call("PUT", "/v1/jobs", dict{"Job": job}, nil); err != nil {
		c.t.Fatal(err)
	}
	var a harness.Alloc
	c.eventually(30*time.Second, id+" to run on "+node, func() (bool, string) {
		as := c.allocs(id)
		if len(as) == 1 {
			a = as[0]
		}
		return a.ClientStatus == "running" && a.NodeName == node, fmt.Sprint(as)
	})
	return a
}

func (c *cluster) allocs(id string) (as []harness.Alloc) {
	_ = c.API.Call("GET", "/v1/job/"+id+"/allocations", nil, &as)
	return as
}

// pid returns the process of a job's task on a node.
func (c *cluster) pid(node, alloc string) int {
	for _, t := range harness.Tasks(filepath.Join(c.Dir, "data-"+node)) {
		if t.AllocID == alloc {
			return t.Pid
		}
	}
	return 0
}

func TestLost(t *testing.T) {
	c := newCluster(t)
	c.load()

	// Packets are dropped: the node is down within seconds, and its work runs elsewhere.
	c.run("cut", "n1")
	c.Net.Host("n1").Cut()
	took := c.become("n1", "down", 30*time.Second)
	t.Logf("%d nodes, packets of one dropped: down after %s (goal %s)", agents, took.Round(10*time.Millisecond), goal)
	if took > 2*goal { // twice the goal, because the machine that runs this may be busy
		t.Errorf("down after %s", took)
	}
	c.eventually(20*time.Second, "its work to run elsewhere", func() (bool, string) {
		as := c.allocs("cut")
		return slices.ContainsFunc(as, func(a harness.Alloc) bool { return a.NodeName != "n1" && a.ClientStatus == "running" }), fmt.Sprint(as)
	})
	c.Net.Host("n1").Join()
	c.become("n1", "ready", 60*time.Second)

	// The agent is killed and comes back within the grace: nothing is replaced, and the task is the same process.
	a := c.run("back", "n2")
	pid := c.pid("n2", a.ID)
	c.Procs["n2"].Kill9()
	c.become("n2", "initializing", 30*time.Second)
	looks := 0
	c.eventually(10*time.Second, "looks at the work of an agent that ended", func() (bool, string) {
		if as := c.allocs("back"); len(as) != 1 {
			t.Fatalf("the work of an agent that ended was replaced within the grace: %v", as)
		}
		looks++
		return looks > 10, fmt.Sprint(looks)
	})
	c.Start("n2")
	c.become("n2", "ready", 30*time.Second)
	if as, now := c.allocs("back"), c.pid("n2", a.ID); len(as) != 1 || as[0].ClientStatus != "running" || pid == 0 || now != pid {
		t.Errorf("after the agent came back: %v; process %d, before %d", as, now, pid)
	}

	// The agent is killed and does not come back: its work is replaced after the grace.
	c.run("ended", "n3")
	began := time.Now()
	c.Procs["n3"].Kill9()
	c.become("n3", "initializing", 30*time.Second)
	c.become("n3", "down", 60*time.Second)
	took = time.Since(began)
	t.Logf("agent ended, machine answers: down after %s (grace %s after the last heartbeat)", took.Round(100*time.Millisecond), grace)
	if took < grace-8*time.Second {
		t.Errorf("down after %s, which is within the grace of %s", took, grace)
	}
	c.Start("n3")
	c.become("n3", "ready", 30*time.Second)

	// The agent is stopped: its machine answers, so that only its heartbeats count.
	c.Procs["n4"].Signal(syscall.SIGSTOP)
	took = c.become("n4", "down", 60*time.Second)
	t.Logf("agent stopped: down after %s", took.Round(100*time.Millisecond))
	if took < 8*time.Second {
		t.Errorf("a stopped agent was taken for a lost machine after %s", took)
	}
	c.Procs["n4"].Signal(syscall.SIGCONT)
	c.become("n4", "ready", 30*time.Second)
	c.flap()
}

// load keeps every processor busy with short tasks, many more at a time than there are processors, and the servers with the
// jobs that they belong to. No node goes down.
func (c *cluster) load() {
	const (
		submitters = 4
		count      = 20 // tasks of a job
	)
	length := harness.Period(c.t, "LOAD", full)
	ctx, cancel := context.WithTimeout(c.t.Context(), length)
	defer cancel()
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	var ran, failed atomic.Int64
	var all sync.WaitGroup
	for s := range submitters {
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("load-%d-%d", s, i)
				job := dict{"ID": id, "Name": id, "Type": "batch", "Datacenters": []string{"*"}, "TaskGroups": []dict{{"Name": "g", "Count": count,
					"Tasks": []dict{{"Name": "t", "Driver": "raw_exec", "Config": dict{"command": "/bin/sh", "args": []string{"-c", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done"}},
						"Resources": dict{"CPU": 20, "MemoryMB": 20}}}}}}
				if c.API.Call("PUT", "/v1/jobs", dict{"Job": job}, nil) != nil {
					failed.Add(1)
					continue
				}
				for ctx.Err() == nil {
					if n := harness.Count(c.allocs(id), "complete"); n == count {
						ran.Add(count)
						break
					}
					pause(50 * time.Millisecond)
				}
			}
		})
	}
	lists, bad := 0, map[string]string{}
	for ctx.Err() == nil {
		if c.lists(bad) {
			lists++
		}
		pause(200 * time.Millisecond)
	}
	all.Wait()
	c.t.Logf("full load for %s: %d tasks ran on %d agents, %d jobs were refused; in %d lists of the nodes not ready at any time: %v", length, ran.Load(), agents, failed.Load(), lists, bad)
	if len(bad) > 0 || lists < 10 || ran.Load() < 100 {
		c.t.Errorf("under full load: nodes not ready %v, %d lists, %d tasks; want none, 10 and 100", bad, lists, ran.Load())
	}
}

// lists asks for the nodes, and notes those that are not ready. It reports whether all are listed.
func (c *cluster) lists(bad map[string]string) bool {
	nodes := c.Nodes()
	for n, s := range nodes {
		if s != "ready" {
			bad[n] = s
		}
	}
	return len(nodes) == agents
}

// flap changes the leader again and again, by leadership transfers and by kills. No node goes down.
func (c *cluster) flap() {
	length := harness.Period(c.t, "FLAPS", flaps)
	changes, bad := 0, map[string]string{}
	for began := time.Now(); time.Since(began) < length; {
		lead := c.leader()
		if changes%2 == 0 {
			c.Procs[lead].Kill9()
			c.eventually(30*time.Second, "another leader", func() (bool, string) { l := c.leader(); return l != "" && l != lead, l })
			c.Start(lead)
		} else {
			c.Procs[lead].Signal(syscall.SIGSTOP)
			c.eventually(30*time.Second, "another leader", func() (bool, string) { l := c.leader(lead); return l != "" && l != lead, l })
			c.Procs[lead].Signal(syscall.SIGCONT)
		}
		changes++
		until, lists := time.Now().Add(4*time.Second), 0
		c.eventually(time.Minute, "the agents to find their servers", func() (bool, string) {
			if c.lists(bad) {
				lists++
			}
			return time.Now().After(until) && lists > 0, fmt.Sprintf("%d lists of all nodes", lists)
		})
	}
	c.t.Logf("%d changes of the leader in %s: not ready at any time: %v", changes, length, bad)
	if len(bad) > 0 {
		c.t.Errorf("nodes were not ready although nothing happened to them: %v", bad)
	}
}

// leader returns the name of the leader that a server other than the given ones names.
func (c *cluster) leader(except ...string) string {
	for _, h := range c.Net.Hosts[:servers] {
		var addr string
		if slices.Contains(except, h.Name) || c.API.At("http://"+h.IP+":4646").Call("GET", "/v1/status/leader", nil, &addr) != nil {
			continue
		}
		for _, x := range c.Net.Hosts[:servers] {
			if addr == x.IP+":4647" {
				return x.Name
			}
		}
	}
	return ""
}
