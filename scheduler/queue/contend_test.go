package queue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// floor is a small cluster on which plans are carried out at once.
type floor struct {
	t      testing.TB
	nodes  []*structs.Node
	view   *model.View
	index  structs.Index
	now    structs.LogTime
	jobs   []*floorJob
	evals  uint64
	queues []*structs.Queue // root first
	// evicted counts the jobs that were stopped for others, by the priority of the latter.
	evicted    map[int]int
	recent     structs.Preemptions
	report     scheduler.Report                       // of the newest pass
	old        bool                                   // the format in force does not have EventSaved
	placed     func(j *floorJob)                      // called with the job of each allocation, in the order of the decisions; nil: not at all
	moved      func(victim, by *floorJob, why string) // called with each job that is stopped by shares; nil: not at all
	evictedFor func(why string)                       // called with what is lost and gained of each that is stopped; nil: not at all
	resized    []contend.GangTimes
	slow       bool                 // victims are asked to stop, and hold their places
	past       []structs.QueueUsage // what queues and users have used
}

type floorJob struct {
	job     *structs.Job
	entry   *structs.Workload
	blocked *structs.Evaluation
	allocs  []*structs.Allocation // that hold resources
	ran     time.Duration
	expect  time.Duration
	asked   bool
}

func newFloor(t testing.TB, nodes, gpus int) *floor {
	f := &floor{t: t, now: testNow, index: 1, evicted: map[int]int{}, recent: structs.Preemptions{Queue: structs.QueueDefault}, queues: []*structs.Queue{{Path: structs.QueueRoot}}}
	for i := range nodes {
		n := &structs.Node{Name: fmt.Sprint("n", i), Datacenter: "dc1", Pool: structs.NodePoolDefault, Status: structs.NodeReady, Eligibility: structs.NodeEligible, Epoch: 1,
			Resources: structs.NodeResources{CPU: 100_000, Cores: 100, MHzPerCore: 1000, MemoryMiB: 1 << 20, DiskMiB: 1 << 20},
			Drivers:   map[string]*structs.DriverInfo{"exec": {Detected: true, Healthy: true}}}
		n.ID[0], n.ID[15] = byte(i+1), 1
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "X"}
		for k := range gpus {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, NUMANode: -1, MemoryMiB: 1000})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
		f.nodes = append(f.nodes, n)
	}
	f.view = model.NewView(f.index, f.nodes, nil, nil)
	return f
}

// submit adds a job of count allocations of each GPUs.
func (f *floor) submit(each int64, count int, expect time.Duration, preemptible bool) *floorJob {
	id := fmt.Sprint("j", len(f.jobs))
	j := &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Name: id, Type: structs.JobBatch, Priority: 50, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
		AllAtOnce: count > 1, Preemptible: preemptible, CreateIndex: 1, SpecIndex: 1, ModifyIndex: 1, SubmitTime: f.now,
		Groups: []*structs.Group{{Name: "g", Count: count, Joint: count > 1, Tasks: []*structs.Task{{Name: "t", Driver: "exec",
			Resources: structs.Resources{CPU: 100, MemoryMiB: 100, GPU: []structs.GPURequest{{Count: each}}}}}}}}
	fj := &floorJob{job: j, expect: expect, asked: true, entry: &structs.Workload{Namespace: j.Namespace, JobID: id, Domain: structs.NodePoolDefault, Priority: 50,
		SubmitIndex: structs.Index(len(f.jobs) + 1), SubmitTime: f.now}}
	f.jobs = append(f.jobs, fj)
	return fj
}

