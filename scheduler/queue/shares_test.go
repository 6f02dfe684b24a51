package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// sharer submits n jobs of one GPU for a user of a queue.
func (f *floor) sharer(user string, path structs.QueuePath, n int, expect time.Duration, edit func(*floorJob)) {
	for range n {
		j := f.submit(1, 1, expect, true)
		j.job.Submitter.Name, j.job.Queue, j.entry.Queue = user, path, path
		if edit != nil {
			edit(j)
		}
	}
}

// running counts the jobs that a user runs.
func (f *floor) running(user string) (n int) {
	for _, j := range f.jobs {
		if len(j.allocs) > 0 && j.job.Submitter.Name == user {
			n++
		}
	}
	return n
}

// Work of who has more than his share gives way to waiting work of who has less, until both have what is due to them, and
// no further: under orders that measure shares, between users and between queues, and only where everything that bounds
// preemption allows it.
func TestReclaimByShares(t *testing.T) {
	never := func(*floorJob) bool { return false }
	cases := []struct {
		name  string
		order structs.Order
		root  structs.Queue
		kids  []*structs.Queue
		ann   func(*floorJob)
		bob   func(*floorJob)
		ran   time.Duration
		take  time.Duration // run time of bob's jobs
		want  int           // of 8 GPUs
		told  string
	}{
		{name: "users, fair", order: "fair", want: 4, told: " of user bob, with a smaller share in queue default ("},
		{name: "users, weighted-fair", order: "weighted-fair", want: 4},
		{name: "users, a list", order: "priority,fair", want: 4},
		{name: "users by weight", order: "fair", root: structs.Queue{UserWeights: map[string]int64{"bob": 3}}, want: 6},
		{name: "queues by weight", order: "fair", kids: []*structs.Queue{{Path: "a"}, {Path: "b", Weight: 3}}, want: 6, told: " of queue b, with a smaller share in queue root ("},
		{name: "who had more lately", order: "fair", ran: 21 * 24 * time.Hour, ann: (*floorJob).save, want: 7},
		{name: "billing", order: "fair", root: structs.Queue{Billing: &structs.Billing{GPU: 1000}}, want: 4},
		{name: "lottery", order: "lottery"},
		{name: "fcfs", order: "fcfs"},
		{name: "reclaim", order: "fair", root: structs.Queue{Preempt: structs.PreemptReclaim}},
		{name: "none", order: "fair", root: structs.Queue{Preempt: structs.PreemptNone}},
		{name: "not preemptible", order: "fair", ann: func(j *floorJob) { j.job.Preemptible = false }},
		{name: "priority", order: "fair", ann: func(j *floorJob) { j.job.Priority, j.entry.Priority = 60, 60 }},
		{name: "began just now", order: "fair", ran: time.Second},
		{name: "preempt_after", order: "fair", root: structs.Queue{PreemptAfter: time.Hour}},
		{name: "preempt_rate", order: "fair", root: structs.Queue{PreemptRate: 2}, want: 2},
		{name: "too costly", order: "fair", ran: 10 * time.Hour, take: time.Minute},
		{name: "the difference outweighs the loss", order: "fair", ran: 2 * time.Hour, take: time.Hour, want: 2},
		{name: "another order comes first", order: "edf,fair", ann: func(j *floorJob) { j.job.Deadline = testNow.Add(20_000 * time.Hour) }},
		{name: "a guarantee", order: "fair", kids: []*structs.Queue{{Path: "a", Guarantee: &structs.Amount{GPUMilli: 6000}}, {Path: "b"}}, want: 2},
		{name: "users within a queue beyond its soft limit", order: "fair", kids: []*structs.Queue{{Path: "a", SoftLimit: &structs.Amount{GPUMilli: 3000, GPUMemoryMiB: structs.AmountNoLimit, CPU: structs.AmountNoLimit, MemoryMiB: structs.AmountNoLimit}}}, want: 4},
		{name: "beyond the soft limit", order: "fair", kids: []*structs.Queue{{Path: "a"}, {Path: "b", SoftLimit: &structs.Amount{GPUMilli: 3000, GPUMemoryMiB: structs.AmountNoLimit, CPU: structs.AmountNoLimit, MemoryMiB: structs.AmountNoLimit}}}, want: 3},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newFloor(t, 2, 4)
			c.root.Path = structs.QueueRoot
			f.queues = append([]*structs.Queue{&c.root}, c.kids...)
			a, b := structs.QueueDefault, structs.QueueDefault
			if len(c.kids) > 0 {
				a, b = "a", c.kids[len(c.kids)-1].Path
			}
			told := 0
			f.moved = func(_, by *floorJob, why string) {
				if told++; !strings.Contains(why, c.told) {
					t.Errorf("the victim is told %q", why)
				}
			}
			f.sharer("ann", a, 8, 10_000*time.Hour, c.ann)
			f.settle(c.order)
			if c.ran == 0 {
				c.ran = 2 * time.Minute
			}
			f.wait(c.ran, never)
			if c.take == 0 {
				c.take = 10 * time.Hour
			}
			f.sharer("bob", b, 8, c.take, c.bob)
			f.settle(c.order)
			if got := f.running("bob"); got != c.want || told != c.want {
				t.Errorf("bob got %d GPUs of 8 and %d victims were told, want %d", got, told, c.want)
			}
			if c.name == "too costly" {
				if r := f.report.Workloads[len(f.report.Workloads)-1].Groups[0].Refusals; !slices.ContainsFunc(r, func(r structs.Refusal) bool { return r.Dimension == structs.DimensionPreemptCost }) {
					t.Errorf("bob is not told what it would cost: %+v", r)
				}
			}
		})
	}
}

