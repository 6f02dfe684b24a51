//go:build e2e

// Package contact proves that work with stop_on_client_after never runs twice: the agent is stopped, killed, and cut off
// from the servers, while its tasks write down when they were alive.
package contact

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// Times of the tasks. They ignore their signal, so that the whole of killTimeout passes.
const (
	stopAfter   = 3 * time.Second // the shortest that is accepted
	killTimeout = 2 * time.Second
)

// rounds is how often each fault happens; COUNT replaces it.
const rounds = 2

// faults are what happens to the agent of a node, and how it is undone.
var faults = []struct {
	name, node string
	begin, end func(c *cluster, node string)
}{
	{"stopped", "n1", func(c *cluster, n string) { c.Procs[n].Signal(syscall.SIGSTOP) }, func(c *cluster, n string) { c.Procs[n].Signal(syscall.SIGCONT) }},
	{"killed", "n2", func(c *cluster, n string) { c.Procs[n].Kill9() }, func(c *cluster, n string) { c.Start(n) }},
	{"cut off", "n3", func(c *cluster, n string) { c.Net.Host(n).Cut() }, func(c *cluster, n string) { c.Net.Host(n).Join() }},
}

// spare is the node that replacements run on.
const spare = "n4"

type cluster struct {
	*harness.Cluster
	t *testing.T
}

type dict = map[string]any

// run submits a job of one task that writes its allocation and the time to a file, every 20 ms, and ignores SIGTERM.
func (c *cluster) run(id, node string) {
	c.t.Helper()
	script := "trap '' TERM; " + harness.SignOfLife(c.file(id))
	job := dict{"ID": id, "Name": id, "Type": "service", "Datacenters": []string{"*"}, "TaskGroups": []dict{{
		"Name": "g", "Count": 1, "StopAfterClientDisconnect": stopAfter,
		"Constraints": []dict{{"LTarget": "${node.unique.name}", "RTarget": "^(" + node + "|" + spare + ")$", "Operand": "regexp"}},
		"Tasks": []dict{{"Name": "t", "Driver": "raw_exec", "Config": dict{"command": "/bin/sh", "args": []string{"-c", script}},
			"KillTimeout": killTimeout, "Resources": dict{"CPU": 20, "MemoryMB": 20}}},
	}}}
	if err := c.API.Call("PUT", "/v1/jobs", dict{"Job": job}, nil); err != nil {
		c.t.Fatal(err)
	}
}

// open makes the spare node eligible or not. An affinity would not do: nodes that were lost a few times lose against it.
func (c *cluster) open(eligible bool) {
	c.t.Helper()
	var nodes []struct{ ID, Name string }
	if err := c.API.Call("GET", "/v1/nodes", nil, &nodes); err != nil {
		c.t.Fatal(err)
	}
	i := slices.IndexFunc(nodes, func(n struct{ ID, Name string }) bool { return n.Name == spare })
	to := map[bool]string{true: "eligible", false: "ineligible"}[eligible]
	if err := c.API.Call("PUT", "/v1/node/"+nodes[i].ID+"/eligibility", dict{"Eligibility": to}, nil); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) file(id string) string { return filepath.Join(c.Dir, id+".alive") }

// TestContact: the agent of each node is stopped, killed or cut off. Its task ends by itself, and only then it is
// replaced; when the agent is back the old one does not start again.
func TestContact(t *testing.T) {
	c := &cluster{harness.NewCluster(t, 1, 4, ""), t}
	count := harness.Number(t, "COUNT", rounds)
	overlaps, gap, told := 0, time.Duration(0), false
	for round := range count {
		job := func(i int) string { return fmt.Sprintf("%s-%d", strings.ReplaceAll(faults[i].name, " ", "-"), round) }
		c.open(false)
		for i, f := range faults {
			c.run(job(i), f.node)
		}
		for i := range faults {
			harness.Eventually(t, 30*time.Second, job(i)+" to run", func() (bool, string) { return len(harness.Lives(t, c.file(job(i)))) == 1, "no sign of life" })
		}
		for i := range faults { // with contact it runs for longer than without
			harness.Eventually(t, 30*time.Second, job(i)+" to run for longer than without contact", func() (bool, string) {
				l := harness.Lives(t, c.file(job(i)))
				if len(l) != 1 {
					t.Fatalf("%s ended in spite of contact: %v", job(i), l)
				}
				return l[0].Last.Sub(l[0].First) > 2*stopAfter, fmt.Sprint(l)
			})
		}
		c.open(true)
		for _, f := range faults {
			f.begin(c, f.node)
		}
		for i := range faults {
			harness.Eventually(t, 90*time.Second, job(i)+" to be replaced", func() (bool, string) {
				var why struct {
					Silent *struct {
						Allocs int
						Nodes  []string
					}
				}
				if err := c.API.Call("GET", "/v1/job/"+job(i)+"/why", nil, &why); err == nil && why.Silent != nil {
					told = told || why.Silent.Allocs == 1 && slices.Equal(why.Silent.Nodes, []string{faults[i].node})
				}
				return len(harness.Lives(t, c.file(job(i)))) == 2, fmt.Sprint(harness.Lives(t, c.file(job(i))))
			})
		}
		for _, f := range faults {
			f.end(c, f.node)
		}
		c.Ready(4)
		back := time.Now()
		for i, f := range faults {
			harness.Eventually(t, 30*time.Second, job(i)+" to run on", func() (bool, string) { // the agents have obeyed by then
				ls := harness.Lives(t, c.file(job(i)))
				return len(ls) != 2 || ls[1].Last.Sub(back) > 2*time.Second, fmt.Sprint(ls)
			})
			ls := harness.Lives(t, c.file(job(i)))
			if len(ls) != 2 {
				t.Errorf("round %d, %s: %d allocations ran, want 2: %v", round, f.name, len(ls), ls)
				continue
			}
			between := ls[1].First.Sub(ls[0].Last)
			if between <= 0 {
				overlaps++
				t.Errorf("round %d, %s: both ran for %s", round, f.name, -between)
			}
			if gap == 0 || between < gap {
				gap = between
			}
			if err := c.API.Call("DELETE", "/v1/job/"+job(i)+"?purge=true", nil, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !told {
		t.Error("`job why` never told that a silent node is waited for")
	}
	t.Logf("%d rounds of %d faults: %d overlaps by the tasks' own time; the shortest time between two was %s", count, len(faults), overlaps, gap)
}
