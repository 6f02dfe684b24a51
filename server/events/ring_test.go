package events

import (
	"runtime"
	"testing"
	"weak"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// TestRingForgets feeds far more events than the ring keeps: it must not keep the rows of the others in memory, which it
// did until append happened to make a new array.
func TestRingForgets(t *testing.T) {
	const batch, batches = 1000, 3 * ringEvents / 1000
	r := NewRing()
	var rows []weak.Pointer[structs.Allocation]
	for i := range batches {
		index := structs.Index(i + 1)
		d := structs.Delta{Index: index, Causes: map[structs.Index]structs.Cause{index: {Type: fsm.TypeOf[*structs.AllocObservedCommand]()}}}
		for range batch {
			a := &structs.Allocation{JobID: "job", ModifyIndex: index}
			rows = append(rows, weak.Make(a))
			d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{After: a})
		}
		r.Feed(replica.Applied{Published: &replica.Published{Index: index}, Delta: d})
	}
	list, gap, _ := r.After(0)
	if !gap || len(list) == 0 || list[len(list)-1].Index != batches {
		t.Fatalf("%d batches, a gap: %v; want the newest and a gap", len(list), gap)
	}
	kept := 0
	for _, b := range list {
		kept += len(b.Events)
	}
	if kept > ringEvents {
		t.Errorf("the ring has %d events; it should keep %d", kept, ringEvents)
	}
	runtime.GC()
	alive := 0
	for _, p := range rows {
		if p.Value() != nil {
			alive++
		}
	}
	if alive != kept {
		t.Errorf("%d rows are in memory; the ring has events of %d", alive, kept)
	}
	runtime.KeepAlive(r)
}

// TestEachEventOnce: readers that come back at any index get every batch after it, once and in order, or hear of a gap.
func TestEachEventOnce(t *testing.T) {
	r := NewRing()
	const from, to = 10, 40
	feed := func(i structs.Index) {
		n := &structs.Node{ID: structs.NodeID{byte(i)}, ModifyIndex: i}
		r.Feed(replica.Applied{Published: &replica.Published{Index: i}, Delta: structs.Delta{Index: i, Nodes: []structs.Changed[structs.Node]{{After: n}}}})
	}
	r.Feed(replica.Applied{Published: &replica.Published{Index: from}, Lost: true})
	for i := structs.Index(from + 1); i <= to; i++ {
		feed(i)
	}
	for after := structs.Index(0); after <= to+1; after++ {
		list, gap, _ := r.After(after)
		if gap != (after < from) {
			t.Errorf("after %d: gap %t", after, gap)
		}
		next := max(after, from) + 1
		for _, b := range list {
			if b.Index != next || len(b.Events) != 1 || b.Events[0].Index != next {
				t.Errorf("after %d: batch %d with %d events, want %d", after, b.Index, len(b.Events), next)
			}
			next++
		}
		if next != max(to, after)+1 {
			t.Errorf("after %d: the last batch is %d, want %d", after, next-1, to)
		}
	}
	_, _, changed := r.After(to)
	feed(to + 1)
	select {
	case <-changed:
	default:
		t.Error("a reader that waits is not woken")
	}
}
