package scheduler_test

import (
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// TestForecastWork: however little work is allowed, the first pass of each node pool is made.
func TestForecastWork(t *testing.T) {
	var nodes []*structs.Node
	var pending []contend.Workload
	for k, pool := range []structs.PoolName{"a", "b", "c"} {
		n, j := node(k+1), job(string(pool), 1)
		n.Pool, j.NodePool, j.Type = pool, pool, structs.JobBatch
		nodes, pending = append(nodes, n), append(pending, load(j, k+1))
	}
	starts := scheduler.Forecast{
		Input: &scheduler.Input{View: model.NewView(10, nodes, nil, nil), Pending: pending, Now: 1}, Work: 1,
		Policy: func(structs.PoolName) search.Policy { return binpack },
		Line: func(in *scheduler.Input) contend.Line {
			return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		},
		Alloc: func(structs.AllocID) *structs.Allocation { return nil },
	}.Starts()
	if len(starts) != len(pending) {
		t.Errorf("%v start, want one of each of %d pools", starts, len(pending))
	}
}
