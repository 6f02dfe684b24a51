package contend

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// TestSetAsideLeavesTheRest: of 8 GPUs, 3 are set aside for a queue. What its work holds counts as part of them, and
// others get what is left, unless they end before the window begins.
func TestSetAsideLeavesTheRest(t *testing.T) {
	const now = structs.LogTime(1000 * time.Hour)
	v := model.NewView(1, []*structs.Node{gpuNode(1, 4, 80_000), gpuNode(2, 4, 80_000)}, nil, nil)
	r := &structs.Reservation{ID: "paper", Domain: structs.NodePoolDefault, Start: now.Add(time.Hour), End: now.Add(3 * time.Hour),
		Amount: &structs.Amount{GPUMilli: 3000}, Queues: []structs.QueuePath{"paper"}}
	var w model.WhatIf
	w.Open(v, model.Overlay{})
	defer w.Close()
	a := NewSetAside([]*structs.Reservation{r}, &w, now)
	member, other := gpuWork("m", "paper", 1, structs.GPURequest{Count: 1}), gpuWork("o", "rest", 9, structs.GPURequest{Count: 1})
	group := other.Job.Groups[0]

	var amount PlacedAmount
	var placed heldList
	for i := range byte(5) {
		if why := a.RefusesGroup(other, group, &amount, &placed); why != nil {
			t.Fatalf("allocation %d: %s", i, why.Text())
		}
		placed = append(placed, onGPUs(other, i+1, 1, 80_000))
	}
	why := a.RefusesGroup(other, group, &amount, &placed)
	if why == nil || why.Code != structs.ReasonReservation || why.Holder.Name != "paper" || why.Short != 1 {
		t.Fatalf("a sixth allocation: %+v, want 1 GPU of what is set aside", why)
	}
	if why := a.Refuses(member, model.Never, structs.Amount{GPUMilli: 8000}); why != nil {
		t.Errorf("a member: %s", why.Text())
	}
	if why := a.Refuses(other, r.Start, structs.Amount{GPUMilli: 8000}); why != nil {
		t.Errorf("work that ends before the window: %s", why.Text())
	}

	for range 2 { // settling twice counts only what is new
		a.Settle(other, &amount, &placed)
	}
	if why := a.Refuses(gpuWork("p", "rest", 1), model.Never, structs.Amount{GPUMilli: 1000}); why == nil {
		t.Error("others hold 5 of 5 GPUs, and a job of theirs gets one more")
	}
	a.Settle(member, &PlacedAmount{}, &heldList{onGPUs(member, 20, 3, 80_000)})
	if why := a.Refuses(gpuWork("p", "rest", 1), model.Never, structs.Amount{CPU: 100}); why != nil {
		t.Errorf("no CPU is set aside: %s", why.Text())
	}
}

// TestNothingIsSetAside: reservations of workloads, those of nodes and those that are over set no amount aside.
func TestNothingIsSetAside(t *testing.T) {
	v := model.NewView(1, []*structs.Node{gpuNode(1, 4, 80_000)}, nil, nil)
	var w model.WhatIf
	w.Open(v, model.Overlay{})
	defer w.Close()
	for _, r := range []*structs.Reservation{
		{ID: "job", JobID: "j", Amount: &structs.Amount{CPU: 1}, End: 100},
		{ID: "nodes", Nodes: []structs.NodeID{{1}}, End: 100},
		{ID: "over", Amount: &structs.Amount{CPU: 1}, End: 10},
	} {
		if a := NewSetAside([]*structs.Reservation{r}, &w, 10); a != nil {
			t.Errorf("reservation %s sets an amount aside", r.ID)
		}
	}
}
