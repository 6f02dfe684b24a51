package scheduler

import "github.com/muster-sched/muster/structs"

// Schedule decides about the pending workloads in order.
func Schedule(in Input, p Policy) (Plan, Report) {
	plan := Plan{Cursor: in.Cursor}
	for i := range in.Pending {
		plan.Deferred = append(plan.Deferred, structs.JobKey(in.Pending[i].Key))
	}
	return plan, Report{}
}
