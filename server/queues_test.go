package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestJobOfMissingQueue: a job that names a queue that does not exist is refused with one helpful sentence. A job
// without a queue is accepted, and a queue with live work cannot be deleted.
func TestJobOfMissingQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		submit := func(queue string) error {
			j := apiJob("a", 1)
			j.Queue = structs.QueuePath(queue)
			_, err := callErr(s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
			return err
		}
		refused := func(queue string, want ...string) {
			t.Helper()
			err := submit(queue)
			if structs.CodeOf(err) != structs.CodeInvalid {
				t.Errorf("a job of queue %q: %v", queue, err)
				return
			}
			for _, w := range want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("a job of queue %q: %q does not say %q", queue, err, w)
				}
			}
		}
		refused("research", `nonexistent queue "research"`, "no queues yet", "muster queue apply")
		refused("root", "no jobs of its own")
		for _, q := range []string{"", "default"} {
			if err := submit(q); err != nil {
				t.Errorf("a job of queue %q: %v", q, err)
			}
		}
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research"}, {Path: "research/nlp"}, {Path: "ops"}}})
		refused("reserch/nlp", "near to it: research/nlp", "muster queue apply")
		refused("nlp", "near to it: research/nlp")
		refused("research/vision", "(near to it: research)")
		refused("zz", "there are ops, research, research/nlp")
		refused("a//b", "a part of the path is empty")
		if _, err := callErr(s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: func() *structs.Job { j := apiJob("a", 1); j.Queue = "nlp"; return j }()}); !strings.Contains(err.Error(), "near to it: research/nlp") {
			t.Errorf("plan of a job of a missing queue: %v", err)
		}
		if err := submit("research/nlp"); err != nil {
			t.Fatal(err)
		}
		_, err := callErr(s, methods.QueueDelete, rpc.Header{}, &methods.NameRequest{Name: "research/nlp"})
		if structs.CodeOf(err) != structs.CodeConflict || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("deleting a queue with a job that waits: %v", err)
		}
		call(t, s, methods.JobDeregister, rpc.Header{}, &methods.JobDeregisterRequest{JobID: "a"})
		time.Sleep(time.Second)
		if _, err := callErr(s, methods.QueueDelete, rpc.Header{}, &methods.NameRequest{Name: "research/nlp"}); err != nil {
			t.Errorf("deleting a queue whose job is dead: %v", err)
		}
	})
}
