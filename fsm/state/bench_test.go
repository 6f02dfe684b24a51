package state

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/muster-sched/muster/structs"
)

const compareBatch = 600

func compareAlloc(n int, job *structs.Job) *structs.Allocation {
	id := structs.DeriveAllocID(structs.EvalID{byte(n / 30), byte(n / 7680), byte(n / 1966080)}, 5, "group", n)
	node := structs.DeriveID[structs.NodeID](structs.Seed{}, "node", "", uint64(n*7919%5000))
	return &structs.Allocation{ID: id, NodeID: node, Namespace: "default", JobID: fmt.Sprintf("job-%d", n/30), Job: job, Group: "group", Client: structs.ClientPending, Desired: structs.DesiredRun}
}

func compare(b *testing.B, insert func([]*structs.Allocation)) {
	const base = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	n := 0
	batch := func() []*structs.Allocation {
		out := make([]*structs.Allocation, compareBatch)
		for i := range out {
			out[i] = compareAlloc(n, nil)
			n++
		}
		return out
	}
	for n < base {
		insert(batch())
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ResetTimer()
	for range b.N {
		b.StopTimer()
		in := batch()
		b.StartTimer()
		insert(in)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1000/float64(b.N*compareBatch), "us/alloc")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n-b.N*compareBatch), "heapB/alloc")
}

// BenchmarkCompareStore writes allocations with their indexes, counters, state hash and delta.
func BenchmarkCompareStore(b *testing.B) {
	s := New(Options{})
	index := structs.Index(1)
	compare(b, func(in []*structs.Allocation) {
		for _, a := range in {
			s.PutAlloc(a)
		}
		index++
		s.CommitEntry(index)
		s.Publish(index)
	})
	runtime.KeepAlive(s)
}
