package state

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/muster-sched/muster/structs"
)

// The state hash is that of the rows, whether the digest of one that goes is remembered or not: rows are written, written again, put back
// and deleted, in entries of which some are undone, more of them than are remembered.
func TestRememberedDigestsAreThoseOfTheRows(t *testing.T) {
	s := New(Options{})
	rnd := rand.New(rand.NewPCG(3, 4))
	var snap *Snapshot
	hits := 0
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
					if _, ok := Evals.in(s).known.young[old]; ok {
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
		if k := &Evals.in(s).known; len(k.young) > digestsMax || len(k.old) > digestsMax {
			t.Fatalf("batch %d: %d and %d are remembered", batch, len(k.young), len(k.old))
		}
		if batch%20 == 0 && snap.Hash() != snap.Rehash() {
			t.Fatalf("batch %d: the hash is not that of the rows", batch)
		}
	}
	if snap.Hash() != snap.Rehash() {
		t.Fatal("the hash is not that of the rows")
	}
	for k := range Evals.in(s).known.young {
		if Evals.Get(s, k.ID) != k {
			t.Fatal("a row that is gone is remembered")
		}
	}
	for k := range Evals.in(s).known.old {
		if Evals.Get(s, k.ID) != k {
			t.Fatal("a row that is gone is remembered")
		}
	}
	if hits < 1000 || Evals.Len(s) <= digestsMax {
		t.Errorf("%d rows were remembered when they went, of %d at the end", hits, Evals.Len(s))
	}
}
