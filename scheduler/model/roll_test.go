package model

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/structs"
)

func heldNamed(x uint64) *Held {
	var id structs.AllocID
	binary.BigEndian.PutUint64(id[:], x*0x9e3779b97f4a7c15)
	return &Held{ID: id, Need: structs.Vector{CPU: 1, MemoryMiB: 10}}
}

// After any sequence of changes a roll holds what a sorted slice would, and older rolls hold what they held.
func TestRollIsASortedList(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	type past struct {
		r    roll
		want []*Held
	}
	for range 6 {
		var r roll
		var want []*Held
		var pasts []past
		space := uint64(1 + rnd.IntN(2000))
		for step := range 1500 {
			before, had := r, want
			h := heldNamed(rnd.Uint64N(space))
			at, found := findHeld(want, h.ID)
			want = slices.Clone(want)
			switch {
			case step%97 == 0: // several at once
				var hs []*Held
				for range rnd.IntN(300) {
					h := heldNamed(rnd.Uint64N(space))
					if !slices.ContainsFunc(hs, func(x *Held) bool { return x.ID == h.ID }) {
						hs = append(hs, h)
					}
				}
				slices.SortFunc(hs, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
				stay := func(was, h *Held) *Held {
					if was != r.get(h.ID) {
						t.Fatalf("step %d: the roll's record of %v is %v, not %v", step, h.ID, r.get(h.ID), was)
					}
					return h
				}
				if step%2 == 0 { // those that are there stay
					stay = func(was, h *Held) *Held { return cmp.Or(was, h) }
				}
				r = r.merge(hs, stay)
				if step%2 == 0 {
					hs = slices.DeleteFunc(hs, func(x *Held) bool { _, had := findHeld(want, x.ID); return had })
				}
				want = slices.DeleteFunc(want, func(x *Held) bool { _, again := findHeld(hs, x.ID); return again })
				want = append(want, hs...)
				slices.SortFunc(want, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
			case found && rnd.IntN(3) > 0:
				r, want = r.drop(h.ID), slices.Delete(want, at, at+1)
			case found:
				r, want[at] = r.put(h), h
			default:
				r, want = r.put(h), slices.Insert(want, at, h)
			}
			if got := r.list(); !slices.Equal(got, want) || r.Len != len(want) {
				t.Fatalf("step %d: %d are held (n %d), want %d", step, len(got), r.Len, len(want))
			}
			for i := range r.rest {
				if len(r.rest[i].hs) == 0 || len(r.rest[i].hs) > rollLeaf {
					t.Fatalf("step %d: a leaf of %d", step, len(r.rest[i].hs))
				}
			}
			if step%50 > 1 {
				continue
			}
			gone, fresh, ok := DifferRolls(&before, &r, 400)
			var wantGone, wantFresh []*Held
			for _, e := range had {
				if !slices.Contains(want, e) {
					wantGone = append(wantGone, e)
				}
			}
			for _, e := range want {
				if !slices.Contains(had, e) {
					wantFresh = append(wantFresh, e)
				}
			}
			if !ok || !slices.Equal(gone, wantGone) || !slices.Equal(fresh, wantFresh) {
				t.Fatalf("step %d: %d gone and %d fresh, want %d and %d", step, len(gone), len(fresh), len(wantGone), len(wantFresh))
			}
			if step%100 < 2 {
				pasts = append(pasts, past{r, want})
			}
		}
		for i, p := range pasts {
			if !slices.Equal(p.r.list(), p.want) {
				t.Fatalf("roll %d changed", i)
			}
			if p.r.Len > 0 != (p.r.get(firstID(p.want)) != nil) {
				t.Fatalf("roll %d does not find its first", i)
			}
		}
	}
}

func firstID(hs []*Held) (id structs.AllocID) {
	if len(hs) > 0 {
		id = hs[0].ID
	}
	return id
}

// DifferRolls gives up when there is too much.
func TestRollDifferHasALimit(t *testing.T) {
	var a, b roll
	for i := range uint64(500) {
		a = a.put(heldNamed(i))
	}
	if _, _, ok := DifferRolls(&a, &b, 499); ok {
		t.Error("500 are gone and 499 were allowed")
	}
	if gone, _, ok := DifferRolls(&a, &b, 500); !ok || len(gone) != 500 {
		t.Error("500 are gone and 500 were allowed")
	}
}

// BenchmarkHold is a node on which one more task is placed and one ends.
func BenchmarkHold(b *testing.B) {
	n := &structs.Node{}
	for _, size := range []int{1, 8, 60, 8000} {
		b.Run(fmt.Sprintf("held=%d", size), func(b *testing.B) {
			var o Occupancy
			for i := range size {
				o = o.with(n, heldNamed(uint64(i)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o = o.with(n, heldNamed(uint64(size+i)))
				o = o.Without(n, heldNamed(uint64(i)).ID)
			}
		})
	}
}

// BenchmarkOver is nodes whose plans in flight are added to what they hold: the records lie all over memory.
func BenchmarkOver(b *testing.B) {
	const nodes, held = 2000, 60
	rnd := rand.New(rand.NewPCG(1, 2))
	records := make([]*Held, nodes*held)
	for i := range records {
		records[i] = heldNamed(uint64(i))
	}
	rnd.Shuffle(len(records), func(i, j int) { records[i], records[j] = records[j], records[i] })
	rolls := make([]roll, nodes)
	for i, hs := range slices.Collect(slices.Chunk(records, held)) {
		slices.SortFunc(hs, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
		rolls[i] = rollOf(hs)
	}
	for _, flying := range []int{2, 8, 60} {
		b.Run(fmt.Sprintf("flying=%d", flying), func(b *testing.B) {
			hs := make([]*Held, flying)
			for i := range hs {
				hs[i] = heldNamed(uint64(len(records) + i))
			}
			slices.SortFunc(hs, func(a, b *Held) int { return CompareID(a.ID, b.ID) })
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				rolls[i*7919%nodes].merge(hs, func(_, h *Held) *Held { return h })
			}
		})
	}
}
