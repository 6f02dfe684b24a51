//go:build e2e

package history

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// services are jobs with one task, which must never run twice at once.
const services = 2

func (c *cluster) service(i int) (id, file string) {
	id = fmt.Sprintf("service%d", i)
	return id, filepath.Join(c.dir, id+".alive")
}

// work starts the services. The servers replace an allocation on a silent node only when its task has ended there.
func (c *cluster) work() {
	c.t.Helper()
	for i := range services {
		id, file := c.service(i)
		job := dict{"ID": id, "Name": id, "Type": "service", "Datacenters": []string{"*"}, "TaskGroups": []dict{{
			"Name": "g", "Count": 1, "StopAfterClientDisconnect": 3 * time.Second,
			"Affinities": []dict{{"LTarget": "${node.unique.name}", "RTarget": agents[i%len(agents)], "Operand": "=", "Weight": 100}},
			"Tasks": []dict{{"Name": "t", "Driver": "raw_exec", "Config": dict{"command": "/bin/sh", "args": []string{"-c", harness.SignOfLife(file)}},
				"KillTimeout": time.Second, "Resources": dict{"CPU": 20, "MemoryMB": 20}}},
		}}}
		if err := c.api.Call("PUT", "/v1/jobs", dict{"Job": job}, nil); err != nil {
			c.t.Fatal(err)
		}
	}
	for i := range services {
		id, file := c.service(i)
		harness.Eventually(c.t, 90*time.Second, id+" to run", func() (bool, string) { return len(harness.Lives(c.t, file)) == 1, "no sign of life" })
	}
}

// allRun waits until every service runs once, and checks that none ever ran twice at once.
func (c *cluster) allRun() {
	c.t.Helper()
	for i := range services {
		id, file := c.service(i)
		harness.Eventually(c.t, 90*time.Second, id+" to run", func() (bool, string) {
			as, err := c.api.Allocs(id)
			ls := harness.Lives(c.t, file)
			alive := len(ls) > 0 && time.Since(ls[len(ls)-1].Last) < time.Second
			return err == nil && harness.Count(as, "running") == 1 && alive, fmt.Sprint(err, as, ls)
		})
		ls := harness.Lives(c.t, file)
		for j := 1; j < len(ls); j++ {
			for k := range j {
				if over := ls[k].Last.Sub(ls[j].First); over >= 0 {
					c.t.Errorf("%s: allocations %s and %s both ran for %s", id, ls[k].Alloc, ls[j].Alloc, over)
				}
			}
		}
		c.t.Logf("%s: %d allocations ran, one after another", id, len(ls))
	}
}