// Work that was asked to stop and still holds its place no longer counts for who gives way, and counts for who gets the
// place: further passes stop nothing more. Between users and between queues.
func TestSharesWhileVictimsStop(t *testing.T) {
	for _, kids := range [][]*structs.Queue{nil, {{Path: "a"}, {Path: "b"}}} {
		f := newFloor(t, 2, 4)
		f.queues = append(f.queues, kids...)
		a, b := structs.QueueDefault, structs.QueueDefault
		if kids != nil {
			a, b = "a", "b"
		}
		f.sharer("ann", a, 8, 10_000*time.Hour, nil)
		f.settle(structs.OrderFair)
		f.wait(2*time.Minute, func(*floorJob) bool { return false })
		f.sharer("bob", b, 8, 10*time.Hour, nil)
		f.slow = true
		if s, p := f.pass(structs.OrderFair); s != 4 || p != 4 {
			t.Fatalf("%d jobs are asked to stop, and %d wait for their places", s, p)
		}
		for range 3 {
			if s, p := f.pass(structs.OrderFair); s+p != 0 {
				t.Fatalf("%d more jobs are asked to stop, and %d wait for their places", s, p)
			}
		}
	}
}

// Shares move without any event: who is refused places for his share is decided again after a while.
func TestSharesAreDecidedAgain(t *testing.T) {
	f := newFloor(t, 1, 2)
	f.queues[0] = &structs.Queue{Path: structs.QueueRoot, UserWeights: map[string]int64{"cyd": 2}, Backfill: structs.BackfillGreedy, MaxWait: structs.MaxWaitOff}
	f.sharer("ann", structs.QueueDefault, 1, 10_000*time.Hour, (*floorJob).save)
	f.sharer("bob", structs.QueueDefault, 1, 10_000*time.Hour, (*floorJob).save)
	f.settle(structs.OrderFair)
	f.wait(time.Hour, func(*floorJob) bool { return false })
	f.sharer("cyd", structs.QueueDefault, 1, 100*time.Hour, nil)
	f.settle(structs.OrderFair)
	if n := f.running("cyd"); n != 0 {
		t.Fatalf("cyd runs %d jobs: he would have more than is left to the others", n)
	}
	if at := f.report.Wake; at <= f.now || at.Sub(f.now) > time.Hour {
		t.Errorf("the next pass is at %v, now is %v", at, f.now)
	}
	f.wait(20*24*time.Hour, func(*floorJob) bool { return false })
	f.jobs[2].asked = false // it is in the pass because of the time alone
	f.settle(structs.OrderFair)
	if n := f.running("cyd"); n != 1 {
		t.Errorf("cyd runs %d jobs after the others ran for weeks", n)
	}
}

