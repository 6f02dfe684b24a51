package structs

import (
	"slices"
	"time"
)

// ReadyPeriod is a time during which a node was ready, and that has ended.
type ReadyPeriod struct {
	From, To LogTime
	// Lost says that the servers lost the node then, while it took new work. An agent that left, and a node that was drained
	// before, do not count.
	Lost bool
}

// Limits of what is remembered of a node's past.
const (
	ReadyPeriodsAge  = 30 * 24 * time.Hour // older ones are dropped when another one ends
	ReadyPeriodsKept = 16                  // the newest; of a node that fails more often, both losses and hours are of a shorter time
)

// Turned records in a node whose status changes from old at now that it is no longer ready, and whether it was lost. silent: the
// servers have lost contact. StatusAt is still that of the old status.
func (n *Node) Turned(old NodeStatus, now LogTime, silent bool) {
	lost := silent && n.Status == NodeDown && n.Eligibility == NodeEligible
	switch last := len(n.Periods) - 1; {
	case old == NodeReady && n.Status != NodeReady:
		kept := slices.DeleteFunc(slices.Clone(n.Periods), func(p ReadyPeriod) bool { return p.To < now.Add(-ReadyPeriodsAge) })
		kept = append(kept, ReadyPeriod{From: n.StatusAt, To: now, Lost: lost})
		n.Periods = slices.Clip(kept[max(0, len(kept)-ReadyPeriodsKept):])
	case lost && old != NodeDown && last >= 0: // it was out of touch, or its agent had ended, before it was lost
		n.Periods = slices.Clone(n.Periods)
		n.Periods[last].Lost = true
	}
}

// Past returns for how long the node was ready in the last ReadyPeriodsAge, as far as that is remembered, and how often
// it was lost in that time.
func (n *Node) Past(now LogTime) (ready time.Duration, lost int64) {
	from := now.Add(-ReadyPeriodsAge)
	for _, p := range n.Periods {
		if p.To >= from {
			ready += max(0, p.To.Sub(max(p.From, from)))
			if p.Lost {
				lost++
			}
		}
	}
	if n.Status == NodeReady {
		ready += max(0, now.Sub(max(n.StatusAt, from)))
	}
	return ready, lost
}

// WasLost reports whether the node was lost while it was ready, as far as that is remembered.
func (n *Node) WasLost() bool {
	return slices.ContainsFunc(n.Periods, func(p ReadyPeriod) bool { return p.Lost })
}

// NodeRisk is what is known of the reliability of a node.
type NodeRisk struct {
	Node     NodeID
	Name     string
	Ready    time.Duration // for how long it was ready in the last 30 days, as far as that is remembered
	Lost     int64         // how often it was lost in that time
	Expected time.Duration // mean time until it is lost; 0: no loss was seen in the cluster
	Typical  time.Duration // the same of a node of which nothing is known
}

// MeanTimeToLoss returns the mean time until an allocation is lost with its node; 0 if none was.
func (r *JobRisk) MeanTimeToLoss() time.Duration {
	if r.Lost <= 0 {
		return 0
	}
	return r.AllocTime / time.Duration(r.Lost)
}

// MeanTimeToLoss returns the expected time until a node is lost that was lost so often while it was ready for a time. typical
// is that of a node of which nothing is known; 0 if no loss was ever seen, and then so is the result.
//
// Naive: the time by the losses. That is infinite for a node that was never lost, and a single loss on its first day makes a node
// the worst of the cluster. Instead the rate of losses of a node has a Gamma distribution whose mean is that of the
// cluster and that weighs as much as one loss; with losses as a Poisson process, its mean after what was seen is
// (lost + 1) / (ready + typical).
func MeanTimeToLoss(ready time.Duration, lost int64, typical time.Duration) time.Duration {
	if typical <= 0 {
		return 0
	}
	return (ready + typical) / time.Duration(lost+1)
}
