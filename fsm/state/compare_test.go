package state

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/hashicorp/go-memdb"
	"github.com/muster-sched/muster/structs"
)

// The comparison in DESIGN.md of this folder: the same three indexes, kept by go-memdb with binary keys and by our trees.

type memdbKey func(*structs.Allocation) []byte

func (k memdbKey) FromObject(obj any) (bool, []byte, error) {
	return true, k(obj.(*structs.Allocation)), nil
}
func (k memdbKey) FromArgs(args ...any) ([]byte, error) { return args[0].([]byte), nil }

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

func BenchmarkCompareMemDB(b *testing.B) {
	index := func(name string, unique bool, k memdbKey) *memdb.IndexSchema {
		return &memdb.IndexSchema{Name: name, Unique: unique, Indexer: k}
	}
	db, err := memdb.NewMemDB(&memdb.DBSchema{Tables: map[string]*memdb.TableSchema{"allocs": {Name: "allocs", Indexes: map[string]*memdb.IndexSchema{
		"id":   index("id", true, func(a *structs.Allocation) []byte { return append([]byte(nil), a.ID[:]...) }),
		"node": index("node", false, func(a *structs.Allocation) []byte { return append(make([]byte, 0, 32), a.NodeID[:]...) }),
		"job": index("job", false, func(a *structs.Allocation) []byte {
			h := jobHash(a.JobKey())
			return binary.BigEndian.AppendUint64(append(make([]byte, 0, 40), h[:]...), a.JobVersion)
		}),
	}}}})
	if err != nil {
		b.Fatal(err)
	}
	compare(b, func(in []*structs.Allocation) {
		txn := db.Txn(true)
		for _, a := range in {
			if err := txn.Insert("allocs", a); err != nil {
				b.Fatal(err)
			}
		}
		txn.Commit()
	})
	runtime.KeepAlive(db)
}

// BenchmarkCompareStore also keeps counters, the state hash and the delta.
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
