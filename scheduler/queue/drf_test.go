package queue

import (
	"math/rand/v2"
	"testing"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// demand is what one user asks for under divide: as many tasks of one shape as possible, up to Most.
type demand struct {
	Task   structs.Amount // of one task; nothing negative
	Weight int64          // 0 means 1
	Most   int64          // tasks; 0: unlimited
}

// divide divides an amount by dominant resource fairness (Ghodsi et al., NSDI'11, algorithm 1): again and again the
// user with the least weighted dominant share gets one more task, until no user's next task fits. It is what Fair does
// on finely divisible resources, with the same Scene.Dominant. The result is tasks by user; ties go to the user listed
// first.
func divide(total structs.Amount, users []demand) []int64 {
	at := Scene{Total: total}
	got := make([]int64, len(users))
	done := make([]bool, len(users))
	free := total
	for {
		best, least := -1, int64(0)
		for i := range users {
			if done[i] {
				continue
			}
			d, _ := at.Dominant(users[i].Task.Times(got[i]))
			if d /= max(users[i].Weight, 1); best < 0 || d < least {
				best, least = i, d
			}
		}
		if best < 0 {
			return got
		}
		u := &users[best]
		if _, over := u.Task.Exceeds(free); over != 0 || u.Task == (structs.Amount{}) || u.Most > 0 && got[best] == u.Most {
			done[best] = true
			continue
		}
		free = free.Sub(u.Task)
		got[best]++
	}
}

// TestDivideAsInThePaper is the example of section 4.1 of the paper: 9 CPUs and 18 GB, tasks of <1 CPU, 4 GB> and
// <3 CPUs, 1 GB> give 3 and 2 tasks.
func TestDivideAsInThePaper(t *testing.T) {
	got := divide(structs.Amount{CPU: 9, MemoryMiB: 18}, []demand{{Task: structs.Amount{CPU: 1, MemoryMiB: 4}}, {Task: structs.Amount{CPU: 3, MemoryMiB: 1}}})
	if got[0] != 3 || got[1] != 2 {
		t.Errorf("got %v, want [3 2]", got)
	}
}

// grain is how many smallest tasks a resource holds in the properties below: the finer, the nearer to the divisible
// case for which they are proved.
const grain = 4000

func randomDemands(rng *rand.Rand, n int) (structs.Amount, []demand) {
	total := structs.Amount{GPUMilli: grain, GPUMemoryMiB: grain, CPU: grain, MemoryMiB: grain}
	users := make([]demand, n)
	for i := range users {
		users[i].Task = structs.Amount{GPUMilli: rng.Int64N(6), GPUMemoryMiB: rng.Int64N(6), CPU: 1 + rng.Int64N(5), MemoryMiB: rng.Int64N(6)}
	}
	return total, users
}

// useful is how many tasks of a shape fit into an amount.
func useful(bundle, task structs.Amount) int64 {
	most := int64(1 << 40)
	for i, c := range task.Parts() {
		if c.Value > 0 {
			most = min(most, bundle.Parts()[i].Value/c.Value)
		}
	}
	return most
}

// TestPropertiesOfDivide: the fairness properties of DRF, for random users; slack is what is lost because tasks are not
// infinitely small.
func TestPropertiesOfDivide(t *testing.T) {
	checks, lied := 0, 0
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		n := 2 + rng.IntN(4)
		total, users := randomDemands(rng, n)
		got := divide(total, users)
		slack := int64(8)
		var used structs.Amount
		for i := range users {
			used = used.Add(users[i].Task.Times(got[i]))
		}
		// Pareto efficiency: no user can have one more task without taking from others.
		for i := range users {
			if _, over := used.Add(users[i].Task).Exceeds(total); over == 0 {
				t.Fatalf("seed %d: user %d could have one more: %v of %+v", seed, i, got, users)
			}
			checks++
		}
		for i := range users {
			// Sharing incentive: at least what an n-th part of everything would give.
			part := structs.Amount{GPUMilli: total.GPUMilli / int64(n), GPUMemoryMiB: total.GPUMemoryMiB / int64(n), CPU: total.CPU / int64(n), MemoryMiB: total.MemoryMiB / int64(n)}
			if alone := useful(part, users[i].Task); got[i] < alone-slack {
				t.Fatalf("seed %d: user %d has %d tasks, an equal part would give %d: %+v", seed, i, got[i], alone, users)
			}
			checks++
			// Envy-freeness: no user could run more tasks with another user's allocation.
			for k := range users {
				if with := useful(users[k].Task.Times(got[k]), users[i].Task); with > got[i]+slack {
					t.Fatalf("seed %d: user %d has %d tasks and could run %d with what user %d has: %+v", seed, i, got[i], with, k, users)
				}
				checks++
			}
			// Strategy-proofness: a user who lies about the task does not get to run more of the true ones.
			lie := make([]demand, n)
			copy(lie, users)
			parts := []*int64{&lie[i].Task.GPUMilli, &lie[i].Task.GPUMemoryMiB, &lie[i].Task.CPU, &lie[i].Task.MemoryMiB}
			*parts[rng.IntN(4)] += rng.Int64N(4)
			if p := parts[rng.IntN(4)]; *p > 1 {
				*p--
			}
			if lie[i].Task != users[i].Task {
				lied++
			}
			told := divide(total, lie)
			if with := useful(lie[i].Task.Times(told[i]), users[i].Task); with > got[i]+slack {
				t.Fatalf("seed %d: user %d runs %d tasks, and %d by saying %+v instead of %+v", seed, i, got[i], with, lie[i].Task, users[i].Task)
			}
			checks++
		}
	}
	if lied == 0 {
		t.Error("nobody lied")
	}
	t.Logf("%d checks, %d lies", checks, lied)
}

