package scheduler

import "github.com/muster-sched/muster/structs"

// peerRule is one near or away block of an ask.
type peerRule struct {
	structs.Peer
	away   bool
	self   bool             // it means the ask's own job, too
	broken structs.Obstacle // on nodes where it does not hold
}

// obstacle is what a node is where a rule does not hold.
func (r *peerRule) obstacle() structs.Obstacle {
	out := structs.Obstacle{Dimension: structs.DimensionNear, Subject: r.Who(), Detail: r.Level}
	if r.away {
		out.Dimension = structs.DimensionAway
	}
	return out
}
