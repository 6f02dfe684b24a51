package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestQueueEnds: the servers predict run times from what ended. Work of a queue with ends = "limit", or below it, has no
// predicted end; work of a queue below that says "predicted" has one.
func TestQueueEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}, {Path: "strict", Ends: structs.EndsLimit}, {Path: "strict/below"},
			{Path: "strict/again", Ends: structs.EndsPredicted}}})
		run := func(id string, queue structs.QueuePath) time.Duration {
			f.set(func() { f.runs[id] = time.Minute })
			register(t, s, passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue, j.Groups[0].Reschedule, j.Runtime.Limit = structs.JobBatch, queue, structs.Reschedule{}, time.Hour
			}))
			time.Sleep(5 * time.Minute)
			for _, a := range s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: structs.NamespaceDefault, ID: id}) {
				return a.Expect
			}
			t.Fatalf("%s did not start", id)
			return 0
		}
		for i := range 3 {
			run(fmt.Sprint("learned-", i), "")
		}
		for queue, predicted := range map[structs.QueuePath]bool{structs.QueueDefault: true, "strict": false, "strict/below": false, "strict/again": true} {
			if e := run("train-"+strings.ReplaceAll(string(queue), "/", "-"), queue); (e > 0) != predicted {
				t.Errorf("queue %s: a run is predicted to last %v", queue, e)
			}
		}
	})
}

// TestQueuePriorityMax: a queue's limit on priorities holds for it and the queues below it that have none, when a job is
// submitted and when its priority is changed.
func TestQueuePriorityMax(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}, {Path: "lab", PriorityMax: 60}, {Path: "lab/a"}, {Path: "lab/b", PriorityMax: 80}}})
		submit := func(id string, queue structs.QueuePath, priority int) error {
			_, err := callErr(s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: passJob(id, 1, func(j *structs.Job) { j.Queue, j.Priority = queue, priority })})
			return err
		}
		for _, c := range []struct {
			queue    structs.QueuePath
			priority int
			refused  string
		}{
			{"lab", 60, ""}, {"lab", 61, `above the limit of queue "lab", which is 60`}, {"lab/a", 61, `queue "lab", which is 60`}, {"lab/b", 80, ""},
			{"lab/b", 81, `queue "lab/b", which is 80`}, {structs.QueueDefault, 100, ""},
		} {
			err := submit(fmt.Sprintf("job-%s-%d", strings.ReplaceAll(string(c.queue), "/", "-"), c.priority), c.queue, c.priority)
			if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("priority %d in queue %s: %v, want %q", c.priority, c.queue, err, c.refused)
			}
		}
		for priority, refused := range map[int]bool{60: false, 61: true} {
			if _, err := callErr(s, methods.JobPriority, rpc.Header{}, &methods.JobPriorityRequest{JobID: "job-lab-60", Priority: priority}); (err != nil) != refused {
				t.Errorf("job priority %d: %v", priority, err)
			}
		}
	})
}
