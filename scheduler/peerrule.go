package scheduler

import "github.com/muster-sched/muster/structs"

// peerRule is one near or away block of an ask.
type peerRule struct {
	structs.Peer
	away bool
	self bool // it means the ask's own job, too
	key  string
}

// text is a rule in words.
func (r *peerRule) text() string {
	what := structs.DimensionNear
	if r.away {
		what = structs.DimensionAway
	}
	return what + r.Who() + " (" + r.Level + ")"
}
