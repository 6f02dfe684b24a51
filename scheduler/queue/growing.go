package queue

import "github.com/muster-sched/muster/structs"

// Growing reports whether reports of groups only lack growth beyond a minimum, or standbys. No work is preempted for
// that.
func Growing(groups []*structs.GroupReport) bool {
	for _, g := range groups {
		if g.Placed < g.Wanted && (len(g.Refusals) == 0 || g.Refusals[0].Dimension != structs.DimensionGrowth && g.Refusals[0].Dimension != structs.DimensionStandbys) {
			return false
		}
	}
	return len(groups) > 0
}
