package queue

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Cures is the set of event kinds that could change a decision that failed with these group reports, sorted. A report
// without reasons can be cured by anything, which is told by returning nil.
func Cures(groups []*structs.GroupReport) []structs.EventKind {
	var kinds []structs.EventKind
	for _, g := range groups {
		if g.Placed >= g.Wanted {
			continue
		}
		if len(g.Refusals) == 0 {
			return nil
		}
		for _, r := range g.Refusals {
			if r.CuredBy == structs.EventNone {
				return nil
			}
			kinds = append(kinds, r.CuredBy)
			if r.Unit == structs.UnitDevices || r.CuredBy == structs.EventDeviceHealthy { // one that is given back or one that gets well: either may do
				kinds = append(kinds, structs.EventAllocStopped, structs.EventDeviceHealthy)
			}
			if r.CuredBy == structs.EventAllocPlaced { // those in question may end as well as get on
				kinds = append(kinds, structs.EventAllocStopped)
			}
		}
		// More nodes help against everything that nodes refuse.
		kinds = append(kinds, structs.EventNodeJoined, structs.EventNodeEligible, structs.EventJobChanged, structs.EventConfigChanged)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Skip reports whether a workload that failed with these group reports may be left out of a pass, because none of what
// happened since (in its domain) can cure it. A pass that skips decides as one that does not: that is a property test.
func Skip(groups []*structs.GroupReport, happened []structs.EventKind) bool {
	cures := Cures(groups)
	if cures == nil {
		return false
	}
	return !slices.ContainsFunc(happened, func(k structs.EventKind) bool {
		return k == structs.EventNone || slices.Contains(cures, k)
	})
}

// Growing reports whether all that a report of groups waits for is growth beyond a minimum, or a spare: nobody has to make way for it.
func Growing(groups []*structs.GroupReport) bool {
	for _, g := range groups {
		if g.Placed < g.Wanted && (len(g.Refusals) == 0 || g.Refusals[0].Dimension != structs.DimensionGrowth && g.Refusals[0].Dimension != structs.DimensionSpares) {
			return false
		}
	}
	return len(groups) > 0
}
