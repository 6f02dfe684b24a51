package sim

import (
	"context"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestGangCheckpointsReachDecisions: decisions know the newest checkpoint that all members of a gang have written, also after
// the gang has started again and while no member has written one since.
func TestGangCheckpointsReachDecisions(t *testing.T) {
	gang := gpuJob("gang", 0, 50*time.Minute, 1)
	gang.Job.Preemptible, gang.Job.Groups[0].Count, gang.Job.Groups[0].Gang = true, 4, &structs.Gang{}
	jobs := []*Job{gang, gpuJob("urgent", 25*time.Minute, 5*time.Minute, 4), gpuJob("later", 33*time.Minute, 3*time.Hour, 1)}
	jobs[1].Job.Priority = 90
	cfg := Config{Nodes: nodes(t, "1x4"), Source: &list{jobs: jobs}, Scheduler: *structs.DefaultSchedulerConfig(), Saves: 10 * time.Minute}
	cfg.Policy = policy.For(nil, cfg.Scheduler)
	cfg.Kept = func(_ *Live, ran time.Duration) time.Duration { return ran - ran%cfg.Saves }
	restarted := false
	cfg.Hooks.Passed = func(e *Engine, in *scheduler.Input, _ *scheduler.Plan, _ *scheduler.Report) {
		at := Since(e.now)
		members := 0 // the only work of more than one allocation is the gang
		in.View.EachHeld(func(*structs.Node, structs.LogTime, structs.Vector, []structs.Grant) { members++ }, e.now)
		if at < 10*time.Minute || at >= 40*time.Minute || members < 2 {
			return
		}
		want := 20 * time.Minute
		if restarted = restarted || at > 30*time.Minute; len(in.GangTimes) != 1 || !in.GangTimes[0].Tracked || Since(in.GangTimes[0].Saved) != want {
			t.Errorf("at %v decisions know %+v, want the checkpoint of %v", at, in.GangTimes, want)
		}
	}
	if err := NewEngine(cfg).Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !restarted {
		t.Error("the gang was not preempted, so nothing was tested")
	}
}
