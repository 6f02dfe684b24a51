package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// Verify checks reservations that a plan did not know of: an operator's window on the node, and room reserved for a
// workload that was not decided with it.
func TestVerifyBookings(t *testing.T) {
	n := node(1) // 4000 MHz
	job := timed("job", 1, 3000, 0, 2*time.Hour)
	in := scheduler.Input{View: model.NewView(1, []*structs.Node{n}, nil, nil), Now: bookNow, Config: rules(structs.BackfillEASY), Pending: []contend.Workload{load(job, 1)}}
	plan, _ := scheduler.Schedule(in, binpack)
	if got, _ := placed(plan); got != "job:1 " {
		t.Fatalf("placed %q", got)
	}
	e := plan.Entries[0]
	window := func(from, to time.Duration, edit func(*structs.Reservation)) *structs.Reservation {
		r := &structs.Reservation{ID: "w", Nodes: []structs.NodeID{n.ID}, Start: bookNow.Add(from), End: bookNow.Add(to), Queues: []structs.QueuePath{"other"}}
		if edit != nil {
			edit(r)
		}
		return r
	}
	promise := func(job string, at time.Duration, mhz int64) *structs.Reservation {
		return &structs.Reservation{ID: "job/default/" + job, Namespace: "default", JobID: job, Start: bookNow.Add(at),
			Places: []structs.ReservationPlace{{Node: n.ID, Group: "g", Need: structs.Vector{CPU: mhz}}}}
	}
	for _, c := range []struct {
		name   string
		booked *structs.Reservation
		want   string
	}{
		{"a window that it reaches into", window(time.Hour, 3*time.Hour, nil), "closed by reservation w"},
		{"a window after its end", window(2*time.Hour, 3*time.Hour, nil), ""},
		{"a window that is over", window(-time.Hour, 0, nil), ""},
		{"a window for its queue", window(time.Hour, 3*time.Hour, func(r *structs.Reservation) { r.Queues = []structs.QueuePath{structs.QueueDefault} }), ""},
		{"a maintenance", window(time.Hour, 3*time.Hour, func(r *structs.Reservation) { r.Queues, r.Maintenance = nil, true }), "closed by reservation w"},
		{"a window of another node", window(time.Hour, 3*time.Hour, func(r *structs.Reservation) { r.Nodes = []structs.NodeID{{9}} }), ""},
		{"room promised within its time", promise("wide", time.Hour, 2000), "reserved for job wide"},
		{"room promised beside it", promise("thin", time.Hour, 1000), ""},
		{"room promised after its end", promise("late", 2*time.Hour, 4000), ""},
		{"its own promise", promise("job", time.Hour, 4000), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := verify.VerifyReserved(in.View, model.Overlay{}, e, []*structs.Reservation{c.booked}, bookNow)
			switch {
			case c.want == "" && !v.All():
				t.Errorf("%s: refused: %s", c.name, v.Refused[0].Why)
			case c.want != "" && (v.All() || !strings.Contains(v.Refused[0].Why, c.want)):
				t.Errorf("%s: %+v, want a refusal that says %q", c.name, v.Refused, c.want)
			}
		})
	}
}

// A gang that is held back by its queue's limit must not affect an equal gang of another queue.
func TestLimitOfOneQueueIsNotAnothers(t *testing.T) {
	n := node(1)
	gang := func(id, queue string) *structs.Job {
		j := timed(id, 2, 500, 0, time.Hour)
		j.Queue = structs.QueuePath(queue)
		j.Groups[0].Gang = &structs.Gang{Min: 2, Timeout: time.Minute}
		return j
	}
	in := scheduler.Input{View: model.NewView(1, []*structs.Node{n}, nil, nil), Now: bookNow, Config: rules(structs.BackfillEASY),
		Pending: []contend.Workload{load(gang("a", "small"), 1), load(gang("b", "large"), 2)},
		Queues:  &contend.QueueTable{Queues: []*structs.Queue{{Path: "large"}, {Path: "small", Limit: &structs.Amount{GPUMilli: -1, GPUMemoryMiB: -1, CPU: 100, MemoryMiB: -1}}}}}
	plan, rep := scheduler.Schedule(in, binpack)
	if got, _ := placed(plan); got != "b:2 " {
		t.Errorf("placed %q, want b:2; %+v", got, rep.Workloads[1].Groups)
	}
}
