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

// TestWhyNamesUnpreemptibleHolders: a job that waits only because the work in its place is not preemptible says so, with when
// that work ends. It does not where the rule of its queue would not give it the place anyway.
func TestWhyNamesUnpreemptibleHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 2)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: structs.QueueRoot}, {Path: "lab"}, {Path: "first", Preempt: structs.PreemptPriority},
			{Path: "never", Preempt: structs.PreemptNone}}})
		submit := func(id string, queue structs.QueuePath, priority, gpus int) {
			f.set(func() { f.runs[id] = 2 * time.Hour })
			mustApplyBy(t, s, "ada", &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue, j.Priority, j.Runtime.Limit, j.Groups[0].Reschedule = structs.JobBatch, queue, priority, 2*time.Hour, structs.Reschedule{}
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: int64(gpus)}}
			})})
			time.Sleep(5 * time.Second)
		}
		rules := map[structs.QueuePath]string{
			"":      `queue default (preempt = "order") takes only the places of its own preemptible work; with a guarantee it would reclaim from others, too (muster queue apply)`,
			"first": `queue first (preempt = "priority") takes the places of preemptible work whose priority is lower by 1 or more, in any queue`,
			"never": `queue never (preempt = "none") takes no places of others`,
		}
		submit("old", "lab", 50, 1)
		submit("older", "lab", 50, 1)
		time.Sleep(5 * time.Minute)
		for _, x := range []struct {
			id       string
			queue    structs.QueuePath
			priority int
			gpus     int
			allocs   int64
		}{{"urgent", "lab", 80, 1, 1}, {"wide", "lab", 80, 2, 2}, {"equal", "lab", 50, 1, 0}, {"other", "", 80, 1, 0}, {"priority", "first", 80, 2, 2}, {"none", "never", 80, 1, 0}, {"much", "lab", 80, 3, 0}} {
			submit(x.id, x.queue, x.priority, x.gpus)
			r := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: x.id})
			if running(s, x.id) != 0 || r.Advice == nil {
				t.Fatalf("%s: %d run, advice %+v", x.id, running(s, x.id), r.Advice)
			}
			others := ""
			if x.queue != "lab" {
				others = "queue lab holds 2 GPUs in allocations: 2, none of them preemptible; " + rules[x.queue]
			}
			if got := strings.Join(r.Others, "; "); got != others {
				t.Errorf("%s is told of other queues: %q, want %q", x.id, got, others)
			}
			h := r.Advice.Holders
			if h == nil {
				if x.allocs > 0 {
					t.Errorf("%s is not told that work in its place is not preemptible", x.id)
				}
				continue
			}
			if h.Allocs != x.allocs || h.Jobs != x.allocs || int64(len(h.Names)) != x.allocs {
				t.Errorf("%s is told of %+v, want %d", x.id, h, x.allocs)
			}
			if left := h.Until.Time().Sub(time.Now()); left < time.Hour || left > 2*time.Hour {
				t.Errorf("%s: that work ends in %s", x.id, left)
			}
		}
		if running(s, "old") != 1 || running(s, "older") != 1 {
			t.Error("the question has stopped work")
		}
	})
}
