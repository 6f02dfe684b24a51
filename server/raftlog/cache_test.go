package raftlog

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"
)

// TestCache changes a log with and without a cache in the same way: both must have the same entries, and the cache must
// stay below its limits.
func TestCache(t *testing.T) {
	const count, size = 8, 100
	r := rand.New(rand.NewPCG(1, 2))
	plain, below := raft.NewInmemStore(), raft.NewInmemStore()
	c := Cache(below, count, size).(*cache)
	next, term, hits := uint64(1), uint64(1), 0
	for range 5000 {
		switch r.IntN(10) {
		case 0: // a new leader replaces entries
			from := next - min(next-1, uint64(r.IntN(6)))
			for _, s := range []raft.LogStore{plain, c} {
				if err := s.DeleteRange(from, next); err != nil {
					t.Fatal(err)
				}
			}
			next, term = from, term+1
		case 1: // a snapshot
			first, _ := plain.FirstIndex()
			to := first + uint64(r.IntN(3))
			for _, s := range []raft.LogStore{plain, c} {
				if err := s.DeleteRange(first, min(to, next-1)); err != nil {
					t.Fatal(err)
				}
			}
		default:
			var ls []*raft.Log
			for range 1 + r.IntN(4) {
				ls = append(ls, &raft.Log{Index: next, Term: term, Data: make([]byte, r.IntN(40))})
				next++
			}
			for _, s := range []raft.LogStore{plain, c} {
				if err := s.StoreLogs(ls); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(c.logs) > count || c.bytes > size && len(c.logs) > 1 {
			t.Fatalf("%d entries of %d bytes in memory; want at most %d and %d", len(c.logs), c.bytes, count, size)
		}
		bytes := 0
		for _, l := range c.logs {
			bytes += len(l.Data)
		}
		if bytes != c.bytes {
			t.Fatalf("%d bytes in memory, counted as %d", bytes, c.bytes)
		}
		hits += len(c.logs)
		for at := next - min(next, 12); at <= next+2; at++ {
			var want, got raft.Log
			errWant, errGot := plain.GetLog(at, &want), c.GetLog(at, &got)
			if !errors.Is(errGot, errWant) || want.Term != got.Term || want.Index != got.Index {
				t.Fatalf("entry %d: %v %v, want %v %v", at, got, errGot, want, errWant)
			}
		}
	}
	if hits < 5000 {
		t.Errorf("%d entries in memory over 5,000 steps: the cache keeps nothing", hits)
	}
}
