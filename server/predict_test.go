package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/endpoint"
	"github.com/muster-sched/muster/structs"
)

// A new leader predicts from the state what the old one had learned from the log: from jobs by their records, and from
// array indices. Stopped work teaches nothing, and the parts of an interrupted run count as one.
func TestPredictionsFollowFromState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		batch := func(id string, edit func(*structs.Job)) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Runtime.Limit = structs.JobBatch, 10*time.Hour
				j.Groups[0].Reschedule = structs.Reschedule{}
				if edit != nil {
					edit(j)
				}
			})
		}
		dead := func(ids ...string) {
			t.Helper()
			for _, id := range ids {
				waitFor(t, 10*time.Hour, id+" to end", func() bool {
					time.Sleep(time.Minute)
					j := s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id})
					return j == nil || j.Status == structs.JobDead
				})
			}
		}
		f.set(func() {
			for i := range 6 {
				f.runs[fmt.Sprint("train-", i)] = 30 * time.Minute
			}
			f.runs["sweep"] = 7 * time.Minute
		})
		for i := range 6 {
			register(t, s, batch(fmt.Sprint("train-", i), nil))
		}
		register(t, s, batch("train-stopped", nil))
		dead("train-0", "train-5")
		mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: "train-stopped"})
		register(t, s, batch("sweep", func(j *structs.Job) { j.Array = &structs.Array{Count: 5} }))
		began := time.Now()
		dead("sweep", "train-stopped")
		if d := time.Since(began); d > time.Hour {
			t.Errorf("five indices of 7 minutes took %v", d)
		}

		next := newLeader(s, s.Published().Snapshot)
		// would returns what a pass would know about a job.
		would := func(by *decide.Service, j *structs.Job) (contend.Workload, *contend.QueueTable) {
			run, err := by.NewDryRun(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer run.Close()
			run.Decide(s.Published(), j, endpoint.NewEvalOf(j, structs.TriggerJobRegister))
			return run.Input.Pending[run.At], run.Input.Queues
		}
		expect := map[string]time.Duration{}
		for name, by := range map[string]*decide.Service{"the leader": s.decide, "the next one": next} {
			w, queues := would(by, batch("train-9", nil))
			if w.Expect < 15*time.Minute || w.Expect > 31*time.Minute || w.Cost <= 0 || w.Least == nil {
				t.Errorf("%s expects 30 minutes of work to take %v, cost %d", name, w.Expect, w.Cost)
			}
			expect[name] = w.Expect
			if queues.Turnover == 0 {
				t.Errorf("%s knows no turnover", name)
			}
			if w, _ := would(by, passJob("train-9", 1, nil)); w.Expect != 0 {
				t.Errorf("%s expects a service to end after %v", name, w.Expect)
			}
		}
		if expect["the leader"] != expect["the next one"] {
			t.Errorf("the leader expects %v, the next one %v", expect["the leader"], expect["the next one"])
		}
		now, then := s.endpoints.Predictions(), next.PredictionErrors()
		if now.N != then.N || now.N == 0 {
			t.Errorf("the leader counts %d predictions, the next one %d", now.N, then.N)
		}
	})
}
