package decide

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// Outcomes of reservations are counted from the log.
func TestReservationsAreCounted(t *testing.T) {
	at := func(start structs.LogTime) *structs.Reservation {
		return &structs.Reservation{ID: "job/default/j", Namespace: "default", JobID: "j", Start: start}
	}
	placed := []structs.Changed[structs.Allocation]{{After: &structs.Allocation{Namespace: "default", JobID: "j"}}}
	var c ReservationMetrics
	for _, x := range []struct {
		before, after *structs.Reservation
		allocs        []structs.Changed[structs.Allocation]
		time          structs.LogTime
		waits         bool
	}{
		{nil, at(100), nil, 1, true}, {at(100), at(80), nil, 2, true}, {at(80), at(120), nil, 3, true}, {at(120), nil, placed, 110, false},
		{at(120), nil, placed, 121, false}, {at(120), nil, nil, 5, false}, {at(120), nil, placed, 5, true}, {at(5), at(5), nil, 6, true},
		{nil, &structs.Reservation{ID: "mine"}, nil, 7, false},
	} {
		d := structs.Delta{Time: x.time, Allocs: x.allocs, Reserved: []structs.Changed[structs.Reservation]{{Before: x.before, After: x.after}}}
		c.feed(&d, func(structs.JobKey) bool { return x.waits })
	}
	if want := (ReservationMetrics{Made: 1, Earlier: 1, Later: 1, Kept: 1, Late: 1, Dropped: 2}); c != want {
		t.Errorf("counted %+v, want %+v", c, want)
	}
}
