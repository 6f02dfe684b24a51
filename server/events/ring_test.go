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
