package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestMaintenanceWindow: work that would reach into a maintenance is kept off its nodes; other work is not. When it
// begins the nodes drain, and what does not leave is stopped. When it ends the nodes are as before, and the reservation
// is gone.
func TestMaintenanceWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		began := time.Now()
		at := func(d time.Duration) structs.LogTime { return structs.LogTimeOf(began.Add(d)) }
		batch := func(id string, limit time.Duration, edit func(*structs.Job)) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Runtime.Limit = structs.JobBatch, limit
				j.Groups[0].Reschedule = structs.Reschedule{}
				j.Constraints = []structs.Constraint{{LTarget: "${node.unique.name}", RTarget: "node-0", Operand: "="}}
				if edit != nil {
					edit(j)
				}
			})
		}
		node := f.nodes[0]
		idle := f.nodes[1]
		mustApply(t, s, &structs.NodeEligibilityCommand{ID: idle.ID, Eligibility: structs.NodeIneligible})
		mustApply(t, s, &structs.ReserveCommand{Reservations: []*structs.Reservation{
			{ID: "disks", Domain: "default", Nodes: []structs.NodeID{node.ID, idle.ID}, Start: at(20 * time.Minute), End: at(time.Hour), Maintenance: true}}})
		f.set(func() { f.runs["before"] = 10 * time.Minute })
		register(t, s, batch("before", 15*time.Minute, nil))
		register(t, s, batch("across", 30*time.Minute, nil))
		register(t, s, batch("liar", 0, func(j *structs.Job) { j.Runtime.Expected = 15 * time.Minute }))
		register(t, s, passJob("web", 1, func(j *structs.Job) { j.Constraints = batch("", 0, nil).Constraints }))
		time.Sleep(5 * time.Second)
		for id, want := range map[string]int{"before": 1, "across": 0, "liar": 1, "web": 1} {
			if n := running(s, id); n != want {
				t.Errorf("ahead of the window %d of %s run, want %d", n, id, want)
			}
		}
		if w := s.Published().Snapshot.Workload(structs.JobKey{Namespace: "default", ID: "across"}); w == nil || w.Reason != structs.ReasonReservation {
			t.Errorf("across waits for %+v", w)
		}
		time.Sleep(time.Until(began.Add(20*time.Minute + 10*time.Second)))
		n := s.Published().Snapshot.NodeByID(node.ID)
		if n.Drain == nil || n.Eligibility != structs.NodeIneligible || running(s, "liar") != 1 {
			t.Errorf("in the window: drain %+v, %s, %d of liar run", n.Drain, n.Eligibility, running(s, "liar"))
		}
		if n := len(holdsOn(s, node.ID)); n != 2 { // web has no other place, liar is left to finish
			t.Errorf("%d allocations are left in the window, want 2", n)
		}
		time.Sleep(time.Until(began.Add(41 * time.Minute)))
		if len(holdsOn(s, node.ID)) != 0 {
			t.Errorf("half of the window later %d allocations are on the node", len(holdsOn(s, node.ID)))
		}
		time.Sleep(time.Until(began.Add(time.Hour + 10*time.Second)))
		snap := s.Published().Snapshot
		if n := snap.NodeByID(node.ID); n.Drain != nil || n.Eligibility != structs.NodeEligible {
			t.Errorf("after the window: drain %+v, %s", n.Drain, n.Eligibility)
		}
		if n := snap.NodeByID(idle.ID); n.Drain != nil || n.Eligibility != structs.NodeIneligible {
			t.Errorf("after the window, of the node that was not eligible before: drain %+v, %s", n.Drain, n.Eligibility)
		}
		if snap.Reservation("disks") != nil {
			t.Error("the reservation is still there after its end")
		}
		if running(s, "across") != 1 || running(s, "web") != 1 {
			t.Errorf("after the window %d of across and %d of web run", running(s, "across"), running(s, "web"))
		}
		// Deleting a window while it lasts gives the nodes back.
		now := structs.LogTimeOf(time.Now())
		mustApply(t, s, &structs.ReserveCommand{Reservations: []*structs.Reservation{
			{ID: "again", Domain: "default", Nodes: []structs.NodeID{node.ID}, Start: now.Add(time.Minute), End: now.Add(time.Hour), Maintenance: true}}})
		time.Sleep(2 * time.Minute)
		if n := s.Published().Snapshot.NodeByID(node.ID); n.Drain == nil {
			t.Error("the second window did not drain its node")
		}
		call(t, s, methods.ReservationDelete, rpc.Header{}, &methods.NameRequest{Name: "again"})
		time.Sleep(5 * time.Second)
		if n := s.Published().Snapshot.NodeByID(node.ID); n.Drain != nil || n.Eligibility != structs.NodeEligible {
			t.Errorf("after the window was deleted: drain %+v, %s", n.Drain, n.Eligibility)
		}
	})
}

// TestReservedAmount: of an amount set aside, other work gets nothing that reaches into the window, work that it is for
// does, and after its end any work does.
func TestReservedAmount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 2) // 2 x 4000 MHz
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "demo"}}})
		now := structs.LogTimeOf(time.Now())
		mustApply(t, s, &structs.ReserveCommand{Reservations: []*structs.Reservation{
			{ID: "show", Domain: "default", Amount: &structs.Amount{CPU: 5000}, Queues: []structs.QueuePath{"demo"}, Start: now.Add(time.Second), End: now.Add(time.Hour)}}})
		cpu := func(id, queue string, mhz int64) {
			register(t, s, passJob(id, 1, func(j *structs.Job) { j.Queue, j.Groups[0].Tasks[0].Resources.CPU = structs.QueuePath(queue), mhz }))
		}
		time.Sleep(2 * time.Second)
		cpu("a", "", 2000)
		cpu("b", "", 2000) // 3000 are left for others
		cpu("c", "", 1000)
		cpu("mine", "demo", 1000)
		time.Sleep(5 * time.Second)
		for id, want := range map[string]int{"a": 1, "b": 0, "c": 1, "mine": 1} {
			if n := running(s, id); n != want {
				t.Errorf("in the window %d of %s run, want %d", n, id, want)
			}
		}
		if w := s.Published().Snapshot.Workload(structs.JobKey{Namespace: "default", ID: "b"}); w == nil || w.Reason != structs.ReasonReservation {
			t.Errorf("b waits for %+v", w)
		}
		if r := s.decide.Reports(structs.JobKey{Namespace: "default", ID: "b"}); len(r) != 1 || r[0].Refusals[0].Text() != "reservation show: cpu" ||
			r[0].Refusals[0].Short != 1000 && r[0].Refusals[0].Short != 2000 { // asked before or after c began

			t.Errorf("b's report: %+v", r[0])
		}
		time.Sleep(time.Hour)
		if running(s, "b") != 1 || s.Published().Snapshot.Reservation("show") != nil {
			t.Errorf("after the window %d of b run, reservation %+v", running(s, "b"), s.Published().Snapshot.Reservation("show"))
		}
	})
}
