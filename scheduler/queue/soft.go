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

	models *softModels // nil: none
}

// softModels are soft limits by GPU model with what is held of each. A workload counts with the GPUs that can be of no other
// model, because it is not known yet which ones it gets.
type softModels struct {
	table  *contend.QueueTable
	limits []structs.ModelAmount
	held   []structs.ModelAmount
	now    []int64 // by limit: what the pass has placed
}

func newSoftModels(table *contend.QueueTable, limits, held []structs.ModelAmount) *softModels {
	if len(limits) == 0 {
		return nil
	}
	return &softModels{table: table, limits: limits, held: held, now: make([]int64, len(limits))}
}

// overBound reports whether a workload would exceed a limit.
func (s *softModels) overBound(w *contend.Workload) bool {
	if s == nil {
		return false
	}
	for i, l := range s.limits {
		if need := s.table.SoftNeed(w, l.Model); need > 0 && structs.MilliOf(s.held, l.Model)+s.now[i]+need > l.Milli {
			return true
		}
	}
	return false
}

// placed counts what the pass has placed of a workload.
func (s *softModels) placed(w *contend.Workload, use structs.Amount) {
	if s == nil || use.GPUMilli <= 0 {
		return
	}
	for i, l := range s.limits {
		s.now[i] += min(s.table.SoftNeed(w, l.Model), use.GPUMilli)
	}
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
		if t.Soft == nil && len(t.SoftModels) == 0 {
			continue
		}
		s := quotas[t.Quota]
		if s == nil {
			s = &softQuota{quota: t.Quota, most: structs.Unlimited, models: newSoftModels(table, t.SoftModels, nil)}
			if t.Soft != nil {
				s.most = *t.Soft
			}
			quotas[t.Quota] = s
		}
		if u := table.Use(structs.UseNamespace(t.Namespace), ""); u != nil {
			s.held = s.held.Add(u.Held)
			if s.models != nil {
				s.models.held = structs.AddModels(s.models.held, u.Models, 1)
			}
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
	return over > 0 || s.models.overBound(w)
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
