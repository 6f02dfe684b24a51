//go:build e2e

package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// history returns the allocations of a job, oldest first.
func history(f *harness.Fleet, w harness.Work) (as []harness.Alloc) {
	f.T.Helper()
	if err := f.API.Call("GET", "/v1/job/"+w.ID+"/allocations?all=true", nil, &as); err != nil {
		f.T.Fatal(err)
	}
	return as
}

// TestScavengerWaits: under the default preemption rule a short job of low priority waits for a long one of high
// priority; a short job of the same high priority does not.
func TestScavengerWaits(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "1xH100"})
	f.Must("queue", "apply", f.File("root.hcl", "queue \"root\" {\n  preempt_min_runtime = \"1s\"\n}\n"))
	vip := harness.Work{ID: "vip", Settings: "priority = \"critical\"\n  preemptible = true\n  runtime = { expected = \"5h\" }", GPUs: "count = 1"}
	scav := harness.Work{ID: "scav", Settings: "priority = \"scavenger\"\n  preemptible = true\n  runtime = { expected = \"1m\" }", GPUs: "count = 1"}
	peer := harness.Work{ID: "peer", Settings: "priority = \"critical\"\n  runtime = { expected = \"1m\" }", GPUs: "count = 1"}
	f.Run(vip)
	f.Running(vip, 1)
	f.Run(scav)
	waits(f, scav, "RESOURCES")
	f.Run(peer) // it competes with scav for the place of vip, which both may take after preempt_min_runtime
	f.Running(peer, 1)
	harness.Eventually(t, 20*time.Second, "vip makes room for its peer", func() (bool, string) {
		as := history(f, vip)
		return len(as) == 1 && as[0].DesiredStatus == "evict" && as[0].ClientStatus == "complete", fmt.Sprintf("%+v", as)
	})
	if as := history(f, scav); len(as) > 0 {
		t.Errorf("the scavenger was placed: %+v", as)
	}
	f.Stop(peer)
	f.Running(vip, 1)
	if as := history(f, scav); len(as) > 0 {
		t.Errorf("the scavenger was placed before the critical job: %+v", as)
	}
}