// save lets a job save its state before it is preempted.
func (j *floorJob) save() { j.job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1"} }

func (j *floorJob) workload(f *floor) contend.Workload {
	w := contend.Workload{Key: j.job.Key(), Job: j.job, Blocked: j.blocked, Queue: j.entry, Allocs: j.allocs, Expect: j.expect, Ran: j.ran, Least: contend.LeastOf(j.job)}
	if j.asked {
		f.evals++
		ev := &structs.Evaluation{Namespace: j.job.Namespace, JobID: j.job.ID, Type: j.job.Type, Priority: 50, Trigger: structs.TriggerJobRegister, Status: structs.EvalPending}
		binary.BigEndian.PutUint64(ev.ID[8:], f.evals)
		w.Evals = []*structs.Evaluation{ev}
	}
	return w
}

// table is the queues, what the cluster has, and what each user holds.
func (f *floor) table() *contend.QueueTable {
	t := &contend.QueueTable{Queues: slices.SortedFunc(slices.Values(f.queues), func(a, b *structs.Queue) int { return cmp.Compare(a.Path, b.Path) })}
	for _, n := range f.nodes {
		t.Total.GPUMilli += 1000 * int64(len(n.Resources.Devices[0].Instances))
	}
	t.Models = []structs.GPUCount{{Model: "X", Count: t.Total.GPUMilli / 1000}}
	for _, u := range f.past {
		u.Held = structs.Amount{}
		t.Usage = append(t.Usage, &u)
	}
	use := func(path structs.QueuePath, user string, a *structs.Allocation) {
		at := slices.IndexFunc(t.Usage, func(u *structs.QueueUsage) bool { return u.Path == path && u.User == user })
		if at < 0 {
			at = len(t.Usage)
			t.Usage = append(t.Usage, &structs.QueueUsage{Path: path, User: user, At: f.now})
		}
		t.Usage[at].Held = t.Usage[at].Held.Add(structs.Charge(a, structs.UseRow{Path: path, User: user}, f.alloc, f.queues[0].Billing.Of))
	}
	for _, j := range f.jobs {
		for _, a := range j.allocs {
			for path := range j.job.QueueName().Lineage() {
				use(path, "", a)
				if j.job.Submitter.Name != "" && path != structs.QueueRoot {
					use(path, j.job.Submitter.Name, a)
				}
			}
		}
	}
	slices.SortFunc(t.Usage, func(a, b *structs.QueueUsage) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.User, b.User))
	})
	return t
}

// alloc returns an allocation that holds something, or nil.
func (f *floor) alloc(id structs.AllocID) *structs.Allocation {
	for _, j := range f.jobs {
		for _, a := range j.allocs {
			if a.ID == id {
				return a
			}
		}
	}
	return nil
}

// input is what a pass decides about.
func (f *floor) input(order structs.Order) scheduler.Input {
	cfg := structs.SchedulerConfig{Order: order}
	in := scheduler.Input{View: f.view, Config: cfg, Now: f.now, Seed: uint64(f.now), Chooser: Choosers{}, Queues: f.table(), Evicted: []*structs.Preemptions{&f.recent}, OldEvents: f.old, GangTimes: f.resized}
	for _, j := range f.jobs {
		if len(j.allocs) > 0 {
			in.Running = append(in.Running, j.workload(f))
		} else {
			in.Pending = append(in.Pending, j.workload(f))
		}
	}
	in.Line = NewLine(in.Queues, cfg, in.Pending, f.now, in.Seed)
	return in
}

