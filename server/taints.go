package server

import (
	"context"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Taints of effect no-execute move what runs on a node and does not tolerate them: at once, or where a toleration lets it
// stay for a while, after that. As with drains, what was asked is in the state (Transition.Migrate); nobody waits for a
// place elsewhere, and no count of a group holds it up.

// taintStep tells which allocations have to leave the nodes, in order of node, then id, and when the next one has to.
func taintStep(snap *state.Snapshot, nodes []structs.NodeID, now structs.LogTime) (move []structs.AllocID, next structs.LogTime) {
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
				if leave := t.Leave(a.Job.Tolerations); leave > 0 && (at == 0 || leave < at) {
					at = leave
				}
			}
			switch {
			case at == 0:
			case at <= now:
				move = append(move, a.ID)
			case next == 0 || at < next:
				next = at
			}
		}
	}
	return move, next
}

func expels(n *structs.Node) bool {
	return n != nil && slices.ContainsFunc(n.Taints(), func(t structs.Taint) bool { return t.Effect == structs.TaintNoExecute })
}

func expellingNodes(snap *state.Snapshot) []structs.NodeID {
	var ids []structs.NodeID
	for n := range snap.Nodes() {
		if expels(n) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// runTaints is the service.
func (s *Server) runTaints(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("taints", 256)
	defer s.Unsubscribe(sub)
	nodes := expellingNodes(s.Published().Snapshot)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	look := true
	for {
		wait := time.Hour
		if look && len(nodes) > 0 {
			move, next := taintStep(s.Published().Snapshot, nodes, s.logNow())
			if next > 0 {
				wait = next.Sub(s.logNow())
			}
			if err := s.migrate(ctx, "taint", move, structs.Transition{Migrate: true}); err != nil && ctx.Err() == nil {
				s.log.Warn("move what does not tolerate a taint", "error", err)
				wait = time.Second
			}
		}
		look = false
		timer.Reset(max(wait, time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			look = true
		case <-sub.Wake():
			nodes, look = nodeNews(sub, nodes, expellingNodes, expels)
			if look && len(nodes) > 0 && !pause(ctx, drainInterval) { // a busy cluster changes all the time
				return nil
			}
			look = look || len(nodes) > 0 // the timer was for what had to leave next
		}
	}
}
