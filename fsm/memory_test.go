package fsm

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// Live bytes of the heap that the state may take for a running allocation with one task: the row, what its agent reported
// and the indexes. A row of another size class of Go's allocator moves the figure by at least 32.
const liveBytesMax = 840

// TestLiveBytes places allocations, reports them as running, and measures what is left after a collection.
func TestLiveBytes(t *testing.T) {
	const jobs, per = 50, 400
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // frees what the first one found in pools
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	c := newCluster(t, 200)
	before := heap()
	for i := range jobs {
		c.place(fmt.Sprintf("job-%d", i), per)
	}
	placed := heap()
	var ids []structs.AllocID
	for a := range c.f.Snapshot().Allocs() {
		ids = append(ids, a.ID)
	}
	for len(ids) > 0 {
		cmd := &structs.AllocObservedCommand{}
		n := min(len(ids), 100)
		for i, id := range ids[:n] {
			at := structs.LogTime(1_700_000_000_000_000_000 + i*12_345)
			cmd.Updates = append(cmd.Updates, structs.AllocObserved{ID: id, Client: structs.ClientRunning, ClientDesc: "tasks are running", StartedAt: at, NetworkIP: "10.0.0.1",
				TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"task": {State: "running", StartedAt: at, Events: []structs.TaskEvent{
					{Type: "Received", Time: at - 200_000, Message: "Task received by client"}, {Type: "Task Setup", Time: at - 100_000, Message: "Building Task Directory"},
					{Type: "Started", Time: at, Message: "Task started by client"}}}})})
		}
		c.apply(cmd)
		ids = ids[n:]
	}
	running := heap()
	each := func(b uint64) uint64 { return (b - before) / (jobs * per) }
	t.Logf("an allocation takes %d bytes when it is placed, %d when it runs", each(placed), each(running))
	if each(running) > liveBytesMax {
		t.Errorf("an allocation takes %d bytes of live heap; want at most %d. Fields that few allocations have belong to structs.Lineage", each(running), liveBytesMax)
	}
	runtime.KeepAlive(c)
}
