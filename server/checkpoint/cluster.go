package checkpoint

import (
	"iter"

	"github.com/muster-sched/muster/structs"
)

// Cluster is what turns follow from: a state (state.Snapshot), or the cluster of the simulator. Lists are in the same order each time.
type Cluster interface {
	SchedulerConfig() *structs.SchedulerConfig
	Pool(name structs.PoolName) *structs.NodePool
	Pools() iter.Seq[*structs.NodePool]
	NodeByID(id structs.NodeID) *structs.Node
	Jobs(namespace, prefix string) iter.Seq[*structs.Job]
	Allocs() iter.Seq[*structs.Allocation]
	AllocsByNode(id structs.NodeID) []*structs.Allocation
	AllocsByJob(key structs.JobKey) []*structs.Allocation
}
