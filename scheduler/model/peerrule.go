package model

import (
	"cmp"

	"github.com/muster-sched/muster/structs"
)

// PeerRule is one near or away block of an ask.
type PeerRule struct {
	structs.Peer
	Away   bool
	Self   bool             // it means the ask's own job, too
	Broken structs.Obstacle // on nodes where it does not hold
}

// Obstacle is what a node is where a rule does not hold.
func (r *PeerRule) Obstacle() structs.Obstacle {
	out := structs.Obstacle{Dimension: structs.DimensionNear, Subject: r.Who(), Detail: r.Level}
	if r.Away {
		out.Dimension = structs.DimensionAway
	}
	return out
}

// PeersOf lists the rules of a job and one of its groups about where other work lies.
func PeersOf(j *structs.Job, tg *structs.Group) (out []PeerRule) {
	add := func(ps []structs.Peer, away bool) {
		for _, p := range ps {
			p.Level = cmp.Or(p.Level, structs.PeerLevelNode)
			out = append(out, PeerRule{Peer: p, Away: away, Self: p.Means(j.Namespace, j)})
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
