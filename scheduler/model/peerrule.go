package model

import (
	"cmp"

	"github.com/muster-sched/muster/structs"
)

// PeerRule is one near or away block of an ask.
type PeerRule struct {
	structs.Peer
	Away   bool
	Self   bool             // it also matches the request's own job
	Broken structs.Obstacle // the obstacle on nodes where the rule is broken
}

// Obstacle returns the obstacle of a node where the rule is broken.
func (r *PeerRule) Obstacle() structs.Obstacle {
	out := structs.Obstacle{Dimension: structs.DimensionNear, Subject: r.Who(), Detail: r.Level}
	if r.Away {
		out.Dimension = structs.DimensionAway
	}
	return out
}

// PeersOf lists the rules of a job and one of its groups about where other work runs.
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
