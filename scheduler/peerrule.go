package scheduler

import (
	"cmp"

	"github.com/muster-sched/muster/structs"
)

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

func peersOf(j *structs.Job, tg *structs.Group) (out []peerRule) {
	add := func(ps []structs.Peer, away bool) {
		for _, p := range ps {
			p.Level = cmp.Or(p.Level, structs.PeerLevelNode)
			out = append(out, peerRule{Peer: p, away: away, self: p.Means(j.Namespace, j)})
		}
	}
	if j == nil {
		return nil
	}
	add(j.Near, false)
	add(j.Away, true)
	add(tg.Near, false)
	add(tg.Away, true)
	return out
}
