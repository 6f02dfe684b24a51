package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// submitAs registers a job for a submitter and waits until it is decided.
func submitAs(t *testing.T, s *Server, user string, j *structs.Job) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := s.apply(ctx, replica.LaneUser, structs.Command{By: structs.Submitter{Name: user}, Body: &structs.JobRegisterCommand{Job: j, Eval: true}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
}

// cpuJob is a job of one allocation in a queue; a node of testNode has 4000 MHz.
func cpuJob(id string, queue structs.QueuePath, cpu int64) *structs.Job {
	return passJob(id, 1, func(j *structs.Job) {
		j.Queue, j.Groups[0].Tasks[0].Resources = queue, structs.Resources{CPU: cpu, MemoryMiB: 64}
	})
}

func stateOf(t *testing.T, s *Server, queue string) *methods.QueueState {
	t.Helper()
	q := call(t, s, methods.QueueGet, rpc.Header{}, &methods.NameRequest{Name: queue}).Queue
	if q == nil {
		t.Fatalf("queue %s is not there", queue)
	}
	return q
}

// Without any configuration the submitters of queue default have their parts, targets and waits; without counted usage
// the metrics say only who waits, and nothing that is not known.
func TestStandingOfAFreshCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		submitAs(t, s, "ann", cpuJob("runs", "", 3000))
		submitAs(t, s, "bob", cpuJob("waits", "", 2000))
		time.Sleep(time.Minute)
		q := stateOf(t, s, "default")
		if q.Part != 750_000 || q.Target != 1_000_000 || q.Jain != 500_000 || q.Usage.Jobs != 1 || q.Waiting != 1 || q.Oldest < time.Minute || q.Oldest > 2*time.Minute || len(q.Users) != 2 {
			t.Fatalf("default: part %d, target %d, index %d, %d running, %d waiting for %s, %d submitters", q.Part, q.Target, q.Jain, q.Usage.Jobs, q.Waiting, q.Oldest, len(q.Users))
		}
		if q.Mean != (structs.Amount{}) {
			t.Errorf("use lately is %+v, and no past use is known", q.Mean)
		}
		if u := q.Users[0]; u.Usage.User != "ann" || u.Part != 750_000 || u.Target != 500_000 || u.Usage.Jobs != 1 || u.Waiting != 0 {
			t.Errorf("ann: %+v", u)
		}
		if u := q.Users[1]; u.Usage.User != "bob" || u.Part != 0 || u.Target != 500_000 || u.Waiting != 1 || u.Oldest != q.Oldest {
			t.Errorf("bob: %+v", u)
		}
		got := s.Metrics().Samples()
		for _, queue := range []string{"root", "default"} {
			n, _ := got.Find("muster_queue_jobs_waiting", queue)
			wait, _ := got.Find("muster_queue_oldest_wait_seconds", queue)
			if n != 1 || wait < 60 {
				t.Errorf("%s: metrics tell %v waiting jobs and %v s", queue, n, wait)
			}
		}
		if _, ok := got.Find("muster_queue_part_ratio", "default"); ok {
			t.Error("there is a metric of usage that is not counted")
		}
	})
}

// With queues the metrics say what queue status says, preemptions are counted for the queue that wanted the place, and a
// queue that no configuration names is no label.
func TestStandingOfQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		submitAs(t, s, "eve", cpuJob("odd", "mentioned/once", 400))
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "lab", Weight: 3}, {Path: "lab/nlp"}, {Path: "ops", Preempt: "priority"}, {Path: "idle"}}})
		victim := cpuJob("victim", "lab/nlp", 3200)
		victim.Preemptible, victim.Priority = true, 10
		submitAs(t, s, "ann", victim)
		if q := stateOf(t, s, "lab"); q.Part != 800_000 || q.Target != 750_000 || q.Preemptions != 0 { // weight 3 against queue mentioned
			t.Errorf("lab: part %d, target %d, %d preemptions", q.Part, q.Target, q.Preemptions)
		}
		time.Sleep(10 * time.Minute) // beyond preempt_min_runtime
		urgent := cpuJob("urgent", "ops", 3200)
		urgent.Priority = 90
		submitAs(t, s, "bob", urgent)
		time.Sleep(time.Minute)
		if n := running(s, "urgent"); n != 1 {
			t.Fatalf("%d of urgent run, want 1", n)
		}
		got := s.Metrics().Samples()
		for _, path := range []string{"root", "lab", "lab/nlp", "ops"} {
			q := stateOf(t, s, path)
			for name, want := range map[string]float64{
				"jobs_running": float64(q.Usage.Jobs), "jobs_waiting": float64(q.Waiting), "oldest_wait_seconds": q.Oldest.Seconds(), "preemptions_total": float64(q.Preemptions),
				"part_ratio": float64(q.Part) / 1e6, "target_ratio": float64(q.Target) / 1e6, "jain_ratio": float64(q.Jain) / 1e6,
			} {
				v, ok := got.Find("muster_queue_"+name, path)
				if hidden := name == "jain_ratio" && q.Jain == 0; v != want || ok == hidden {
					t.Errorf("%s of %s is %v (%v), queue status has %v", name, path, v, ok, want)
				}
			}
		}
		// Lab (weight 3), mentioned and ops (1 each) take turns at the root.
		for path, want := range map[string][3]int64{"root": {1_000_000, 900_000, 1}, "ops": {200_000, 800_000, 1}, "lab": {600_000, 0, 0}} {
			if q := stateOf(t, s, path); [3]int64{q.Target, q.Part, q.Preemptions} != want {
				t.Errorf("%s: target %d, part %d, %d preemptions; want %d", path, q.Target, q.Part, q.Preemptions, want)
			}
		}
		for _, x := range got {
			if len(x.Values) == 1 && (x.Values[0] == "mentioned" || x.Values[0] == "mentioned/once" || x.Values[0] == "idle") {
				t.Errorf("%s has queue %q", x.Name, x.Values[0])
			}
		}
	})
}

// A token that may not read a queue sees none of its figures, and who may read it sees them.
func TestStandingByPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(_ int, cfg *Config) { cfg.ACL = true })
		s := c.servers[c.leader()]
		root := c.bootstrapACL(0)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "lab"}, {Path: "secret"}}})
		token := rpc.Header{Token: c.tokenWith(root, "lab", `queue "lab" { policy = "read" }
queue "secret" { policy = "deny" }`).String()}
		submitAs(t, s, "ann", cpuJob("a", "lab", 100))
		submitAs(t, s, "bob", cpuJob("b", "secret", 100))
		if q, err := callErr(s, methods.QueueGet, token, &methods.NameRequest{Name: "secret"}); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("queue secret: %+v, %v; want it denied", q, err)
		}
		seen := map[structs.QueuePath]*methods.QueueState{}
		for _, q := range call(t, s, methods.QueueTree, token, &methods.ListRequest{}).Queues {
			seen[q.Effective.Path] = &q
		}
		if seen["secret"] != nil || seen["lab"] == nil || seen["lab"].Waiting != 1 || seen["lab"].Users != nil {
			t.Errorf("the token sees %v; want lab with a job, without its submitters, and not secret", seen)
		}
		if q := call(t, s, methods.QueueGet, token, &methods.NameRequest{Name: "lab"}).Queue; q == nil || len(q.Users) != 1 || q.Users[0].Usage.User != "ann" || q.Target != 500_000 {
			t.Errorf("queue lab: %+v; want submitter ann, and half of the cluster as its target", q)
		}
	})
}
