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

// TestQueueUserLimit: a submitter who holds as many GPUs as each may hold in a queue waits there, with a reason and an
// estimated start that say so, until one of the own jobs ends. Others of the queue and the same submitter in other queues
// start at once.
func TestQueueUserLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 4)
		submit := func(id string, queue structs.QueuePath, user string, gpus int64, runs time.Duration) {
			f.batch(id, queue, user, gpus, runs)
			time.Sleep(5 * time.Second)
		}
		two := structs.Unlimited
		two.GPUMilli = 2000
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}, {Path: "lab", UserLimit: &two}, {Path: "lab/a"}}})
		submit("first", "lab", "ada", 1, time.Hour)
		submit("second", "lab/a", "ada", 2, time.Hour)
		submit("third", "lab/a", "ada", 1, 30*time.Minute)
		submit("eve", "lab", "eve", 1, time.Hour)
		submit("elsewhere", "", "ada", 1, time.Minute)
		for id, want := range map[string]int{"first": 1, "second": 0, "third": 1, "eve": 1, "elsewhere": 1} {
			if got := running(s, id); got != want {
				t.Errorf("%d of %s run, want %d", got, id, want)
			}
		}
		r := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "second"})
		if len(r.Reports) == 0 || len(r.Reports[0].Refusals) == 0 {
			t.Fatal("the second job has no reason")
		}
		x := r.Reports[0].Refusals[0]
		if got := x.Limit() + ": " + x.What() + ", " + x.ShortText(); x.Code != structs.ReasonQuota || !strings.HasPrefix(got, "queue lab, user ada: gpu, ") {
			t.Errorf("the reason is %s, %q", x.Code, got)
		}
		time.Sleep(45 * time.Minute)
		if running(s, "second") != 0 {
			t.Error("with one GPU held, two more are within a limit of two")
		}
		time.Sleep(20 * time.Minute)
		if running(s, "second") != 1 {
			t.Error("the own jobs have ended, and the second job waits")
		}
	})
}
