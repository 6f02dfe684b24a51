package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/endpoint"
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

// TestPriorityDefault: a job without a priority gets the default of the nearest queue that has one, else its namespace's,
// else the servers', and never more than it may have. A priority that was chosen stays.
func TestPriorityDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.Priorities = endpoint.Priorities{Max: 90, Default: 45} })
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}, {Path: "lab", PriorityDefault: 20}, {Path: "lab/a"}, {Path: "lab/b", PriorityDefault: 80},
			{Path: "plain"}, {Path: "low", PriorityMax: 10}}})
		mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "ml", DefaultPriority: 30}, {Name: "capped", MaxPriority: 15}}})
		n := 0
		submit := func(namespace string, queue structs.QueuePath, priority int) (int, error) {
			n++
			j := passJob(fmt.Sprint("job-", n), 1, func(j *structs.Job) { j.Namespace, j.Queue, j.Priority = namespace, queue, priority })
			_, err := callErr(s, methods.JobRegister, rpc.Header{Namespace: namespace}, &methods.JobRegisterRequest{Job: j})
			if err != nil {
				return 0, err
			}
			return s.Published().Snapshot.JobByKey(j.Key()).Priority, nil
		}
		for _, c := range []struct {
			namespace   string
			queue       structs.QueuePath
			asked, want int
		}{
			{"default", "", 0, 45}, {"default", "plain", 0, 45}, {"default", "lab", 0, 20}, {"default", "lab/a", 0, 20}, {"default", "lab/b", 0, 80}, {"default", "lab/b", 7, 7},
			{"ml", "", 0, 30}, {"ml", "lab", 0, 20}, {"ml", "low", 0, 10}, {"capped", "lab/b", 0, 15}, {"default", "low", 0, 10}, {"default", "", 90, 90},
		} {
			if got, err := submit(c.namespace, c.queue, c.asked); err != nil || got != c.want {
				t.Errorf("priority %d asked for in namespace %s, queue %q: got %d, %v; want %d", c.asked, c.namespace, c.queue, got, err, c.want)
			}
		}
		const limit = "above the limit of the servers (job_max_priority), which is 90"
		if _, err := submit("default", "", 91); err == nil || !strings.Contains(err.Error(), limit) {
			t.Errorf("submission: %v, want %q", err, limit)
		}
		if _, err := callErr(s, methods.JobPriority, rpc.Header{}, &methods.JobPriorityRequest{JobID: "job-1", Priority: 91}); err == nil || !strings.Contains(err.Error(), limit) {
			t.Errorf("job priority: %v, want %q", err, limit)
		}
		_, err := callErr(s, methods.NamespaceUpsert, rpc.Header{}, &methods.NamespaceUpsertRequest{Namespace: &structs.Namespace{Name: "bad", MaxPriority: 10, DefaultPriority: 11}})
		if err == nil {
			t.Error("a default priority above the namespace's limit was accepted")
		}
	})
}
