package decide

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Failures and losses count against a node, stops by servers do not. Only the newest ends count.
func TestPastOf(t *testing.T) {
	ended := func(n int, client structs.ClientStatus, desired structs.DesiredStatus) *structs.Allocation {
		return &structs.Allocation{ID: structs.AllocID{byte(n >> 8), byte(n)}, Client: client, Desired: desired, StartedAt: 1,
			FinishedAt: structs.LogTime(n+1) * structs.LogTime(time.Minute), Expect: time.Minute}
	}
	got := pastOf([]*structs.Allocation{
		ended(1, structs.ClientComplete, structs.DesiredRun), ended(2, structs.ClientFailed, structs.DesiredRun), ended(3, structs.ClientLost, structs.DesiredStop),
		ended(4, structs.ClientComplete, structs.DesiredStop), ended(5, structs.ClientRunning, structs.DesiredRun),
	})
	if got.Ends != 3 || got.Success >= model.Micro/2 {
		t.Errorf("one success of three: %+v", got)
	}
	var many []*structs.Allocation
	for i := range 2 * historyKept {
		c := structs.ClientFailed
		if i >= historyKept {
			c = structs.ClientComplete
		}
		many = append(many, ended(i, c, structs.DesiredRun))
	}
	if got := pastOf(many); got.Ends != historyKept || got.Success != model.Micro {
		t.Errorf("the newest all succeeded: %+v", got)
	}
}
