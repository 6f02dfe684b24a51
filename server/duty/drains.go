package duty

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/drain"
	"github.com/muster-sched/muster/structs"
)

// Drains moves work off nodes at the pace that its jobs allow, as package drain decides. What was asked of an allocation is
// in the state (Transition.Migrate), so a new leader continues where the old one stopped.
type Drains struct {
	nodeWatch
	decider drain.Decider
}

// NewDrains returns the duty. Call Load first.
func NewDrains() *Drains {
	return &Drains{nodeWatch: nodeWatch{wanted: func(n *structs.Node) bool { return n.Drain != nil }}}
}

// Load implements Duty.
func (d *Drains) Load(snap *state.Snapshot, now structs.LogTime) {
	d.load(snap, now)
	d.decider = drain.Decider{}
}

// Feed implements Duty.
func (d *Drains) Feed(_ *state.Snapshot, delta *structs.Delta, now structs.LogTime) {
	d.feed(delta, now)
}

// Due implements Duty.
func (d *Drains) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	if !d.due(now) {
		return nil, d.look
	}
	act := d.decider.Decide(snap, d.nodes, now)
	cmds = slices.Concat(
		transitions("drain", structs.TriggerNodeDrain, act.Migrate, structs.Transition{Migrate: true}),
		transitions("drain", structs.TriggerNodeDrain, act.Leave, structs.Transition{Migrate: true, Leave: true}))
	for _, id := range act.Complete {
		cmds = append(cmds, Command{Subject: "node " + id.String(), Done: "node drain complete",
			Command: structs.Command{By: structs.Submitter{Name: "drain"}, Body: &structs.NodeDrainCommand{ID: id, Complete: true,
				Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Node drain complete"}}}})
	}
	d.look = act.Next
	if len(cmds) > 0 {
		d.look = earlier(d.look, now.Add(lookPause)) // check the result soon
	}
	return cmds, d.look
}
