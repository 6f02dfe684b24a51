package duty

import (
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Taints moves allocations off nodes with no-execute taints that they do not tolerate, at once or when the time in
// their toleration is over. As with drains, what was asked is in the state (Transition.Migrate). The allocations are
// moved even if no other node has room for them, and regardless of their group's count.
type Taints struct {
	nodeWatch
}

// NewTaints returns the duty. Call Load first.
func NewTaints() *Taints { return &Taints{nodeWatch{wanted: evicts}} }

// evicts reports whether a node has a taint that moves work.
func evicts(n *structs.Node) bool {
	return slices.ContainsFunc(n.Taints(), func(t structs.Taint) bool { return t.Effect == structs.TaintNoExecute })
}

// Load implements Duty.
func (t *Taints) Load(snap *state.Snapshot, now structs.LogTime) { t.load(snap, now) }

// Feed implements Duty.
func (t *Taints) Feed(_ *state.Snapshot, d *structs.Delta, now structs.LogTime) { t.feed(d, now) }

// Due implements Duty.
func (t *Taints) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	if t.due(now) {
		var move []structs.AllocID
		move, t.look = evicted(snap, t.nodes, now)
		cmds = transitions("taint", structs.TriggerNodeDrain, move, structs.Transition{Migrate: true})
	}
	return cmds, t.look
}

// evicted returns the allocations that have to leave the nodes now, in order of node, then ID, and when the next one
// has to.
func evicted(snap *state.Snapshot, nodes []structs.NodeID, now structs.LogTime) (move []structs.AllocID, next structs.LogTime) {
	for _, id := range nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Status != structs.NodeReady {
			continue
		}
		taints := n.Taints()
		for _, a := range snap.AllocsByNode(id) {
			if a.ClientTerminal() || a.ServerTerminal() || a.Transition.Migrate || a.Job == nil {
				continue
			}
			at := structs.LogTime(0)
			for _, t := range taints {
				at = earlier(at, t.Leave(a.Job.Tolerations))
			}
			switch {
			case at == 0:
			case at <= now:
				move = append(move, a.ID)
			default:
				next = earlier(next, at)
			}
		}
	}
	return move, next
}
