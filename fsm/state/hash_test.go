package state

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// The state hash is that of the rows, whichever of them the sum lacks: rows are written, written again, put back and deleted, in
// entries of which some are undone, more of them than the sum may lack. Later changes do not change the hash of a snapshot.
func TestHashIsThatOfTheRows(t *testing.T) {
	s := New(Options{})
	rnd := rand.New(rand.NewPCG(3, 4))
	var snap *Snapshot
	hits := 0
	type past struct {
		snap *Snapshot
		hash [32]byte
	}
	var pasts []past
	for batch := range 400 {
		for range 1 + rnd.IntN(3) {
			undo := rnd.IntN(4) == 0
			for range 1 + rnd.IntN(120) {
				var id structs.EvalID
				n := uint64(rnd.IntN(15_000))
				if rnd.IntN(2) == 0 {
					n = uint64(rnd.IntN(50)) // often
				}
				binary.BigEndian.PutUint64(id[:], n)
				old := Evals.Get(s, id)
				if old != nil {
					if _, ok := s.owing.last[old]; ok {
						hits++
					}
				}
				switch rnd.IntN(5) {
				case 0:
					Evals.Delete(s, id)
				case 1:
					if old != nil {
						Evals.Delete(s, id)
						Evals.Put(s, old) // the very same row
						continue
					}
					fallthrough
				default:
					Evals.Put(s, &structs.Evaluation{ID: id, Namespace: "default", JobID: "j", Priority: rnd.IntN(100), ModifyIndex: structs.Index(batch)})
				}
			}
			if undo {
				s.RollbackEntry()
			} else {
				s.CommitEntry(structs.Index(batch + 2))
			}
		}
		snap, _ = s.Publish(structs.Index(batch + 2))
		if n := len(s.owing.list); n > owedMax {
			t.Fatalf("batch %d: the sum lacks %d rows", batch, n)
		}
		if batch%90 == 0 && batch < 200 && s.Hash() != snap.Rehash() {
			t.Fatalf("batch %d: the store's hash is not that of the rows", batch)
		}
		if batch%20 == 1 {
			pasts = append(pasts, past{snap, snap.Hash()})
		}
		if batch%20 == 0 && snap.Hash() != snap.Rehash() {
			t.Fatalf("batch %d: the hash is not that of the rows", batch)
		}
	}
	if snap.Hash() != snap.Rehash() {
		t.Fatal("the hash is not that of the rows")
	}
	for _, p := range pasts {
		if p.snap.Hash() != p.hash || p.snap.Rehash() != p.hash {
			t.Fatalf("the hash at %d has changed", p.snap.Index())
		}
	}
	for row := range s.owing.last {
		if e := row.(*structs.Evaluation); Evals.Get(s, e.ID) != e {
			t.Fatal("the sum is said to lack a row that is gone")
		}
	}
	if hits < 1000 || len(s.owing.list) < owedMax || Evals.Len(s) <= owedMax/2 {
		t.Errorf("the sum lacked %d rows that went, and lacks %d, of %d at the end", hits, len(s.owing.list), Evals.Len(s))
	}
}
