package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestGrowthAfterAnElection: an elastic gang that waits for room to grow gets it from the next leader, too, which knows nothing
// of what the former one noted: when work ends, and not before.
func TestGrowthAfterAnElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		lead, none := c.leader(), -1
		f := newFleet(t, c.lead(&none), 2)
		f.set(func() { f.runs["first"] = 10 * time.Minute })
		wide := func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = 3000 } // one to a node
		register(t, c.servers[lead], passJob("first", 1, func(j *structs.Job) { wide(j); j.Type = structs.JobBatch }))
		waitFor(t, 10*time.Second, "the first job", func() bool { return len(live(c.servers[lead], "first")) == 1 })
		register(t, c.servers[lead], passJob("grows", 1, func(j *structs.Job) {
			wide(j)
			j.Groups[0].Gang, j.Groups[0].Elastic = &structs.Gang{}, &structs.Elastic{Min: 1, Max: 2}
		}))
		waitFor(t, 10*time.Second, "the minimum", func() bool { return len(live(c.servers[lead], "grows")) == 1 })
		time.Sleep(time.Minute)
		was := lead
		c.stops[was]()
		lead = c.leader(was)
		time.Sleep(time.Minute)
		if n := len(live(c.servers[lead], "grows")); n != 1 {
			t.Fatalf("%d members while there is room for one", n)
		}
		waitFor(t, 20*time.Minute, "growth", func() bool { return len(live(c.servers[lead], "grows")) == 2 })
	})
}
