package queue

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// Order says which of two workloads is decided first. Implementations are pure; they must be total: Compare gives 0
// only for one and the same job.
type Order interface {
	// Name as written in configuration.
	Name() string
	// Compare is negative when a goes before b. now is the time of the pass.
	Compare(a, b *structs.Workload, now structs.LogTime) int
}

// Builtin are all ordering policies, by the name used in configuration.
var Builtin = map[string]Order{
	"fcfs": FCFS{},
}

// Default is the ordering policy of a cluster that names none.
const Default = "fcfs"

// FCFS is first come, first served within a priority. Ties, which only workloads submitted by one and the same log
// entry can have, go by namespace and job id.
type FCFS struct{}

// Name is "fcfs".
func (FCFS) Name() string { return "fcfs" }

// Compare orders by priority (high first), submit index, key.
func (FCFS) Compare(a, b *structs.Workload, _ structs.LogTime) int {
	return cmp.Or(
		cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(a.SubmitIndex, b.SubmitIndex),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.JobID, b.JobID),
	)
}

// Sort puts workloads in the order in which a pass takes them.
func Sort(o Order, ws []*structs.Workload, now structs.LogTime) {
	slices.SortFunc(ws, func(a, b *structs.Workload) int { return o.Compare(a, b, now) })
}
