//go:build e2e

package queue

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// historyScale is how much faster a history is here: six hours of submissions take 24 seconds.
const historyScale = 900

// TestHistories runs random histories of internal/histories on real agents with real processes: HISTORIES of them (6),
// from the seed SEED (1), several at a time, as they mostly wait. No limit or cap of a queue is exceeded, every job
// that waits is shown once, equal work starts in the order shown, the reasons that passes find are true and are those
// of job why, and every job ends.
func TestHistories(t *testing.T) {
	first := harness.Number(t, "SEED", 1)
	for i := range harness.Number(t, "HISTORIES", 6) {
		seed := uint64(first + i*89)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := histories.New(seed, map[string]string{"failures": "no", "reserved": "no"})
			var nodes []harness.FleetNode
			for k, n := range h.Nodes {
				model := "H100"
				if strings.Contains(n.Model, "A100") {
					model = "A100"
				}
				nodes = append(nodes, harness.FleetNode{Name: fmt.Sprint("n", k), GPUs: fmt.Sprintf("%dx%s", n.GPUs, model), Meta: n.Meta})
			}
			replayHistory(t, harness.StartFleet(t, nodes...), h)
		})
	}
}

// sooner scales a time of a history, where it is one.
func sooner(d time.Duration) time.Duration {
	if d < time.Second || d == structs.MaxWaitOff {
		return d
	}
	return max(d/historyScale, time.Millisecond)
}

func replayHistory(t *testing.T, f *harness.Fleet, h *histories.History) {
	call := func(method, path string, in, out any) {
		t.Helper()
		if err := f.API.Call(method, path, in, out); err != nil {
			t.Fatalf("%s %s: %v (%v)", method, path, err, h.Is)
		}
	}
	for _, q := range h.Queues {
		q.MaxWait, q.Aging, q.PreemptMinRuntime, q.PreemptAfter, q.BackfillWindow = sooner(q.MaxWait), sooner(q.Aging), sooner(q.PreemptMinRuntime), sooner(q.PreemptAfter), sooner(q.BackfillWindow)
		if q.GPUMinutesMax > 0 {
			q.GPUMinutesMax = max(1, q.GPUMinutesMax/historyScale)
		}
		call("PUT", "/v1/queues", wire.QueueFromStructs(q), nil)
	}
	call("PUT", "/v1/operator/scheduler/configuration", map[string]any{"SchedulerAlgorithm": h.Is["placement"]}, nil)
	judge := newJudged(t, f, h)
	began, work := time.Now(), time.Duration(0)
	next, shown, most := h.Jobs, 0, map[structs.QueuePath]int64{}
	limits := map[structs.QueuePath]*structs.Queue{}
	for _, q := range h.Queues {
		limits[q.Path] = q
	}
	each := map[string]int64{} // thousandths of GPUs that an allocation of a job's group holds
	for _, j := range h.Jobs {
		for _, g := range j.Groups {
			if r := g.Tasks[0].Resources.GPU; len(r) > 0 && !r[0].Shared() { // else less than a GPU, and how much depends on the GPU
				each[j.ID+"/"+string(g.Name)] = 1000 * histories.GPUsEach(g)
			}
		}
		work += max(j.Run/historyScale, time.Second) * time.Duration(j.Groups[0].Count)
	}
	for {
		for len(next) > 0 && next[0].At/historyScale <= time.Since(began) {
			call("PUT", "/v1/jobs", map[string]any{"Job": historyJob(next[0], began)}, nil)
			next = next[1:]
		}
		time.Sleep(100 * time.Millisecond)
		// What runs, by queue: GPUs, and jobs.
		var list []struct{ ID, Status, Queue string }
		call("GET", "/v1/jobs", nil, &list)
		var all []harness.Alloc // of one moment
		call("GET", "/v1/allocations", nil, &all)
		gpus, jobs, alive := map[structs.QueuePath]int64{}, map[structs.QueuePath]int64{}, []string{}
		for _, j := range list {
			if j.Status == "dead" {
				continue
			}
			alive = append(alive, j.ID)
			holds, runs := int64(0), int64(0)
			for _, a := range all {
				if a.JobID == j.ID && a.ClientStatus == "running" && a.DesiredStatus == "run" {
					holds, runs = holds+each[j.ID+"/"+a.TaskGroup], 1
				}
			}
			for p := range structs.QueuePath(j.Queue).Lineage() {
				gpus[p] += holds
				jobs[p] += runs
			}
		}
		for p, q := range limits {
			most[p] = max(most[p], gpus[p])
			if q.Limit != nil && gpus[p] > q.Limit.GPUMilli {
				t.Fatalf("queue %s holds %d thousandths of GPUs, and its limit is %d (%v)", p, gpus[p], q.Limit.GPUMilli, h.Is)
			}
			if q.RunningMax > 0 && jobs[p] > q.RunningMax {
				t.Fatalf("%d jobs of queue %s run, and running_max is %d (%v)", jobs[p], p, q.RunningMax, h.Is)
			}
		}
		var waiting []nomadlike.QueueItem
		call("GET", "/v1/queue", nil, &waiting)
		seen := map[string]bool{}
		for _, w := range waiting {
			if seen[w.JobID] {
				t.Fatalf("job %s is shown twice in the queue (%v)", w.JobID, h.Is)
			}
			seen[w.JobID] = true
		}
		shown += len(seen)
		judge.look(t)
		if len(next) == 0 && len(alive) == 0 {
			break
		}
		if time.Since(began) > 2*time.Minute+4*work {
			why, _ := f.Muster("job", "why", alive[0])
			t.Fatalf("not served: %v; %s (%v)", alive, why, h.Is)
		}
	}
	t.Logf("passes: %v; %d answers of job why are those of the newest pass", judge.judge.Counts, judge.same)
	t.Logf("%d jobs in %s; %d times one was shown as waiting; most GPUs of a queue in thousandths: %v", len(h.Jobs), time.Since(began).Round(time.Second), shown, most)
}

