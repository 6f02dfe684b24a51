package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// gangState is what a reconciliation finds out about one gang.
type gangState struct {
	r            *reconciler
	g            *GroupPlan
	roster       *structs.Roster
	batch        bool
	taken        map[int]bool // name indices that are filled
	latest       map[int]*structs.Allocation
	live         []*structs.Allocation // by name index
	done         int
	ending       int64
	silent       bool // one that is ending may run until its node must have ended it: standbys do not take over before
	failed       []*structs.Allocation
	delayed      []*structs.Allocation // of failed: replaced later, or never
	by           *structs.Allocation   // the failure that counts as the attempt of this start
	delay        time.Duration         // before by is replaced
	moves        bool
	lost         bool
	spent        bool                  // a member has used up its run time, and with it the gang: no member starts any more
	again        *restartOf            // what the next start continues; nil: it has not run before
	standbys     []*structs.Allocation // that it may use
	standbyIndex []int                 // name indices of the standbys that hold a place
	forgive      bool                  // failures do not count as attempts: the gang lost a node, or was preempted
	reason       string                // why it has to start again, as in Requeue.On; "" for none
	missing      int                   // members of its minimum
	starts       bool                  // it may look for missing members now
	stale        []*structs.Allocation // live members of an older version that cannot adopt the new one
	held         bool                  // it does not start because another joint group cannot yet
	along        bool                  // all members are replaced, because those of another joint group are
}

// avoid lists the nodes where members failed.
func (m *gangState) avoid() []structs.NodeID {
	if m.roster == nil {
		return nil
	}
	return slices.Clone(m.roster.AvoidNodes)
}

// rankOfEnd orders why members ended: the worst counts for all.
func rankOfEnd(reason string) int {
	switch reason {
	case "", restartStop:
		return 0
	case structs.RequeueNodeLost:
		return 4
	case structs.RequeuePreempt:
		return 3
	case restartByHand:
		return 2
	}
	return 1
}

// returns determines why a gang that has to start again ended, and reports whether it may return. The worst that
// happened to a member counts for all: a member that failed while its peer's node was lost was lost with it.
func (m *gangState) returns() bool {
	rank := rankOfEnd
	var worst *structs.Allocation
	reason, next := "", restartOf{reason: restartStop}
	for _, i := range slices.Sorted(maps.Keys(m.latest)) {
		a := m.latest[i]
		if m.r.older(a) {
			continue
		}
		why := m.r.endOf(a, m.r.where(a))
		if worst == nil || rank(why) > rank(reason) {
			worst, reason = a, why
		}
		next.restarts, next.requeues = max(next.restarts, a.Lineage().Restarts+1), max(next.requeues, a.Lineage().Requeues)
	}
	if worst == nil {
		return true // the first start, or a new version of the job, for which the count begins again
	}
	if reason != "" {
		next.reason = reason
	}
	m.forgive, m.reason = m.forgive || rank(reason) >= 2, reason
	if m.batch && listed(m.r.job.Requeue, worst, reason) {
		most := *worst
		most.OwnLineage().Requeues = next.requeues
		if m.r.giveUp(&most, reason) {
			return false
		}
		next.requeues++
	} else if reason == restartByHand {
		next.requeues++
	}
	m.again = &next
	return true
}
