package state

import (
	"math"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestIndexesOfAllocations compares the indexes with a search of all rows. Many IDs begin alike, so that the short keys of
// the indexes are often equal; versions go beyond those that a short key can hold.
func TestIndexesOfAllocations(t *testing.T) {
	s := New(Options{})
	s.Builtin()
	index := structs.Index(1)
	put := func(n int, node, version byte) *structs.Allocation {
		a := &structs.Allocation{Namespace: "default", JobID: string(rune('a' + n%3)), JobVersion: uint64(version)}
		if version == 3 {
			a.JobVersion = math.MaxUint32 + uint64(n%4)
		}
		a.ID[0], a.ID[8], a.ID[15] = byte(n%4), byte(n/4), byte(n)
		a.NodeID[0], a.NodeID[9] = node/2, node
		s.PutAlloc(a)
		return a
	}
	commit := func() {
		index++
		s.CommitEntry(index)
		s.Publish(index)
	}
	for n := range 200 {
		put(n, byte(n%5), byte(n%4))
	}
	commit()
	for n := range 200 { // other versions and other nodes
		if n%3 == 0 {
			put(n, byte(n%7), byte(n%2))
		}
		if n%11 == 0 {
			Allocs.Delete(s, put(n, 0, 0).ID)
		}
	}
	commit()
	byID := func(a, b *structs.Allocation) int {
		if lessID(a.ID, b.ID) {
			return -1
		}
		return 1
	}
	found := 0
	for node := range byte(8) {
		id := structs.NodeID{}
		id[0], id[9] = node/2, node
		var want []*structs.Allocation
		for a := range s.Snapshot().Allocs() {
			if a.NodeID == id {
				want = append(want, a)
			}
		}
		slices.SortFunc(want, byID)
		if got := s.Snapshot().AllocsByNode(id); !slices.Equal(got, want) {
			t.Errorf("node %d has %d allocations, want %d", node, len(got), len(want))
		}
		found += len(want)
	}
	for _, job := range []string{"a", "b", "c", "d"} {
		k := structs.JobKey{Namespace: "default", ID: job}
		var want []*structs.Allocation
		for a := range s.Snapshot().Allocs() {
			if a.JobID == job {
				want = append(want, a)
			}
		}
		slices.SortFunc(want, func(a, b *structs.Allocation) int {
			if a.JobVersion != b.JobVersion {
				return int(int64(a.JobVersion) - int64(b.JobVersion))
			}
			return byID(a, b)
		})
		if got := s.Snapshot().AllocsByJob(k); !slices.Equal(got, want) {
			t.Errorf("job %s has %d allocations, want %d", job, len(got), len(want))
		}
		for v := range uint64(5) {
			has := slices.ContainsFunc(want, func(a *structs.Allocation) bool { return a.JobVersion == v })
			if s.HasAllocsOfVersion(k, v) != has {
				t.Errorf("job %s has allocations of version %d: %v", job, v, !has)
			}
		}
	}
	if all := s.Snapshot().AllocCount(); found != all {
		t.Errorf("the nodes have %d of %d allocations", found, all)
	}
}