// pass decides once and carries the plan out: victims end at once. It returns how many were stopped and placed.
func (f *floor) pass(order structs.Order) (stopped, placed int) {
	in := f.input(order)
	byKey := map[structs.JobKey]*floorJob{}
	for _, j := range f.jobs {
		byKey[j.job.Key()] = j
	}
	plan, rep := scheduler.Schedule(in, policy.Builtin["binpack"])
	f.report = rep
	for _, e := range plan.Entries {
		j := byKey[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]
		verdict := verify.Verify(f.view, model.Overlay{}, e)
		for _, r := range verdict.Refused {
			f.t.Fatalf("Verify refuses part %d of %s: %s", r.Part, j.job.ID, r.Why)
		}
		var changes []structs.Changed[structs.Allocation]
		for p := range e.Parts {
			for _, s := range e.Parts[p].Stops {
				for _, v := range f.jobs {
					for k, a := range v.allocs {
						if a.ID != s.ID {
							continue
						}
						if !v.job.MayPreempt() {
							f.t.Fatalf("job %s is stopped and is not preemptible", v.job.ID)
						}
						if v.job.Priority > j.job.Priority {
							f.t.Fatalf("order %s: job %s of priority %d is stopped for %s of %d", order, v.job.ID, v.job.Priority, j.job.ID, j.job.Priority)
						}
						if !v.asked && v.job.Groups[0].Elastic == nil {
							f.evicted[j.job.Priority]++
							v.entry.Preempted++
							f.recent.Recent = append(f.recent.Recent, f.now)
							if !v.job.Saves() {
								v.ran = 0 // its work is lost
							}
							lost, gained := 0, 0
							shares := strings.HasPrefix(s.Desc, "preempted by job "+j.job.ID+" of ") && strings.Contains(s.Desc, ", with a smaller share in queue ")
							if shares && f.moved != nil {
								f.moved(v, j, s.Desc)
							}
							if _, why, _ := strings.Cut(s.Desc, ": "); !shares && !strings.HasPrefix(s.Desc, "preempted by job "+j.job.ID+", which goes before it in queue ") {
								f.t.Fatalf("job %s is told %q", v.job.ID, s.Desc)
							} else if _, err := fmt.Sscanf(why, "%d GPU seconds are lost, worth less than the %d gained", &lost, &gained); err != nil || lost >= gained {
								f.t.Fatalf("job %s is told %q: %v", v.job.ID, s.Desc, err)
							} else if f.evictedFor != nil {
								f.evictedFor(why)
							}
						}
						b := *a
						if stopped++; f.slow {
							b.Desired = structs.DesiredEvict
							changes = append(changes, structs.Changed[structs.Allocation]{Before: a, After: &b})
							v.allocs = slices.Clone(v.allocs)
							v.allocs[k] = &b
							break
						}
						b.Desired, b.Client, b.FinishedAt = structs.DesiredEvict, structs.ClientComplete, f.now
						changes = append(changes, structs.Changed[structs.Allocation]{Before: a, After: &b})
						v.allocs = append(append([]*structs.Allocation(nil), v.allocs[:k]...), v.allocs[k+1:]...)
						v.asked = v.job.Groups[0].Elastic == nil
						break
					}
				}
			}
			for _, pl := range e.Parts[p].Places {
				a := &structs.Allocation{ID: structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, e.Groups[pl.Group], pl.Index), EvalID: e.EvalID, Namespace: e.Namespace, JobID: e.JobID, Job: j.job,
					Group: e.Groups[pl.Group], NameIndex: pl.Index, NodeID: e.Nodes[pl.Node].ID, Resources: e.Asks[pl.Group], Grants: pl.Grants, Desired: structs.DesiredRun,
					Client: structs.ClientRunning, CreateTime: f.now, StartedAt: f.now}
				if f.slow {
					a.WaitsOn = pl.WaitsOn
				}
				changes = append(changes, structs.Changed[structs.Allocation]{After: a})
				j.allocs = append(append([]*structs.Allocation(nil), j.allocs...), a)
				placed++
				if f.placed != nil {
					f.placed(j)
				}
			}
		}
		for _, ev := range e.Evals {
			if ev.Status == structs.EvalBlocked {
				j.blocked = ev
			}
		}
		if len(e.Parts) > 0 {
			j.asked = len(j.allocs) == 0 && j.asked
		}
		f.index++
		f.view = f.view.Advance(structs.Delta{Index: f.index, Time: f.now, Allocs: changes})
	}
	for _, j := range f.jobs {
		if len(j.allocs) > 0 {
			j.asked, j.blocked = false, nil
		}
		if n := len(j.allocs); n != 0 && n != j.job.Groups[0].Count && j.job.AllAtOnce && j.job.Groups[0].Elastic == nil {
			f.t.Fatalf("job %s has %d of %d allocations", j.job.ID, n, j.job.Groups[0].Count)
		}
	}
	return stopped, placed
}

// wait lets time pass; running work makes progress, and some ends.
func (f *floor) wait(d time.Duration, ends func(*floorJob) bool) {
	use := f.table().Usage
	f.now, f.past = f.now.Add(d), nil
	for _, u := range use {
		u.Settle(f.now, structs.HalfLifeDefault, "")
		f.past = append(f.past, *u)
	}
	kept := f.jobs[:0:0]
	var changes []structs.Changed[structs.Allocation]
	for _, j := range f.jobs {
		if len(j.allocs) > 0 {
			j.ran += d
		}
		if len(j.allocs) == 0 || !ends(j) {
			kept = append(kept, j)
			continue
		}
		for _, a := range j.allocs {
			b := *a
			b.Client = structs.ClientComplete
			changes = append(changes, structs.Changed[structs.Allocation]{Before: a, After: &b})
		}
	}
	f.jobs = append(kept[:0:0], kept...)
	f.index++
	f.view = f.view.Advance(structs.Delta{Index: f.index, Time: f.now, Allocs: changes})
}

