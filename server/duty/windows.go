package duty

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/drain"
	"github.com/muster-sched/muster/structs"
)

// Windows carries out the reservations of operators. When a maintenance begins, its nodes are drained as by `muster
// node drain`. When it ends or is deleted, the nodes that were eligible before become eligible again. A reservation
// that is over is deleted after its nodes were given back, so that a new leader continues where the old one stopped.
//
//	before Start: the scheduler keeps off work that would reach into the window; other work comes and goes
//	Start:        the nodes drain; what has not left in drain.Maintenance is stopped
//	End:          the nodes are eligible again, the reservation is gone
type Windows struct {
	look   structs.LogTime
	active bool      // a maintenance is in progress, so changes of nodes matter
	backs  []Command // give nodes of deleted or changed reservations back
}

// Keys in the meta of a drain that a maintenance started.
const (
	metaWindow = "muster.reservation"       // ID of the reservation
	metaWas    = "muster.ineligible_before" // set if the node was ineligible before
)

// NewWindows returns the duty; Load comes first.
func NewWindows() *Windows { return &Windows{} }

// Load implements Duty.
func (w *Windows) Load(_ *state.Snapshot, now structs.LogTime) { w.look = now }

// Feed implements Duty.
func (w *Windows) Feed(snap *state.Snapshot, d *structs.Delta, now structs.LogTime) {
	if w.active && len(d.Nodes) > 0 { // a node may have come back, or another drain may have ended
		w.look = now
	}
	for i := range d.Reserved {
		c := &d.Reserved[i]
		if c.Either().JobID != "" {
			continue
		}
		w.look = now
		if c.Before != nil {
			w.backs = append(w.backs, givenBack(snap, c.Before, c.After)...)
		}
	}
}

// Due implements Duty. Nodes are given back before their reservation is deleted, because the reservation names them.
func (w *Windows) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	if w.look == 0 || w.look > now {
		return nil, w.look
	}
	w.look, w.active = 0, false
	var drains, over []Command
	for r := range snap.Reservations() {
		if r.JobID != "" {
			continue
		}
		for _, at := range [...]structs.LogTime{r.Start, r.End} {
			if at > now {
				w.look = earlier(w.look, at)
			}
		}
		switch {
		case r.End <= now:
			cmds = append(cmds, givenBack(snap, r, nil)...)
			over = append(over, Command{Subject: "reservation " + r.ID, Command: structs.Command{
				By: structs.Submitter{Name: "maintenance"}, Body: &structs.UnreserveCommand{IDs: []string{r.ID}}}})
		case r.Maintenance && r.Start <= now:
			w.active = true
			drains = append(drains, begun(snap, r)...)
		}
	}
	for _, c := range w.backs {
		c.Keep = true // the reservation is gone, so Load could not derive the command
		cmds = append(cmds, c)
	}
	w.backs = nil
	return slices.Concat(cmds, drains, over), w.look
}

// begun returns the commands that drain the nodes of a maintenance that has begun.
func begun(snap *state.Snapshot, r *structs.Reservation) (cmds []Command) {
	for _, id := range r.Nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Drain != nil {
			continue
		}
		if last := n.LastDrain; last != nil && last.Meta[metaWindow] == r.ID && last.StartedAt >= r.Start {
			continue // the drain is complete, or an operator ended it
		}
		meta := map[string]string{metaWindow: r.ID}
		if n.Eligibility == structs.NodeIneligible {
			meta[metaWas] = "true"
		}
		cmds = append(cmds, ofMaintenance(&structs.NodeDrainCommand{ID: id, Strategy: &structs.DrainStrategy{Deadline: drain.Maintenance(r), Meta: meta}, Meta: meta,
			Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Node drain began with maintenance " + r.ID}}))
	}
	return cmds
}

// givenBack returns the commands that undo what a maintenance did to its nodes, except those that after still covers.
func givenBack(snap *state.Snapshot, r, after *structs.Reservation) (cmds []Command) {
	if !r.Maintenance {
		return nil
	}
	for _, id := range r.Nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Eligibility != structs.NodeIneligible || n.LastDrain == nil || n.LastDrain.Meta[metaWindow] != r.ID {
			continue
		}
		if n.Drain != nil && n.Drain.Meta[metaWindow] != r.ID {
			continue // it is drained for another reason by now
		}
		if after != nil && after.Maintenance && slices.Contains(after.Nodes, id) {
			continue
		}
		cmds = append(cmds, ofMaintenance(&structs.NodeDrainCommand{ID: id, MarkEligible: n.LastDrain.Meta[metaWas] == "",
			Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Maintenance " + r.ID + " is over"}}))
	}
	return cmds
}

func ofMaintenance(c *structs.NodeDrainCommand) Command {
	return Command{Subject: "node " + c.ID.String(), Command: structs.Command{By: structs.Submitter{Name: "maintenance"}, Body: c}}
}