// At a fixed time preemption by shares comes to an end, although nothing is too young for it and nothing was preempted too
// often: in a tree of queues with weights, users, wide jobs, work that is not preemptible, priorities, and uses of the past.
// No work gives way to the same user, or to a lower priority.
func TestSharesDoNotLoop(t *testing.T) {
	moves, rests := 0, 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 9))
		order := []structs.Order{"fair", "weighted-fair", "priority,fair", "fair,sjf"}[seed%4]
		f := newFloor(t, 1+rng.IntN(4), 4)
		f.queues = []*structs.Queue{{Path: structs.QueueRoot, PreemptMinRuntime: time.Nanosecond, PreemptMax: 1 << 40}, {Path: "a"}, {Path: "a/x"}, {Path: "a/y", Weight: 2}, {Path: "b", Weight: int64(1 + rng.IntN(4))}}
		users := []string{"ann", "bob", "cyd"}
		row := func(j *floorJob, at structs.QueuePath) (structs.QueuePath, string) {
			path := j.job.Queue
			if path == at {
				return path, j.job.Submitter.Name
			}
			for path.Parent() != at {
				path = path.Parent()
			}
			return path, ""
		}
		f.moved = func(v, by *floorJob, why string) {
			moves++
			top := by.job.Queue
			for !top.Contains(v.job.Queue) {
				top = top.Parent()
			}
			p1, u1 := row(v, top)
			p2, u2 := row(by, top)
			if p1 == p2 && u1 == u2 {
				t.Fatalf("seed %d: %s and %s are of the same %s%s: %s", seed, v.job.ID, by.job.ID, p1, u1, why)
			}
			if v.job.Priority > by.job.Priority {
				t.Fatalf("seed %d: %s has a higher priority than %s", seed, v.job.ID, by.job.ID)
			}
		}
		id := 0
		for range 12 {
			for range rng.IntN(5) {
				count := 1
				if rng.IntN(4) == 0 {
					count = 1 + rng.IntN(3)
				}
				j := f.submit(int64(1)<<rng.IntN(3), count, time.Duration(1+rng.IntN(3000))*time.Minute, rng.IntN(5) > 0)
				id++
				j.job.ID, j.entry.JobID, j.entry.SubmitIndex = fmt.Sprint("s", id), fmt.Sprint("s", id), structs.Index(id)
				j.job.Queue = []structs.QueuePath{"a", "a/x", "a/y", "b"}[rng.IntN(4)]
				j.entry.Queue, j.job.Submitter.Name = j.job.Queue, users[rng.IntN(3)]
				if rng.IntN(3) == 0 {
					j.job.Priority, j.entry.Priority = 60, 60
				}
				if rng.IntN(2) == 0 {
					j.save()
				}
			}
			for rounds, quiet := 0, 0; quiet < 2; rounds++ {
				if s, p := f.pass(order); s+p == 0 {
					quiet++
				} else {
					quiet = 0
				}
				if rounds > 100 {
					t.Fatalf("seed %d, order %s: %d passes at one moment still stop work", seed, order, rounds)
				}
				f.now++ // what began in this pass is old enough for the next one
			}
			rests++
			f.wait(time.Duration(1+rng.IntN(600))*time.Minute, func(j *floorJob) bool { return j.ran >= j.expect && rng.IntN(2) == 0 })
		}
	}
	t.Logf("%d moves, %d times at rest", moves, rests)
	if moves < 300 {
		t.Errorf("only %d moves", moves)
	}
}
