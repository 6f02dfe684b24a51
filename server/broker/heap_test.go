package broker

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestHeaps: after every change at any place the first is on top, and each knows its place.
func TestHeaps(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewSource(seed))
	var ready readyHeap
	var wakes timers
	var jobs []*job
	var ts []*timer
	check := func(what string) {
		t.Helper()
		for i, j := range ready.jobs {
			if j.pos != i || i > 0 && ready.less(j, ready.jobs[(i-1)/2]) {
				t.Fatalf("after %s, job %s is out of place at %d of %d", what, j.key.ID, i, len(ready.jobs))
			}
		}
		for i, x := range wakes.heap {
			if x.pos != i || i > 0 && x.less(wakes.heap[(i-1)/2]) {
				t.Fatalf("after %s, a timer is out of place at %d of %d", what, i, len(wakes.heap))
			}
		}
		if len(ready.jobs) != len(jobs) || len(wakes.heap) != len(ts) {
			t.Fatalf("after %s, %d jobs and %d timers, want %d and %d", what, len(ready.jobs), len(wakes.heap), len(jobs), len(ts))
		}
	}
	for i := range 3000 {
		switch n := len(jobs); {
		case n < 30 || n < 200 && r.Intn(3) > 0:
			id := fmt.Sprint("j", i)
			j := &job{key: structs.JobKey{ID: id}, workload: &structs.Workload{JobID: id, Priority: r.Intn(5), SubmitIndex: structs.Index(r.Intn(5))}, pos: -1}
			ready.push(j)
			jobs = append(jobs, j)
			ts = append(ts, wakes.add(&timer{at: structs.LogTime(r.Intn(20)), index: structs.Index(r.Intn(5)), job: j}))
			check("an addition")
		case r.Intn(2) == 0:
			at := r.Intn(n)
			if got := ready.remove(jobs[at].pos); got != jobs[at] {
				t.Fatal("another job was removed")
			}
			wakes.remove(ts[at])
			wakes.remove(ts[at]) // again: nothing
			jobs, ts = slices.Delete(jobs, at, at+1), slices.Delete(ts, at, at+1)
			check("a removal")
		default:
			j := jobs[r.Intn(n)]
			w := *j.workload
			w.Priority = r.Intn(5)
			j.workload = &w
			ready.fix(j.pos)
			check("a change")
		}
	}
}

func TestDeciding(t *testing.T) {
	first, last, blocked, spec := eval(1, "a", nil), eval(2, "a", nil), eval(3, "a", nil), eval(4, "a", nil)
	for i, c := range []struct {
		it   Item
		want *structs.Evaluation
	}{
		{Item{Blocked: blocked}, blocked}, {Item{Evals: []*structs.Evaluation{first, last}, Blocked: blocked}, last},
		{Item{Spec: &Speculation{Eval: spec}}, spec}, {Item{}, nil},
	} {
		if got := c.it.Deciding(); got != c.want {
			t.Errorf("item %d: evaluation %v, want %v", i, got, c.want)
		}
	}
}

// TestUsageThatFellWakes: what a queue's limit holds back is decided again when any part of the usage fell, and only then.
func TestUsageThatFellWakes(t *testing.T) {
	was := structs.QueueUsage{Path: structs.QueueDefault, Held: structs.Amount{GPUMilli: 2000, CPU: 100}, Jobs: 2, Ends: 100}
	for name, c := range map[string]struct {
		edit  func(*structs.QueueUsage)
		woken int
	}{
		"nothing":       {func(*structs.QueueUsage) {}, 0},
		"more":          {func(u *structs.QueueUsage) { u.Held.GPUMilli, u.Jobs = 3000, 3 }, 0},
		"fewer GPUs":    {func(u *structs.QueueUsage) { u.Held.GPUMilli = 1000 }, 1},
		"less CPU":      {func(u *structs.QueueUsage) { u.Held.CPU, u.Held.GPUMilli = 50, 3000 }, 1},
		"fewer jobs":    {func(u *structs.QueueUsage) { u.Jobs = 1 }, 1},
		"earlier ends":  {func(u *structs.QueueUsage) { u.Ends = 90 }, 1},
		"another queue": {func(u *structs.QueueUsage) { u.Path, u.Jobs = "other", 1 }, 0},
	} {
		b := New(Limits{}, Env{})
		b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
		b.Feed(made(20, eval(1, "a", blockedOn(structs.EventQueueUsage, 19))), 1)
		before, after := was, was
		c.edit(&after)
		before.Path = after.Path
		b.Feed(&structs.Delta{Index: 21, QueueUse: []structs.Changed[structs.QueueUsage]{{Before: &before, After: &after}}}, 1)
		p, _ := b.Take(1)
		if len(p.Items) != c.woken {
			t.Errorf("%s: %v ready, want %d", name, keys(p), c.woken)
		}
	}
}

// TestRemovedIsNotReady: an evaluation that is deleted is not decided.
func TestRemovedIsNotReady(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	e := eval(1, "a", nil)
	b.Feed(made(11, e), 1)
	b.Feed(&structs.Delta{Index: 12, Evals: []structs.Changed[structs.Evaluation]{{Before: e}}}, 1)
	if p, ok := b.Take(1); ok {
		t.Errorf("a pass has %v", keys(p))
	}
	if l := b.Len(); l != (Len{}) {
		t.Errorf("left: %+v", l)
	}
}

// TestReplicatedWorkloadWins: until a job's replicated workload is known, its place in the order comes from the job; then no
// longer.
func TestReplicatedWorkloadWins(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", nil)), 1)
	priority := func() int {
		t.Helper()
		q := b.Queue(structs.NodePoolDefault)
		if len(q) != 1 {
			t.Fatalf("%d jobs wait", len(q))
		}
		return q[0].Priority
	}
	job := func(at structs.Index, p int) {
		b.Feed(&structs.Delta{Index: at, Jobs: []structs.Changed[structs.Job]{{After: &structs.Job{Namespace: "default", ID: "a", Priority: p}}}}, 1)
	}
	if job(12, 20); priority() != 20 {
		t.Errorf("priority %d, want the job's", priority())
	}
	b.Feed(&structs.Delta{Index: 13, Workloads: []structs.Changed[structs.Workload]{{After: &structs.Workload{Namespace: "default", JobID: "a", Priority: 70}}}}, 1)
	if job(14, 30); priority() != 70 {
		t.Errorf("priority %d, want the workload's", priority())
	}
}