// TestDivideAgainstSearch compares with exhaustive search on small cases: the least dominant share is as large as any
// division can make it, to within one task.
func TestDivideAgainstSearch(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 4))
		total := structs.Amount{CPU: 6 + rng.Int64N(12), MemoryMiB: 6 + rng.Int64N(12)}
		users := make([]demand, 2+rng.IntN(2))
		for i := range users {
			users[i].Task = structs.Amount{CPU: 1 + rng.Int64N(3), MemoryMiB: 1 + rng.Int64N(3)}
		}
		at := Scene{Total: total}
		least := func(got []int64) (low, step int64) {
			low = nano
			for i := range users {
				d, _ := at.Dominant(users[i].Task.Times(got[i]))
				one, _ := at.Dominant(users[i].Task)
				low, step = min(low, d), max(step, one)
			}
			return low, step
		}
		best := int64(0)
		var search func(i int, got []int64, free structs.Amount)
		search = func(i int, got []int64, free structs.Amount) {
			if i == len(users) {
				low, _ := least(got)
				best = max(best, low)
				return
			}
			for n := int64(0); ; n++ {
				use := users[i].Task.Times(n)
				if _, over := use.Exceeds(free); over != 0 {
					return
				}
				got[i] = n
				search(i+1, got, free.Sub(use))
			}
		}
		search(0, make([]int64, len(users)), total)
		got := divide(total, users)
		if low, step := least(got); low+step < best {
			t.Fatalf("seed %d: the least share is %d, search finds %d: %v of %+v in %+v", seed, low, best, got, users, total)
		}
	}
}

// TestJain: tenants with different demands and weights take turns while all are backlogged and work ends at random: the
// index of their weighted shares over the time is above 0.95.
func TestJain(t *testing.T) {
	for _, order := range []structs.Order{structs.OrderFair, structs.OrderWeighted} {
		total := structs.Amount{GPUMilli: 128_000, CPU: 256_000, MemoryMiB: 2_000_000}
		var qs []*structs.Queue
		tasks := []structs.Amount{{GPUMilli: 1000, CPU: 500, MemoryMiB: 4000}, {GPUMilli: 500, CPU: 2000, MemoryMiB: 1000}, {GPUMilli: 1000, CPU: 1000, MemoryMiB: 16_000}, {GPUMilli: 250, CPU: 250, MemoryMiB: 250}}
		for i, w := range []int64{1, 2, 1, 4} {
			qs = append(qs, &structs.Queue{Path: structs.QueuePath(string(rune('a' + i))), Weight: w})
		}
		at := Scene{Total: total}
		rng := rand.New(rand.NewPCG(5, 5))
		usage := make([]*structs.QueueUsage, len(qs))
		for i, q := range qs {
			usage[i] = &structs.QueueUsage{Path: q.Path, At: testNow}
		}
		type running struct {
			queue int
			end   structs.LogTime
		}
		var run []running
		var held structs.Amount
		share := make([]float64, len(qs))
		now := testNow
		for step := range 700 {
			now += 30e9
			kept := run[:0]
			for _, r := range run {
				if r.end > now {
					kept = append(kept, r)
					continue
				}
				usage[r.queue].Settle(now, 0, "")
				usage[r.queue].Held = usage[r.queue].Held.Sub(tasks[r.queue])
				held = held.Sub(tasks[r.queue])
			}
			run = kept
			var ws []contend.Workload
			for i, q := range qs {
				for n := range 60 { // the backlog
					w := load(string(rune('a'+i))+string(rune('0'+n)), string(q.Path), "u", step*60+n, 50, 0)
					g := *w.Job.Groups[0]
					g.Tasks = []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: tasks[i].CPU, MemoryMiB: tasks[i].MemoryMiB}}}
					w.Job.Groups = []*structs.Group{&g}
					w.Queue.SubmitTime = now
					ws = append(ws, w)
				}
			}
			l := NewLine(&contend.QueueTable{Queues: qs, Usage: usage, Total: total}, structs.SchedulerConfig{Order: order}, ws, now, 1)
			for i := l.Next(); i >= 0; i = l.Next() {
				q := int(ws[i].Job.Queue[0] - 'a')
				if _, over := held.Add(tasks[q]).Exceeds(total); over != 0 {
					break // head of line: the next one waits, so that small tasks do not take what large ones wait for
				}
				held = held.Add(tasks[q])
				usage[q].Settle(now, 0, "")
				usage[q].Held = usage[q].Held.Add(tasks[q])
				run = append(run, running{q, now + structs.LogTime(60e9+rng.Int64N(600e9))})
				l.Placed(i, tasks[q])
			}
			if step < 200 { // until the cluster is full and has turned over
				continue
			}
			for i := range qs {
				d, _ := at.Dominant(usage[i].Held)
				share[i] += float64(d) / float64(qs[i].Weight)
			}
		}
		var sum, squares float64
		for _, s := range share {
			sum, squares = sum+s, squares+s*s
		}
		jain := sum * sum / (float64(len(share)) * squares)
		t.Logf("%s: Jain's index of the weighted dominant shares %.4f", order, jain)
		if jain < 0.95 {
			t.Errorf("%s: Jain's index %.4f of %v", order, jain, share)
		}
	}
}
