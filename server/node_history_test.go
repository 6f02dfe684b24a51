package server

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

// What a leader learns about nodes from the log equals what another one learns from the state, and jobs placed by it go
// to nodes where work succeeded and ran fast.
func TestHistoryFollowsFromState(t *testing.T) {
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
		// One pass that uses what the leader knows, and a dry run on the same state, which computes it from the state.
		job := func(id string) *structs.Job { return passJob(id, 1, func(j *structs.Job) { j.Placement = "learned" }) }
		register(t, s, job("last"))
		waitFor(t, time.Minute, "the last job", func() bool { return running(s, "last") == 1 })
		run, err := s.decide.NewDryRun(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer run.Close()
		run.Decide(s.Published(), job("next"), endpoint.NewEvalOf(job("next"), structs.TriggerJobRegister))
		old, fresh := s.decide.Input(structs.NodePoolDefault).History, run.Input.History
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