// orders are all orders that a queue may have, and lists of several.
func orders() []structs.Order { return append(Names(), "priority,fair", "fair,edf", "fcfs,lottery") }

// At one moment preemption comes to an end under every order: passes over their own outcome stop nothing more. Verify
// accepts what was decided, no gang runs partly, no protected work is stopped, and none for work of a lower priority.
func TestNoPreemptionLoop(t *testing.T) {
	stopped, placed, moments, waits := 0, 0, 0, 0
	byOrder := map[structs.Order]int{}
	for seed := range uint64(84) {
		rng := rand.New(rand.NewPCG(seed, 3))
		order := orders()[seed%uint64(len(orders()))]
		gpus := []int{4, 8, 7}[rng.IntN(3)]
		f := newFloor(t, 1+rng.IntN(6), gpus)
		priorities := []int{50}
		if rng.IntN(2) == 0 {
			priorities = []int{10, 50, 90}
		}
		id := 0
		for range 25 {
			for range rng.IntN(4) {
				each, count := int64(1+rng.IntN(gpus)), 1
				if rng.IntN(2) == 0 {
					each = int64(1) << rng.IntN(3)
				}
				if rng.IntN(4) == 0 {
					count = 1 + rng.IntN(len(f.nodes))
				}
				expect := time.Duration(rng.IntN(1000)) * time.Minute
				if rng.IntN(4) == 0 {
					expect = 0
				}
				j := f.submit(each, count, expect, rng.IntN(5) > 0)
				id++
				j.job.ID, j.entry.JobID, j.entry.SubmitIndex = fmt.Sprint("j", id), fmt.Sprint("j", id), structs.Index(id)
				j.job.Priority = priorities[rng.IntN(len(priorities))]
				j.entry.Priority = j.job.Priority
				j.job.Submitter.Name = []string{"ann", "bob", "cyd"}[rng.IntN(3)]
				if rng.IntN(2) == 0 {
					j.save()
				}
			}
			rounds := 0
			for ; ; rounds++ {
				s, p := f.pass(order)
				stopped, placed = stopped+s, placed+p
				byOrder[order] += s
				if s == 0 && p == 0 {
					break
				}
				if rounds > 60 {
					t.Fatalf("seed %d, order %s: %d passes at one moment, and the last one stopped %d and placed %d", seed, order, rounds, s, p)
				}
			}
			if s, _ := f.pass(order); s != 0 {
				t.Fatalf("seed %d, order %s: a pass over an outcome at rest stopped %d", seed, order, s)
			}
			moments++
			for _, j := range f.jobs {
				if len(j.allocs) == 0 {
					waits++
				}
			}
			f.wait(time.Duration(1+rng.IntN(200))*time.Minute, func(j *floorJob) bool {
				return j.expect > 0 && j.ran >= j.expect || j.expect == 0 && rng.IntN(6) == 0
			})
		}
	}
	t.Logf("%d moments, %d placed, %d stopped, %d waited; stopped under each order: %v", moments, placed, stopped, waits, byOrder)
	if stopped < 100 || waits < 1000 {
		t.Errorf("too little happened: %d stopped, %d waited", stopped, waits)
	}
}

