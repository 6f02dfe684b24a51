package reconcile

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestRolloutAfterLostNodes: progress_deadline does not count the time in which an allocation of the new version had no place because
// its node was lost or drained. What failed by itself counts.
func TestRolloutAfterLostNodes(t *testing.T) {
	const submitted structs.LogTime = 1_000_000_000_000
	j := &structs.Job{Namespace: "default", ID: "web", Type: structs.JobService, Version: 1, SubmitTime: submitted, Groups: []*structs.Group{{Name: "g", Count: 1,
		Update: &structs.Update{MaxParallel: 1, MinHealthyTime: 10 * time.Second, HealthyDeadline: 5 * time.Minute, ProgressDeadline: 10 * time.Minute}}}}
	for _, x := range []struct {
		name  string
		first structs.Allocation
		fails bool
	}{
		{"lost", structs.Allocation{Desired: structs.DesiredStop, Client: structs.ClientLost}, false},
		{"drained", structs.Allocation{Desired: structs.DesiredStop, Client: structs.ClientComplete, Transition: structs.Transition{Migrate: true}}, false},
		{"failed", structs.Allocation{Desired: structs.DesiredStop, Client: structs.ClientFailed}, true},
	} {
		again := submitted.Add(20 * time.Minute)
		first := x.first
		second := structs.Allocation{ID: structs.AllocID{2}, Desired: structs.DesiredRun, Client: structs.ClientPending, CreateTime: again}
		first.ID, first.CreateTime = structs.AllocID{1}, submitted
		allocs := []*structs.Allocation{&first, &second}
		for _, a := range allocs {
			a.JobID, a.Group, a.JobVersion, a.Job = j.ID, "g", 1, j
		}
		r, rolling := RolloutOf(j, allocs, again.Add(time.Second))
		if !rolling || (r.Failed != "") != x.fails {
			t.Errorf("%s, and placed again after 20 minutes: rolling %v, stops: %q", x.name, rolling, r.Failed)
		}
		if r, _ := RolloutOf(j, allocs, again.Add(10*time.Minute)); r.Failed == "" {
			t.Errorf("%s, and placed again for 10 minutes without becoming healthy: it does not stop", x.name)
		}
	}
}