// historyJob is a job of a history as a user would submit it: tasks sleep.
func historyJob(j *histories.Job, began time.Time) *wire.Job {
	c := *j.Job
	c.Region, c.Namespace, c.Name = structs.RegionDefault, structs.NamespaceDefault, c.ID
	if c.Deadline != 0 { // still ahead, however late this test is
		c.Deadline = max(structs.LogTimeOf(began.Add(c.Deadline.Sub(histories.Begin)/historyScale)), structs.LogTimeOf(time.Now().Add(time.Second)))
	}
	run := max(j.Run/historyScale, 10*time.Millisecond)
	c.Runtime = structs.Runtime{Expected: sooner(c.Runtime.Expected), Limit: sooner(c.Runtime.Limit)}
	if c.Runtime.Limit > 0 {
		c.Runtime.Limit = max(c.Runtime.Limit, run) + 10*time.Second // a process needs time to start
	}
	for _, g := range c.Groups {
		g.Tasks[0].Driver = "raw_exec"
		g.Tasks[0].Resources.CPU, g.Tasks[0].Resources.MemoryMiB = 1, 10
		if g.Checkpoint != nil {
			g.Checkpoint.Grace = sooner(g.Checkpoint.Grace)
		}
	}
	w := wire.JobFromStructs(&c)
	for _, g := range w.TaskGroups { // what is left out has its default
		g.RestartPolicy, g.ReschedulePolicy, g.EphemeralDisk = nil, nil, nil
		g.Tasks[0].RestartPolicy, g.Tasks[0].LogConfig = nil, nil
		g.Tasks[0].Config = map[string]any{"command": "/bin/sh", "args": []string{"-c", fmt.Sprintf("trap 'exit 0' USR1; sleep %.3f", run.Seconds())}}
	}
	return w
}
