package structs

import (
	"fmt"
	"slices"
	"testing"
)

// What submitters suffered is kept by name, in a row that shares nothing with the row before, for so many of them.
func TestPreemptionsBySubmitter(t *testing.T) {
	before := Preemptions{Users: []UserLoss{{User: "bob", Preempted: 1, Lost: QueueLoss{Node: 2}}}}
	p := before
	p.Count(UserLoss{User: "cid", Lost: QueueLoss{Drain: 3}})
	p.Count(UserLoss{User: "ann", Preempted: 1})
	p.Count(UserLoss{User: "bob", Preempted: 1, Lost: QueueLoss{Node: 5, Preempt: 7}})
	p.Count(UserLoss{Preempted: 1})
	want := []UserLoss{{User: "ann", Preempted: 1}, {User: "bob", Preempted: 2, Lost: QueueLoss{Node: 7, Preempt: 7}}, {User: "cid", Lost: QueueLoss{Drain: 3}}}
	if !slices.Equal(p.Users, want) {
		t.Errorf("%+v, want %+v", p.Users, want)
	}
	if b := before.Users[0]; b.Preempted != 1 || b.Lost != (QueueLoss{Node: 2}) {
		t.Errorf("the row before has changed: %+v", b)
	}
	for i := range UserLossesMax {
		p.Count(UserLoss{User: fmt.Sprint("u", i), Preempted: 1})
	}
	p.Count(UserLoss{User: "ann", Preempted: 1})
	if n := len(p.Users); n != UserLossesMax || p.Users[0].Preempted != 2 {
		t.Errorf("%d submitters are kept, want %d; the first: %+v", n, UserLossesMax, p.Users[0])
	}
}
