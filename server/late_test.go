package server

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestLateJobGetsRoom: narrow work arrives all the time and backfills, so that the node is never free for a job that
// needs all of it. When that job has waited for its queue's bound, no more narrow work is placed, and the job runs.
func TestLateJobGetsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		all := f.nodes[0].Resources.CPU - f.nodes[0].Reserved.CPU
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot, MaxWait: 30 * time.Minute, Backfill: structs.BackfillGreedy, Preempt: structs.PreemptNone}}})
		batch := func(id string, cpu int64) {
			register(t, s, passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Groups[0].Reschedule, j.Groups[0].Tasks[0].Resources.CPU = structs.JobBatch, structs.Reschedule{}, cpu
			}))
		}
		ran := time.Duration(0)
		for i := range 90 { // one every minute for an hour and a half, each running 90 s
			id := fmt.Sprintf("narrow-%02d", i)
			f.set(func() { f.runs[id] = 90 * time.Second })
			batch(id, all/3)
			if i == 3 {
				f.set(func() { f.runs["wide"] = time.Minute })
				batch("wide", all)
			}
			time.Sleep(time.Minute)
			if ran == 0 && running(s, "wide") > 0 {
				ran = time.Duration(i-3) * time.Minute
			}
		}
		if ran < 29*time.Minute || ran > 40*time.Minute {
			t.Errorf("the wide job ran after %v (0: never), want soon after 30 minutes", ran)
		}
	})
}

// TestLateJobIsReserved: nothing happens in the cluster when a job has waited for its queue's bound. It gets a
// reservation all the same, under every backfill rule, and with max_wait = 0 it gets none.
func TestLateJobIsReserved(t *testing.T) {
	for _, c := range []struct {
		backfill string
		bound    time.Duration
	}{{structs.BackfillGreedy, time.Hour}, {structs.BackfillNone, time.Hour}, {structs.BackfillGreedy, structs.MaxWaitOff}} {
		synctest.Test(t, func(t *testing.T) {
			s := testServer(t, nil)
			f := newFleet(t, one(s), 1)
			all := f.nodes[0].Resources.CPU - f.nodes[0].Reserved.CPU
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot, MaxWait: c.bound, Backfill: c.backfill}}})
			for _, id := range []string{"holds", "waits"} {
				f.set(func() { f.runs[id] = 50 * time.Hour })
				register(t, s, passJob(id, 1, func(j *structs.Job) {
					j.Type, j.Groups[0].Reschedule, j.Groups[0].Tasks[0].Resources.CPU, j.Runtime.Limit = structs.JobBatch, structs.Reschedule{}, all, 50*time.Hour
				}))
				time.Sleep(time.Minute)
			}
			reserved := func() (n int) {
				for r := range s.Published().Snapshot.Reservations() {
					if r.JobID == "waits" {
						n++
					}
				}
				return n
			}
			time.Sleep(50 * time.Minute)
			if n := reserved(); n != 0 {
				t.Errorf("%+v: %d reservations before the bound", c, n)
			}
			time.Sleep(15 * time.Minute)
			if n := reserved(); n == 0 == (c.bound == time.Hour) {
				t.Errorf("%+v: %d reservations after an hour", c, n)
			}
		})
	}
}
