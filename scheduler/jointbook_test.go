package scheduler_test

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// TestJointReservation: the reservation of an all_at_once job has places for all of its groups, from when the last of them has room,
// also on the node where a group could start now. Short work passes it there, long work does not.
func TestJointReservation(t *testing.T) {
	n1, n2 := gpuNode(1, 8), gpuNode(2, 8)
	run := timed("run", 1, 100, 8, 2*time.Hour)
	held := holds(n1, run, 1, time.Hour, []int{0, 1, 2, 3, 4, 5, 6, 7})
	joint := timed("joint", 1, 100, 8, time.Hour)
	joint.AllAtOnce = true
	joint.Groups[0].Gang = &structs.Gang{}
	ps := *joint.Groups[0]
	ps.Name, ps.Gang = "ps", nil
	joint.Groups = append(joint.Groups, &ps)
	joint.Join()
	if !joint.IsJoint() {
		t.Fatal("the job is not joint")
	}
	short, long := timed("short", 1, 100, 4, time.Hour), timed("long", 1, 100, 4, 2*time.Hour)
	for i, j := range []*structs.Job{joint, long, short} {
		j.CreateIndex = structs.Index(10 + i)
	}
	pass := func(backfill string, now structs.LogTime, allocs ...*structs.Allocation) (string, []*structs.Reservation) {
		in := scheduler.Input{View: model.NewView(1, []*structs.Node{n1, n2}, allocs, nil), Now: now, Config: rules(backfill),
			Pending: []contend.Workload{load(joint, 1), load(long, 2), load(short, 3)}}
		in.Line = queue.NewLine(nil, in.Config, in.Pending, in.Now, 0)
		plan, _ := scheduler.Schedule(in, binpack)
		return placed(plan)
	}
	for _, c := range []struct{ backfill, want string }{
		{structs.BackfillEASY, "short:1 "}, {structs.BackfillConservative, "short:1 "}, {structs.BackfillSJF, "short:1 "},
		{structs.BackfillGreedy, "long:1 short:1 "}, {structs.BackfillNone, ""},
	} {
		got, rs := pass(c.backfill, bookNow, held)
		if got != c.want {
			t.Errorf("%s: placed %q, want %q", c.backfill, got, c.want)
		}
		if c.backfill == structs.BackfillGreedy || c.backfill == structs.BackfillNone {
			continue
		}
		nodes := map[structs.NodeID]bool{}
		if len(rs) > 0 {
			for _, p := range rs[0].Places {
				nodes[p.Node] = true
			}
		}
		if len(rs) == 0 || rs[0].JobID != "joint" || rs[0].Start != bookNow.Add(time.Hour) || !nodes[n1.ID] || !nodes[n2.ID] {
			t.Errorf("%s: reservations %+v, want one of joint on both nodes in an hour", c.backfill, rs)
		}
	}
	if got, _ := pass(structs.BackfillEASY, bookNow.Add(time.Hour)); got != "joint:2 " {
		t.Errorf("when the room is free: placed %q, want both groups of joint", got)
	}
}