// Under an order that shares, work that may be stopped is served as work that may not, as long as it has not run for
// preempt_min_runtime: queues and users take turns by their shares, and lots are drawn from the pass's seed.
func TestSharesHoldForPreemptibleWork(t *testing.T) {
	for _, order := range []structs.Order{structs.OrderFair, structs.OrderWeighted, "priority,fair", "fair,sjf", structs.OrderLottery} {
		t.Run(string(order), func(t *testing.T) {
			placed := 0
			for seed := range uint64(12) {
				history := func(preemptible bool) (out []string) {
					rng := rand.New(rand.NewPCG(seed, 5))
					f := newFloor(t, 1+rng.IntN(3), 4)
					f.queues = append(f.queues, &structs.Queue{Path: "a"}, &structs.Queue{Path: "b", Weight: 10})
					f.queues[0].PreemptMinRuntime = 1000 * time.Hour
					f.evals = 1 << 32
					for moment := range 20 {
						for range rng.IntN(4) {
							j := f.submit(int64(1+rng.IntN(4)), 1, time.Duration(1+rng.IntN(300))*time.Minute, preemptible)
							j.job.Queue = []structs.QueuePath{"a", "a", "a", "b"}[rng.IntN(4)]
							j.job.Submitter.Name = []string{"ann", "ann", "bob"}[rng.IntN(3)]
							j.entry.Queue, j.entry.SubmitIndex = j.job.Queue, structs.Index(100*moment+len(f.jobs))
							j.job.ID = fmt.Sprintf("m%d-%d", moment, len(f.jobs))
							j.entry.JobID = j.job.ID
						}
						f.placed = func(j *floorJob) { out = append(out, fmt.Sprint(moment, j.job.ID)) }
						for {
							if s, p := f.pass(order); s+p == 0 {
								break
							}
						}
						f.wait(time.Duration(1+rng.IntN(100))*time.Minute, func(j *floorJob) bool { return j.ran >= j.expect })
					}
					for _, n := range f.evicted {
						t.Errorf("seed %d: %d jobs were stopped", seed, n)
					}
					return out
				}
				want, got := history(false), history(true)
				if !slices.Equal(got, want) {
					t.Fatalf("seed %d: preemptible work starts in the order\n%v\nwant as other work\n%v", seed, got, want)
				}
				placed += len(want)
			}
			if placed < 200 {
				t.Errorf("only %d jobs were placed", placed)
			}
		})
	}
}

// settle makes passes until one changes nothing.
func (f *floor) settle(order structs.Order) {
	for {
		if s, p := f.pass(order); s+p == 0 {
			return
		}
	}
}

// limitsOrders are the two choosers: by worth and by key.
var limitsOrders = []structs.Order{structs.OrderAdaptive, structs.OrderSRTF}

// A job is preempted ten times at most, or as often as its queue says.
func TestPreemptMax(t *testing.T) {
	for _, order := range limitsOrders {
		for _, most := range []int64{0, 2} {
			want := max(most, 10)
			if most > 0 {
				want = most
			}
			f := newFloor(t, 1, 1)
			f.queues[0].PreemptMax = most
			long := f.submit(1, 1, 1000*time.Hour, true)
			long.save()
			f.settle(order)
			for range want + 3 {
				f.wait(time.Hour, func(j *floorJob) bool { return j.ran >= j.expect })
				f.settle(order)
				f.wait(time.Hour, func(j *floorJob) bool { return j.ran >= j.expect })
				j := f.submit(1, 1, 30*time.Minute, false)
				j.job.ID = fmt.Sprint("short", f.evals)
				j.entry.JobID, j.entry.SubmitIndex = j.job.ID, structs.Index(10+f.evals)
				f.settle(order)
			}
			if long.entry.Preempted != want {
				t.Errorf("%s, preempt_max %d: the job was preempted %d times, want %d", order, most, long.entry.Preempted, want)
			}
		}
	}
}

