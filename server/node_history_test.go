package server

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// What a leader knows of nodes while it follows the log is what another one knows from the state, and jobs that are placed
// by it go where work succeeded and ran fast.
func TestPastsFollowFromState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 3)
		for i := range 24 {
			id := fmt.Sprint("j", i)
			f.set(func() { f.runs[id] = time.Duration(1+i%5) * time.Minute })
			register(t, s, passJob(id, 2, func(j *structs.Job) {
				j.Type, j.Groups[0].Reschedule = structs.JobBatch, structs.Reschedule{}
				if i%3 == 0 {
					j.Placement = "learned" // makes the leader look at what it knows, between ends
				}
			}))
			time.Sleep(20 * time.Second)
		}
		time.Sleep(20 * time.Minute)
		snap := s.Published().Snapshot
		var next nodeHistory
		next.load()
		old, fresh := s.decide.history.at(snap), next.at(snap)
		if len(old) == 0 || !maps.Equal(old, fresh) {
			t.Errorf("the leader knows %v, the next one %v", old, fresh)
		}
		ends := int64(0)
		for _, p := range fresh {
			ends += p.Ends
			if p.Success != model.Micro {
				t.Errorf("all went well, the past says %+v", p)
			}
		}
		if ends == 0 {
			t.Error("nothing was learned")
		}
	})
}

// Failures and losses count against a node, what servers stop does not; only the newest ends count.
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
