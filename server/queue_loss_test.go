package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestQueueLossMetric: what a queue's batch jobs had done when they were preempted, and when their node was lost, is in the
// metrics by cause, in those of the queues above, and in queue status, there also by submitter.
func TestQueueLossMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newGPUFleet(t, s, 2)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "lab"}, {Path: "lab/nlp"}, {Path: "ops", Preempt: "priority"}}})
		submit := func(user, id string, queue structs.QueuePath, edit func(*structs.Job)) {
			submitAs(t, s, user, passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Queue, j.Groups[0].Reschedule = structs.JobBatch, queue, structs.Reschedule{}
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 2}}
				edit(j)
			}))
			waitFor(t, 2*time.Minute, id, func() bool { return running(s, id) == 1 })
		}
		check := func(path string, preempt, node float64) {
			t.Helper()
			got := s.Metrics().Samples()
			lost := map[string]float64{}
			for _, cause := range []string{"preempt", "node", "drain"} {
				v, ok := got.Find("muster_queue_lost_gpu_seconds_total", path, cause)
				if !ok {
					t.Errorf("%s has no metric of what %s lost it", path, cause)
				}
				lost[cause] = v
			}
			// A pass, the stop and a lost heartbeat take less than three minutes together.
			if p, n := lost["preempt"]-preempt, lost["node"]-node; p < 0 || n < 0 || p > 360 || n > 360 || preempt == 0 && p != 0 || node == 0 && n != 0 || lost["drain"] != 0 {
				t.Errorf("%s lost %v GPU seconds, want %v by preemptions and %v with nodes", path, lost, preempt, node)
			}
			if q := stateOf(t, s, path); float64(q.Lost.Preempt) != lost["preempt"] || float64(q.Lost.Node) != lost["node"] {
				t.Errorf("%s: queue status has %+v, the metrics %v", path, q.Lost, lost)
			}
		}
		submit("ann", "victim", "lab/nlp", func(j *structs.Job) { j.Preemptible, j.Priority = true, 10 })
		time.Sleep(time.Hour)
		submit("bob", "urgent", "ops", func(j *structs.Job) { j.Priority = 90 })
		for _, path := range []string{"lab/nlp", "lab", "root"} {
			check(path, 2*3600, 0)
		}
		check("ops", 0, 0)
		time.Sleep(30 * time.Minute)
		f.set(func() { f.dead[f.nodes[0].ID] = true })
		time.Sleep(2 * time.Minute)
		check("ops", 0, 2*1800)
		check("lab", 2*3600, 0)
		check("root", 2*3600, 2*1800)
		for path, want := range map[string]map[string]int64{"lab": {"ann": 1}, "lab/nlp": {"ann": 1}, "ops": {"bob": 0}} {
			q := stateOf(t, s, path)
			if len(q.Users) != len(want) {
				t.Errorf("%s has submitters %+v, want %v", path, q.Users, want)
			}
			for _, u := range q.Users { // the only one in its queue
				if preempted, ok := want[u.Usage.User]; !ok || u.Preempted != preempted || u.Lost != q.Lost {
					t.Errorf("%s: %s was preempted %d times and lost %+v, want %v and all that the queue lost, %+v", path, u.Usage.User, u.Preempted, u.Lost, want, q.Lost)
				}
			}
		}
	})
}
