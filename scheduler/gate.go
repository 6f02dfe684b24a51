package scheduler

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// gated reports whether the workload may not be placed whatever the nodes offer. Then every want of it is missed for
// that reason; stops and updates go on.
func (d *decision) gated() bool {
	why := d.load.Gate
	if why == nil && d.wantsAny() {
		why = d.capped()
	}
	if why == nil {
		ahead, passed := d.reservations.passed(d.load)
		switch {
		case d.restarting(): // it takes no more than it had
		case passed:
			why = &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionQueueOrder, Subject: ahead.ID, Holder: queueHolder(d.load.QueueName())}}
		case d.wantsAny():
			why = d.reservations.overBound(d.load)
			d.overBound = why != nil
		}
		if why == nil {
			return false
		}
	}
	for _, g := range d.groups {
		g.Refused = why
		for i := range g.Wants {
			d.misses[g.Name]++
			d.keepStop(g, &g.Wants[i])
		}
		if len(g.Wants) > 0 {
			g.GiveBack()
		}
	}
	return true
}

// restarting reports whether a gang of the decision restarts in its own places and those of its standbys.
func (d *decision) restarting() bool {
	return slices.ContainsFunc(d.groups, func(g *groupWork) bool { return g.Restart })
}

func (d *decision) wantsAny() bool {
	for _, g := range d.groups {
		if len(g.Wants) > 0 {
			return true
		}
	}
	return false
}

// Refusal is the report of a group that was not looked for on any node.
func (g *groupWork) refusal() *structs.GroupReport {
	return &structs.GroupReport{Group: g.Name, Code: g.Refused.Code, Wanted: int64(len(g.Wants)) + g.Missed, Refusals: []structs.Refusal{*g.Refused}}
}
