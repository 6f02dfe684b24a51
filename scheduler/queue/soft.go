package queue

import (
	"container/heap"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// softQuota is the soft limit of a quota, shared by the namespaces that have the quota.
type softQuota struct {
	quota string
	most  structs.Amount
	held  structs.Amount // by all its namespaces, including what the pass has placed
}

// softQuotas returns the quotas with a soft limit, by namespace; nil if there are none.
func softQuotas(table *contend.QueueTable) map[string]*softQuota {
	if table == nil {
		return nil
	}
	var by map[string]*softQuota
	quotas := map[string]*softQuota{}
	for i := range table.Tenants {
		t := &table.Tenants[i]
		if t.Soft == nil {
			continue
		}
		s := quotas[t.Quota]
		if s == nil {
			s = &softQuota{quota: t.Quota, most: *t.Soft}
			quotas[t.Quota] = s
		}
		if u := table.Use(structs.UseNamespace(t.Namespace), ""); u != nil {
			s.held = s.held.Add(u.Held)
		}
		if by == nil {
			by = map[string]*softQuota{}
		}
		by[t.Namespace] = s
	}
	return by
}

// overBound reports whether a workload would take its namespaces beyond the soft limit.
func (s *softQuota) overBound(w *contend.Workload) bool {
	if s == nil {
		return false
	}
	_, over := structs.Breaks(s.held, w.Asks(), s.most)
	return over > 0
}

// foremost returns the lane whose turn it is.
func (l *Line) foremost() *lane {
	n := l.root
	for n.turns.in[0].kid != nil {
		n = n.turns.in[0].kid
	}
	return n.turns.in[0].lane
}

// settle moves the first workload of a lane behind the others if what the pass has placed took its namespaces to their
// soft limit meanwhile, and reports whether it did. What the namespaces hold only grows during a pass. So it is enough to
// look at a workload when its turn comes: no other one has moved to an earlier place.
func (l *Line) settle(ln *lane) bool {
	top := &ln.work[0]
	if w := &l.pending[top.load]; top.over || !l.soft[w.Key.Namespace].overBound(w) {
		return false
	}
	top.over = true
	if ln.heaped {
		l.sink(ln.work, 0)
	} else {
		l.heapify(ln)
	}
	l.rate(ln.node, ln.in)
	heap.Fix(&ln.node.turns, ln.in.at)
	l.lift(ln.node)
	return true
}
