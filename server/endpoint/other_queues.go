package endpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// otherQueuesShown limits the other queues that job why names, those that hold most first.
const otherQueuesShown = 3

// otherQueue is what a queue holds of what a job waits for.
type otherQueue struct {
	path           structs.QueuePath
	allocs, fixed  int64 // fixed: those that are not preemptible
	gpuMilli, mhzs int64
}

// otherQueues says what other queues hold in the node pool of a job that waits for room, and whether its queue may take it from
// them. It is nil if they hold nothing there. may reports whether the caller may see the jobs of a namespace.
func (s *Set) otherQueues(p *replica.Published, j *structs.Job, w *structs.Workload, reports []*structs.GroupReport, may func(string) bool) []string {
	if w.Waiting == 0 || !slices.ContainsFunc(reports, awaitsRoom) {
		return nil
	}
	snap, own := p.Snapshot, j.QueueName()
	if !otherQueueHolds(snap, own) {
		return nil
	}
	gpus := decide.WaitingAsk(j, w).GPUMilli > 0
	by := map[structs.QueuePath]*otherQueue{}
	for a := range snap.Allocs() {
		if !structs.Holds(a) || a.ServerTerminal() || a.Job == nil || a.Job.QueueName() == own || !may(a.Namespace) {
			continue
		}
		if n := snap.NodeByID(a.NodeID); n == nil || j.NodePool != structs.NodePoolAll && n.Pool != j.NodePool {
			continue
		}
		holds := structs.AmountOf(a)
		if gpus && holds.GPUMilli == 0 {
			continue
		}
		x := by[a.Job.QueueName()]
		if x == nil {
			x = &otherQueue{path: a.Job.QueueName()}
			by[x.path] = x
		}
		x.allocs, x.gpuMilli, x.mhzs = x.allocs+1, x.gpuMilli+holds.GPUMilli, x.mhzs+holds.CPU
		if !a.Job.MayPreempt() {
			x.fixed++
		}
	}
	if len(by) == 0 {
		return nil
	}
	others := slices.SortedFunc(maps.Values(by), func(x, y *otherQueue) int {
		return cmp.Or(cmp.Compare(y.gpuMilli, x.gpuMilli), cmp.Compare(y.mhzs, x.mhzs), cmp.Compare(x.path, y.path))
	})
	var out []string
	for _, x := range others[:min(len(others), otherQueuesShown)] {
		out = append(out, x.text(gpus))
	}
	if n := len(others) - otherQueuesShown; n > 0 {
		out = append(out, fmt.Sprintf("and %d more", n))
	}
	return append(out, takesFromOthers(s.env.Decide.QueueTable(snap), snap.SchedulerConfig(), own))
}

// otherQueueHolds reports whether there are allocations of another queue. On most clusters there are none, and then none are looked for.
func otherQueueHolds(snap *state.Snapshot, own structs.QueuePath) bool {
	for u := range snap.QueueUses() {
		if u.User == "" && u.Allocs > 0 && !u.Path.Contains(own) {
			return true
		}
	}
	return false
}

// awaitsRoom reports whether a group could be placed if running work ended.
func awaitsRoom(r *structs.GroupReport) bool {
	return r.Placed < r.Wanted && slices.ContainsFunc(r.Refusals, func(x structs.Refusal) bool { return x.Nodes > 0 && x.CuredBy == structs.EventAllocStopped })
}

func (x *otherQueue) text(gpus bool) string {
	holds := structs.AmountText(x.mhzs, structs.UnitMHz)
	if gpus {
		holds = structs.AmountText(x.gpuMilli, structs.UnitMilliGPUs)
	}
	text := "all of them preemptible"
	switch {
	case x.fixed == x.allocs:
		text = "none of them preemptible"
	case x.fixed > 0:
		text = fmt.Sprintf("%d of them not preemptible", x.fixed)
	}
	return fmt.Sprintf("queue %s holds %s in allocations: %d, %s", x.path, holds, x.allocs, text)
}

// takesFromOthers says by which rule a queue takes the places of work of other queues.
func takesFromOthers(table *contend.QueueTable, cfg *structs.SchedulerConfig, own structs.QueuePath) string {
	set := table.Settings(own, cfg)
	head := fmt.Sprintf("queue %s (preempt = %q) ", own, set.Preempt)
	if set.Preempt == structs.PreemptNone {
		return head + "takes no places of others"
	}
	guaranteed := ""
	for path := range own.Lineage() {
		q := table.Queue(path)
		if q == nil || q.Guarantee == nil {
			continue
		}
		var held structs.Amount
		if u := table.Use(path, ""); u != nil {
			held = u.Held
		}
		guaranteed = fmt.Sprintf("; queue %s reclaims preemptible work of queues that hold more than their guarantee, up to its own (it holds %s of %s)", path,
			structs.AmountText(held.GPUMilli, structs.UnitMilliGPUs), structs.AmountText(q.Guarantee.GPUMilli, structs.UnitMilliGPUs))
		break
	}
	switch set.Preempt {
	case structs.PreemptPriority:
		return head + fmt.Sprintf("takes the places of preemptible work whose priority is lower by %d or more, in any queue", max(set.PreemptDelta, 1)) + guaranteed
	case structs.PreemptDeadline:
		return head + "takes the places of preemptible work of any queue when the job would otherwise miss its deadline" + guaranteed
	case structs.PreemptReclaim:
		if guaranteed == "" {
			return head + "reclaims nothing, because it has no guarantee"
		}
		return head + "takes no other places" + guaranteed
	}
	for path := range own.Ancestors() {
		if o := table.Settings(path, cfg).Order; o.Has(structs.OrderFair) || o.Has(structs.OrderWeighted) {
			return head + "takes the places of preemptible work of its own, and of queues with a larger share (order of queue " + string(path) + ")" + guaranteed
		}
	}
	if guaranteed == "" {
		guaranteed = "; with a guarantee it would reclaim from others, too (muster queue apply)"
	}
	return head + "takes only the places of its own preemptible work" + guaranteed
}
