package reconcile

// The joint groups of an all_at_once job (structs.Job.Join) are one. Each of them is reconciled as a gang, and then:
//
//	one cannot start yet         none starts: members of the last start end, a policy delays it or gives up, its time is over
//	one moves, or has changed    all members of all groups are replaced, each on its node if there is no better place
//	one starts again             all count the same start: the worst end, the most restarts and requeues
//
// That no group is left running without the others is the rule of Apply (settleGangs in package fsm).

// planJoint decides about the joint groups.
func (r *reconciler) planJoint() {
	var again *restartOf // of all that start again
	worst, missing := "", false
	for _, m := range r.joint {
		missing = missing || m.missing > 0
		if m.missing == 0 || m.lost || m.spent || !m.returns() || m.again == nil {
			continue
		}
		if again == nil {
			again = &restartOf{}
		}
		if again.reason == "" || rankOfEnd(m.reason) > rankOfEnd(worst) {
			again.reason, worst = m.again.reason, m.reason
		}
		again.restarts, again.requeues = max(again.restarts, m.again.restarts), max(again.requeues, m.again.requeues)
	}
	var bar *gangState // cannot start, and keeps the others from starting
	moves := false
	for _, m := range r.joint {
		m.forgive = m.forgive || rankOfEnd(worst) >= 2
		m.judge()
		switch {
		case m.lost, m.spent, m.missing > 0 && !m.starts:
			if bar == nil || bar.g.Refused == nil {
				bar = m
			}
		default:
			moves = moves || m.moves && !m.g.Tg.Continues() || len(m.stale) > 0
		}
	}
	for _, m := range r.joint {
		if m.again != nil {
			m.again = again
		}
		switch {
		case bar != nil && m.starts && m.missing > 0 && !m.spent:
			m.hold(bar)
		case bar == nil && moves && !missing:
			m.moves, m.along = true, true
		}
		m.plan()
	}
}

// hold keeps a gang that could start from starting, because another joint group cannot.
func (m *gangState) hold(by *gangState) {
	m.starts, m.g.Restart = false, false
	if by.g.Refused == nil {
		m.g.Counts.Ignore++
		return
	}
	m.held, m.g.Refused, m.g.Wants = true, by.g.Refused, make([]Want, m.missing)
}
