package decide

import (
	"testing"

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