// The rate of a queue limits the jobs that are preempted in an hour, and preempt_after how soon a job may preempt.
func TestPreemptRateAndAfter(t *testing.T) {
	for _, order := range limitsOrders {
		start := func(q structs.Queue) (f *floor, long []*floorJob) {
			f = newFloor(t, 1, 2)
			q.Path = structs.QueueRoot
			f.queues[0] = &q
			for range 2 {
				long = append(long, f.submit(1, 1, 100*time.Hour, true))
				long[len(long)-1].save()
			}
			f.settle(order)
			f.wait(10*time.Minute, func(*floorJob) bool { return false })
			for range 2 {
				f.submit(1, 1, 30*time.Minute, false)
			}
			f.settle(order)
			return f, long
		}
		preempted := func(long []*floorJob) int64 { return long[0].entry.Preempted + long[1].entry.Preempted }
		never := func(*floorJob) bool { return false }

		if _, long := start(structs.Queue{}); preempted(long) != 2 {
			t.Errorf("%s: without limits %d are preempted, want 2", order, preempted(long))
		}
		for _, c := range []struct {
			limit string
			q     structs.Queue
			early time.Duration
			want  int64 // preempted by then; 2 minutes later both are
		}{
			{"a rate of 1 an hour", structs.Queue{PreemptRate: 1}, 59 * time.Minute, 1},
			{"preempt_after of 10 minutes", structs.Queue{PreemptAfter: 10 * time.Minute}, 9 * time.Minute, 0},
		} {
			f, long := start(c.q)
			f.wait(c.early, never)
			f.settle(order)
			if preempted(long) != c.want {
				t.Errorf("%s: with %s, %d are preempted after %s, want %d", order, c.limit, preempted(long), c.early, c.want)
			}
			f.wait(2*time.Minute, never)
			f.settle(order)
			if preempted(long) != 2 {
				t.Errorf("%s: with %s, %d are preempted 2 minutes later, want 2", order, c.limit, preempted(long))
			}
		}
	}
}

// Work that loses more than is gained is left alone, under every order: it saves nothing and is nearly done, and what
// waits is short.
func TestLossIsCharged(t *testing.T) {
	for _, order := range orders() {
		for _, saves := range []bool{false, true} {
			f := newFloor(t, 1, 1)
			long := f.submit(1, 1, 20*time.Hour, true)
			long.job.Priority, long.entry.Priority = 49, 49 // every order but those by run times goes by priority
			if saves {
				long.save()
			}
			f.settle(order)
			f.wait(15*time.Hour, func(*floorJob) bool { return false })
			f.submit(1, 1, 30*time.Minute, false)
			f.settle(order)
			if stopped := long.entry.Preempted > 0; stopped != saves && (order != structs.OrderEDF || stopped) {
				t.Errorf("%s: work that saves %v and has run for 15 h is preempted for 30 min: %v", order, saves, stopped)
			}
		}
	}
}

// TestPartsAreTaken: of work that runs in parts, only as much is stopped as is needed, and what is said to be lost is what those
// parts lose. A job that runs as a whole stops as a whole.
func TestPartsAreTaken(t *testing.T) {
	for _, order := range orders() {
		if order == structs.OrderMLFQ {
			continue // both are of one level, and the older goes first
		}
		for _, whole := range []bool{false, true} {
			f := newFloor(t, 1, 8)
			low := f.submit(2, 4, 10*time.Hour, true)
			low.job.Priority, low.entry.Priority, low.job.AllAtOnce, low.job.Groups[0].Joint = 20, 20, whole, whole
			f.pass(order)
			f.wait(2*time.Minute, func(*floorJob) bool { return false })
			high := f.submit(4, 1, time.Hour, false)
			high.job.Priority, high.entry.Priority = 90, 90
			want := 2
			if whole {
				want = 4
			}
			if stopped, placed := f.pass(order); stopped != want || placed != 1 || len(low.allocs) != 4-want || len(high.allocs) != 1 {
				t.Errorf("order %s, as a whole %v: %d allocations are stopped, %d of them left, want %d stopped", order, whole, stopped, len(low.allocs), want)
			}
		}
	}
}

