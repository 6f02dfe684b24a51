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
	GPUFaultsKept    = 16                  // the newest; likewise
	GPUFaultGap      = 10 * time.Minute    // GPUs that fail sooner after a fault of their node have the same cause
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

// Broke records in a node whose agent has reported its devices at now that one of them has failed since old, and returns that one. It
// does not count where the node took no new work before, as during maintenance.
func (n *Node) Broke(old *Node, now LogTime) *DeviceInstance {
	if !old.Ready() {
		return nil
	}
	sound := map[string]bool{}
	for i := range old.Resources.Devices {
		for _, d := range old.Resources.Devices[i].Instances {
			sound[d.ID] = !d.Failed
		}
	}
	for i := range n.Resources.Devices {
		g := &n.Resources.Devices[i]
		for k := range g.Instances {
			if d := &g.Instances[k]; d.Failed && !d.Healthy && sound[d.ID] {
				if last := len(n.GPUFaults) - 1; last >= 0 && now < n.GPUFaults[last].Add(GPUFaultGap) {
					return nil
				}
				kept := slices.DeleteFunc(slices.Clone(n.GPUFaults), func(at LogTime) bool { return at < now.Add(-ReadyPeriodsAge) })
				kept = append(kept, now)
				n.GPUFaults = slices.Clip(kept[max(0, len(kept)-GPUFaultsKept):])
				return d
			}
		}
	}
	return nil
}

// Past returns for how long the node was ready in the last ReadyPeriodsAge, as far as that is remembered, how often it was
// lost in that time, and how often a GPU of it failed.
func (n *Node) Past(now LogTime) (ready time.Duration, lost, faults int64) {
	from := now.Add(-ReadyPeriodsAge)
	if len(n.GPUFaults) >= GPUFaultsKept {
		from = max(from, n.GPUFaults[0])
	}
	for _, at := range n.GPUFaults {
		if at >= from {
			faults++
		}
	}
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
	return ready, lost, faults
}

// WasLost reports whether a loss of the node or a fault of one of its GPUs is remembered.
func (n *Node) WasLost() bool {
	return len(n.GPUFaults) > 0 || slices.ContainsFunc(n.Periods, func(p ReadyPeriod) bool { return p.Lost })
}

// NodeRisk is what is known of the reliability of a node.
type NodeRisk struct {
	Node     NodeID
	Name     string
	Ready    time.Duration // for how long it was ready in the last 30 days, as far as that is remembered
	Lost     int64         // how often it was lost in that time
	Faults   int64         // how often a GPU of it failed in that time, which counts as a loss
	Expected time.Duration // mean time until it is lost; 0: no loss was seen, of it or in the cluster
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
