package decide

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestEventsOfTheFormat: decisions name an event that older servers do not know only when the format in force has it.
func TestEventsOfTheFormat(t *testing.T) {
	m := newSteps(false)
	s := &Service{}
	old := func() bool {
		return s.input(&passContext{pub: &replica.Published{Snapshot: m.fsm.Snapshot(), View: m.view}}, nil, m.now, 0).OldEvents
	}
	m.write(t, &structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.EventSaved.Format - 1, By: "test"})
	if !old() {
		t.Error("a format without the gate has the event")
	}
	m.write(t, &structs.UpgradeFinishCommand{Format: feature.EventSaved.Format, By: "test"})
	if old() {
		t.Error("the format of the gate does not have the event")
	}
}

// TestShownLineKnowsSaves: the line that users see depends on the same checkpoints of gangs as a pass: not on one that only some
// members have written.
func TestShownLineKnowsSaves(t *testing.T) {
	m := newSteps(false)
	s := &Service{}
	m.write(t, &structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.Newest, By: "test"})
	m.write(t, &structs.NodeRegisterCommand{Node: testNode(1)})
	m.write(t, &structs.NodeStatusCommand{ID: testNode(1).ID, Status: structs.NodeReady})
	m.write(t, &structs.JobRegisterCommand{Eval: true, Job: testJob("train", 2, func(j *structs.Job) {
		g := j.Groups[0]
		j.Type, j.Preemptible, g.Gang, g.Checkpoint, g.Reschedule = structs.JobBatch, true, &structs.Gang{}, &structs.Checkpoint{Signal: "SIGUSR1"}, structs.Reschedule{}
	})})
	m.settle(t)
	m.work(t, 5*time.Minute, map[string]time.Duration{"train": time.Hour})
	complete := m.now
	report := func(a *structs.Allocation) {
		m.write(t, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: structs.ClientRunning, StartedAt: a.StartedAt, Saved: &structs.Saved{Time: m.now}}}})
	}
	members := slices.Collect(m.fsm.Snapshot().Allocs())
	report(members[0])
	report(members[1])
	m.work(t, 5*time.Minute, map[string]time.Duration{"train": time.Hour})
	report(members[0]) // the other one has not
	pub := &replica.Published{Snapshot: m.fsm.Snapshot(), View: m.view}
	pass, shown := s.input(&passContext{pub: pub}, nil, m.now, 0), s.shownInput(pub, nil, m.now, 0)
	if len(pass.GangTimes) != 1 || pass.GangTimes[0].Saved != complete {
		t.Fatalf("a pass knows %+v, want the checkpoint of %v", pass.GangTimes, complete)
	}
	if !reflect.DeepEqual(pass.GangTimes, shown.GangTimes) {
		t.Errorf("a pass knows %+v, the line that is shown %+v", pass.GangTimes, shown.GangTimes)
	}
}