// TestPartsAreJudged: whether work that runs in parts may be preempted depends on what the parts lose that would stop, and those
// that lose least do. What is said has the same figures. Work that runs as a whole is judged as a whole.
func TestPartsAreJudged(t *testing.T) {
	for name, c := range map[string]struct {
		whole bool
		saved int   // parts that have saved their state a moment ago; each of the others would lose two hours
		needs int64 // GPUs of the job that waits
		stops int
		says  string
	}{
		"one part is cheap":            {false, 1, 2, 1, "60 GPU seconds are lost, worth less than the 9600 gained"},
		"both parts together are":      {false, 1, 4, 2, "14520 GPU seconds are lost, worth less than the 19200 gained"},
		"a part alone is too dear":     {false, 0, 2, 0, "preempting j0 (saves by itself) is too costly: 14460 GPU seconds would be lost, and 9600 gained"},
		"two together are too dear":    {false, 0, 4, 0, "preempting j0 (saves by itself) is too costly: 28920 GPU seconds would be lost, and 19200 gained"},
		"a whole is too dear":          {true, 1, 2, 0, "preempting j0 (saves by itself) is too costly: 43440 GPU seconds would be lost, and 9600 gained"},
		"a whole that saved is cheap":  {true, 4, 2, 4, "240 GPU seconds are lost, worth less than the 9600 gained"},
		"all parts saved, one is used": {false, 4, 2, 1, "60 GPU seconds are lost, worth less than the 9600 gained"},
	} {
		for _, order := range []structs.Order{structs.OrderAdaptive, structs.OrderFCFS, structs.OrderFair} {
			f := newFloor(t, 1, 8)
			low := f.submit(2, 4, 100*time.Hour, true)
			low.job.Priority, low.entry.Priority, low.job.AllAtOnce, low.job.Groups[0].Joint = 10, 10, c.whole, c.whole
			low.job.Groups[0].Checkpoint = &structs.Checkpoint{Path: "x", Cost: 30 * time.Second}
			f.settle(order)
			f.wait(2*time.Hour, func(*floorJob) bool { return false })
			for i := range c.saved {
				old := low.allocs[i]
				b := *old
				b.Saved = &structs.Saved{Time: f.now}
				low.allocs[i], f.index = &b, f.index+1
				f.view = f.view.Advance(structs.Delta{Index: f.index, Time: f.now, Allocs: []structs.Changed[structs.Allocation]{{Before: old, After: &b}}})
			}
			urgent := f.submit(c.needs, 1, time.Minute, false)
			urgent.job.Priority, urgent.entry.Priority = 90, 90
			said := ""
			f.evictedFor = func(why string) { said = why }
			stopped, placed := f.pass(order)
			said = cmp.Or(f.spared(urgent), said)
			if stopped != c.stops || (placed == 1) != (c.stops > 0) || said != c.says {
				t.Errorf("%s, order %s: %d stopped and %d placed, want %d stopped: %q, want %q", name, order, stopped, placed, c.stops, said, c.says)
			}
		}
	}
}

// spared returns why the last pass preempted nothing for a job; "" if it does not say so.
func (f *floor) spared(j *floorJob) (said string) {
	for _, w := range f.report.Workloads {
		for _, g := range w.Groups {
			for _, r := range g.Refusals {
				if w.Key == j.job.Key() && r.Code == structs.ReasonPriority {
					said = r.Text()
				}
			}
		}
	}
	return said
}

// TestOnlyTheNeededIsNamed: what is said to be too costly to preempt is what would have to stop, not also cheaper work whose place
// would not do.
func TestOnlyTheNeededIsNamed(t *testing.T) {
	f := newFloor(t, 2, 2)
	for _, x := range []struct {
		gpus    int64
		preempt bool
	}{{2, true}, {1, false}, {1, true}} { // the last loses least, but its neighbour stays
		low := f.submit(x.gpus, 1, 100*time.Hour, x.preempt)
		low.job.Priority, low.entry.Priority = 10, 10
		f.settle(structs.OrderFCFS)
	}
	f.wait(2*time.Hour, func(*floorJob) bool { return false })
	urgent := f.submit(2, 1, time.Minute, false)
	urgent.job.Priority, urgent.entry.Priority = 90, 90
	if stopped, placed := f.pass(structs.OrderFCFS); stopped != 0 || placed != 0 {
		t.Fatalf("%d stopped and %d placed, want none", stopped, placed)
	}
	said := f.spared(urgent)
	if want := "preempting j0 is too costly: 14400 GPU seconds would be lost, and 9600 gained"; said != want {
		t.Errorf("said %q, want %q", said, want)
	}
}

// A job of a higher priority is not held up by a prediction of less than a second, learned from other work.
func TestUrgentDespitePrediction(t *testing.T) {
	for _, order := range []structs.Order{structs.OrderAdaptive, structs.OrderFCFS, structs.OrderFair, structs.OrderWeighted, structs.OrderPriority} { // which heed priorities
		f := newFloor(t, 1, 8)
		low := f.submit(8, 1, 500*time.Millisecond, true)
		low.job.Priority, low.entry.Priority = 10, 10
		low.save()
		f.settle(order)
		f.wait(2*time.Minute, func(*floorJob) bool { return false })
		urgent := f.submit(8, 1, 500*time.Millisecond, false)
		urgent.job.Priority, urgent.entry.Priority = 90, 90
		f.settle(order)
		if len(urgent.allocs) == 0 {
			t.Errorf("%s: priority 90 waits for priority 10", order)
		}
	}
}

