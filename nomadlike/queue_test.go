package nomadlike

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// The API has the figures of queues and submitters in units of people: parts of 1, and nanoseconds as everywhere.
func TestQueueFigures(t *testing.T) {
	b, err := json.Marshal(queueState(&methods.QueueState{Effective: &structs.Queue{Path: "lab"}, Share: 250_000, Part: 500_000, Target: 600_000, Jain: 900_000, Oldest: time.Minute, Preemptions: 7, Lost: structs.QueueLoss{Preempt: 1, Node: 2, Drain: 3},
		Users: []methods.QueueUserState{{Usage: structs.QueueUsage{Path: "lab", User: "ann"}, Weight: 2, Share: 100_000, Part: 200_000, Target: 300_000, Waiting: 4, Oldest: time.Second, Preempted: 5, Lost: structs.QueueLoss{Preempt: 4, Node: 5, Drain: 6}}}}))
	if err != nil {
		t.Fatal(err)
	}
	type figures struct {
		Name                      string
		Share, Part, Target, Jain float64
		Oldest                    time.Duration
		Waiting, Preemptions      int64
		Preempted                 int64
		Lost                      QueueLoss
	}
	var got struct {
		figures
		Users []figures
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if want := (figures{Share: 0.25, Part: 0.5, Target: 0.6, Jain: 0.9, Oldest: time.Minute, Preemptions: 7, Lost: QueueLoss{1, 2, 3}}); got.figures != want {
		t.Errorf("queue: %+v, want %+v", got.figures, want)
	}
	if want := (figures{Name: "ann", Share: 0.1, Part: 0.2, Target: 0.3, Waiting: 4, Oldest: time.Second, Preempted: 5, Lost: QueueLoss{4, 5, 6}}); len(got.Users) != 1 || got.Users[0] != want {
		t.Errorf("submitters: %+v, want %+v", got.Users, want)
	}
}