// A job that waits for running work of a lower priority learns why that is not preempted, with figures: it began too recently,
// or it would lose too much. When it has saved its state, it is.
func TestDeclinedIsSaid(t *testing.T) {
	for _, order := range []structs.Order{structs.OrderAdaptive, structs.OrderFCFS, structs.OrderFair} {
		f := newFloor(t, 1, 8)
		low := f.submit(8, 1, 100*time.Hour, true)
		low.job.Priority, low.entry.Priority = 10, 10
		low.job.Groups[0].Checkpoint = &structs.Checkpoint{Path: "x", Cost: 30 * time.Second}
		f.settle(order)
		f.wait(10*time.Second, func(*floorJob) bool { return false })
		urgent := f.submit(8, 1, time.Minute, false)
		urgent.job.Priority, urgent.entry.Priority = 90, 90
		note := func() string {
			f.settle(order)
			for _, w := range f.report.Workloads {
				if w.Key == urgent.job.Key() {
					for _, r := range w.Groups[0].Refusals {
						if r.Code == structs.ReasonPriority {
							return fmt.Sprintf("%s; %d %s; %s", r.Text(), r.Short, r.Unit, r.CuredBy)
						}
					}
				}
			}
			return ""
		}
		if got, want := note(), "j0 may not be preempted before "+f.now.Add(50*time.Second).Time().Format(time.RFC3339)+" (preempt_min_runtime); 50 seconds; time"; got != want {
			t.Errorf("%s: it is told %q, want %q", order, got, want)
		}
		f.wait(2*time.Hour, func(*floorJob) bool { return false })
		urgent.asked = true
		if got, want := note(), "preempting j0 (saves by itself) is too costly: 57920 GPU seconds would be lost, and 38400 gained; 19520 GPU seconds; saved"; got != want {
			t.Errorf("%s: it is told %q, want %q", order, got, want)
		}
		f.old, urgent.asked = true, true
		if got, want := note(), "preempting j0 (saves by itself) is too costly: 57920 GPU seconds would be lost, and 38400 gained; 19520 GPU seconds; "; got != want {
			t.Errorf("%s, in a format without the event: it is told %q, want %q", order, got, want)
		}
		f.old = false
		b := *low.allocs[0]
		b.Saved = &structs.Saved{Time: f.now}
		f.index++
		f.view = f.view.Advance(structs.Delta{Index: f.index, Time: f.now, Allocs: []structs.Changed[structs.Allocation]{{Before: low.allocs[0], After: &b}}})
		low.allocs = []*structs.Allocation{&b}
		urgent.asked = true
		if f.settle(order); len(urgent.allocs) == 0 {
			t.Errorf("%s: work that has saved its state is not preempted: %s", order, note())
		}
	}
}

// TestNarrowWorkMoves: the room that long work leaves is in pieces, so narrower work moves from the node where it may be stopped to
// the other one.
func TestNarrowWorkMoves(t *testing.T) {
	f := newFloor(t, 2, 4)
	for i, runs := range []time.Duration{40 * time.Minute, 100 * time.Hour, 40 * time.Minute, 100 * time.Hour} { // two to a node
		j := f.submit(2, 1, runs, i > 0)
		if i > 0 {
			j.save()
		}
		f.pass(structs.OrderSJF)
	}
	f.wait(5*time.Minute, func(*floorJob) bool { return false })
	f.submit(4, 1, time.Hour, true)
	f.settle(structs.OrderSJF)
	var got []string
	for _, j := range f.jobs {
		at := "nowhere"
		for _, n := range f.nodes {
			if len(j.allocs) == 1 && j.allocs[0].NodeID == n.ID {
				at = n.Name
			}
		}
		got = append(got, at)
	}
	if want := "n0 nowhere n0 nowhere n1"; strings.Join(got, " ") != want {
		t.Errorf("the jobs are on %s, want %s", strings.Join(got, " "), want)
	}
}
