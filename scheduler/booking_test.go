package scheduler_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

const bookNow = structs.LogTime(1_700_000_000_000_000_000)

// timed is a batch job of one group with a limit.
func timed(name string, count int, cpu, gpus int64, limit time.Duration) *structs.Job {
	j := job(name, count)
	j.Type, j.Runtime.Limit, j.SubmitTime = structs.JobBatch, limit, bookNow-1
	r := &j.Groups[0].Tasks[0].Resources
	r.CPU, r.MemoryMiB = cpu, 1
	j.Groups[0].Disk.SizeMiB = 0
	if gpus > 0 {
		r.GPU = []structs.GPURequest{{Count: gpus}}
	}
	return j
}

// holds is an allocation of a job on a node that ends at a time after now, as far as is known.
func holds(n *structs.Node, j *structs.Job, i int, end time.Duration, devices []int) *structs.Allocation {
	began := bookNow.Add(end - j.Runtime.Limit)
	a := &structs.Allocation{ID: structs.AllocID(id("held", i)), Namespace: j.Namespace, JobID: j.ID, Job: j, Group: "g", NodeID: n.ID,
		Resources: structs.Vector{CPU: j.Groups[0].Tasks[0].Resources.CPU, MemoryMiB: 1}, Client: structs.ClientRunning, Desired: structs.DesiredRun, CreateTime: began}
	for _, d := range devices {
		g := &n.Resources.Devices[0]
		a.Grants = append(a.Grants, structs.Grant{Task: "t", Device: g.ID(), Instance: g.Instances[d].ID})
	}
	return a
}

func gpuNode(n int, gpus int) *structs.Node {
	x := node(n)
	if gpus > 0 {
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for i := range gpus {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", n, i), Healthy: true, MemoryMiB: 80 << 10})
		}
		x.Resources.Devices = []structs.DeviceGroup{g}
	}
	return x
}

func rules(backfill string) structs.SchedulerConfig {
	return structs.SchedulerConfig{Order: structs.OrderFCFS, Backfill: backfill}
}

// placed returns which jobs of a plan have placements, and its reservations.
func placed(p scheduler.Plan) (string, []*structs.Reservation) {
	var b bytes.Buffer
	var rs []*structs.Reservation
	for _, e := range p.Entries {
		n := 0
		for _, part := range e.Parts {
			n += len(part.Places)
		}
		if n > 0 {
			fmt.Fprintf(&b, "%s:%d ", e.JobID, n)
		}
		if e.Reservation != nil {
			rs = append(rs, e.Reservation)
		}
	}
	return b.String(), rs
}

// A blocked job gets a reservation for the first room; short work passes it, and so does work that leaves the room
// free.
func TestEASYByHand(t *testing.T) {
	n := node(1) // 4000 MHz
	run := timed("run", 1, 3000, 0, 2*time.Hour)
	held := holds(n, run, 1, time.Hour, nil)
	wide := timed("wide", 1, 3500, 0, time.Hour)      // needs the end of run, in an hour; leaves 500 free
	long := timed("long", 1, 600, 0, 2*time.Hour)     // would still hold 600 then
	narrow := timed("narrow", 1, 500, 0, 9*time.Hour) // fits in what wide leaves
	short := timed("short", 1, 500, 0, time.Hour)     // has ended by then
	for i, j := range []*structs.Job{wide, long, narrow, short} {
		j.CreateIndex = structs.Index(10 + i)
	}
	for _, c := range []struct{ backfill, want string }{
		{structs.BackfillEASY, "narrow:1 short:1 "},
		{structs.BackfillSJF, "short:1 narrow:1 "},
		{structs.BackfillConservative, "narrow:1 short:1 "},
		{structs.BackfillGreedy, "long:1 "},
		{structs.BackfillNone, ""},
	} {
		t.Run(c.backfill, func(t *testing.T) {
			in := scheduler.Input{View: model.NewView(1, []*structs.Node{n}, []*structs.Allocation{held}, nil), Now: bookNow, Config: rules(c.backfill),
				Pending: []contend.Workload{load(wide, 1), load(long, 2), load(narrow, 3), load(short, 4)}}
			in.Line = queue.NewLine(nil, in.Config, in.Pending, in.Now, 0)
			plan, rep := scheduler.Schedule(in, binpack)
			got, rs := placed(plan)
			if got != c.want {
				t.Errorf("%s: placed %q, want %q", c.backfill, got, c.want)
			}
			switch c.backfill {
			case structs.BackfillEASY, structs.BackfillSJF:
				if len(rs) != 1 || rs[0].JobID != "wide" || rs[0].Start != bookNow.Add(time.Hour) || rs[0].Basis != structs.ReserveLimit {
					t.Errorf("%s: reservations %+v", c.backfill, rs)
				}
				for _, w := range rep.Workloads {
					if c.backfill == structs.BackfillEASY && w.Key.ID == "long" && w.Groups[0].Code != structs.ReasonReservation {
						t.Errorf("%s: long waits for %s", c.backfill, w.Groups[0].Code)
					}
				}
			case structs.BackfillConservative:
				if len(rs) != 2 || rs[1].JobID != "long" || rs[1].Start != bookNow.Add(2*time.Hour) {
					t.Errorf("conservative: reservations %+v", rs)
				}
			}
			// The same again with the reservation in force: nothing to write about it.
			if c.backfill == structs.BackfillEASY {
				in.Reserved = rs
				in.Line = nil
				if _, again := placed(must(scheduler.Schedule(in, binpack))); len(again) != 0 {
					t.Errorf("the promise is written again: %+v", again[0])
				}
				in.Pending = in.Pending[1:] // wide is not decided, and keeps its reservation
				if got, _ := placed(must(scheduler.Schedule(in, binpack))); got != "narrow:1 short:1 " {
					t.Errorf("without the blocked job in the pass: %q", got)
				}
			}
		})
	}
}

// Reservations are only made within the queue's window: with a shorter window, a job that could only start later has
// none yet, and the next one gets it.
func TestBackfillWindow(t *testing.T) {
	n := node(1) // 4000 MHz
	held := holds(n, timed("run", 1, 3000, 0, 2*time.Hour), 1, time.Hour, nil)
	wide, long := timed("wide", 1, 3500, 0, time.Hour), timed("long", 1, 600, 0, 2*time.Hour)
	for _, c := range []struct {
		window time.Duration
		waited time.Duration
		want   string
		owed   int
	}{{0, 0, "", 1}, {2 * time.Hour, 0, "", 1}, {30 * time.Minute, 0, "long:1 ", 0}, {30 * time.Minute, 25 * time.Hour, "", 1}} {
		w := load(wide, 1)
		if w.Queue == nil {
			w.Queue = &structs.Workload{Namespace: wide.Namespace, JobID: wide.ID, SubmitIndex: 1}
		}
		w.Queue.SubmitTime = bookNow.Add(-c.waited)
		in := scheduler.Input{View: model.NewView(1, []*structs.Node{n}, []*structs.Allocation{held}, nil), Now: bookNow, Config: rules(structs.BackfillEASY),
			Queues: &contend.QueueTable{Queues: []*structs.Queue{{Path: structs.QueueRoot, BackfillWindow: c.window}}}, Pending: []contend.Workload{w, load(long, 2)}}
		plan, rep := scheduler.Schedule(in, binpack)
		got, rs := placed(plan)
		if got != c.want || len(rs) != c.owed {
			t.Errorf("window %v after %v of waiting: placed %q, want %q, with %d promises, want %d", c.window, c.waited, got, c.want, len(rs), c.owed)
		}
		if start := rep.Workloads[0].Start; start != bookNow.Add(time.Hour) {
			t.Errorf("window %v: start told %v", c.window, start)
		}
	}
}

// Under earliest deadline first, work that passes a blocked job is tried by deadline, with every kind of backfilling:
// of two jobs that fit only one at a time, the one with less time left is placed.
func TestBackfillByDeadline(t *testing.T) {
	n := node(1) // 4000 MHz
	held := holds(n, timed("run", 1, 3000, 0, 2*time.Hour), 1, time.Hour, nil)
	due := func(name string, cpu int64, limit, deadline time.Duration, submit int) *structs.Job {
		j := timed(name, 1, cpu, 0, limit)
		j.Deadline, j.Runtime.Expected, j.CreateIndex = bookNow.Add(deadline), limit, structs.Index(submit)
		return j
	}
	first := due("first", 3500, time.Hour, 150*time.Minute, 10) // has to wait for run
	soon := due("soon", 600, 50*time.Minute, 3*time.Hour, 13)
	later := due("later", 600, 20*time.Minute, 4*time.Hour, 11)
	for _, backfill := range []string{structs.BackfillEASY, structs.BackfillSJF, structs.BackfillConservative, structs.BackfillGreedy} {
		cfg := rules(backfill)
		cfg.Order = structs.OrderEDF
		in := scheduler.Input{View: model.NewView(1, []*structs.Node{n}, []*structs.Allocation{held}, nil), Now: bookNow, Config: cfg,
			Pending: []contend.Workload{load(later, 1), load(soon, 3), load(first, 2)}}
		in.Line = queue.NewLine(nil, cfg, in.Pending, in.Now, 0)
		if got, _ := placed(must(scheduler.Schedule(in, binpack))); got != "soon:1 " {
			t.Errorf("%s: placed %q", backfill, got)
		}
	}
}

func must(p scheduler.Plan, _ scheduler.Report) scheduler.Plan { return p }

// Operators' reservations keep work off their nodes that would still run in the window.
func TestOperatorReservation(t *testing.T) {
	a, b := node(1), node(2)
	mine := timed("mine", 1, 3000, 0, 3*time.Hour)
	mine.Submitter.Name = "ann"
	brief := timed("brief", 1, 3000, 0, time.Hour)
	other := timed("other", 1, 3000, 0, 3*time.Hour)
	r := &structs.Reservation{ID: "course", Domain: structs.NodePoolDefault, Start: bookNow.Add(2 * time.Hour), End: bookNow.Add(5 * time.Hour), Nodes: []structs.NodeID{a.ID}, Users: []string{"ann"}}
	full := holds(b, timed("full", 1, 4000, 0, 9*time.Hour), 1, 9*time.Hour, nil)
	try := func(j *structs.Job) string {
		in := scheduler.Input{View: model.NewView(1, []*structs.Node{a, b}, []*structs.Allocation{full}, nil), Now: bookNow, Config: rules(structs.BackfillEASY),
			Pending: []contend.Workload{load(j, 1)}, Reserved: []*structs.Reservation{r}}
		got, _ := placed(must(scheduler.Schedule(in, binpack)))
		return got
	}
	if got := try(mine) + try(brief) + try(other); got != "mine:1 brief:1 " {
		t.Errorf("placed %q", got)
	}
	r.Maintenance = true
	if got := try(mine) + try(brief); got != "brief:1 " {
		t.Errorf("before maintenance: placed %q", got)
	}
}

// bookWorld is a random cluster that is partly held, and jobs that wait.
func bookWorld(rng *rand.Rand) scheduler.Input {
	var nodes []*structs.Node
	var allocs []*structs.Allocation
	for n := range 1 + rng.IntN(5)*rng.IntN(2) {
		gpus := rng.IntN(2) * 4
		x := gpuNode(n+1, gpus)
		nodes = append(nodes, x)
		for cpu, dev := int64(4000), 0; ; {
			j := timed(fmt.Sprintf("run-%d-%d", n, len(allocs)), 1, 100+rng.Int64N(2500), 0, time.Duration(1+rng.IntN(10))*time.Hour)
			if cpu -= j.Groups[0].Tasks[0].Resources.CPU; cpu < 0 || rng.IntN(5) == 0 {
				break
			}
			var devs []int
			for dev < gpus && rng.IntN(2) == 0 {
				devs = append(devs, dev)
				dev++
			}
			if rng.IntN(8) == 0 {
				j.Runtime.Limit = 0 // unknown
			}
			a := holds(x, j, len(allocs), time.Duration(rng.Int64N(int64(j.Runtime.Limit)+1)), devs)
			if rng.IntN(3) == 0 && j.Runtime.Limit > 0 {
				a.Expect = j.Runtime.Limit / time.Duration(1+rng.IntN(4))
			}
			allocs = append(allocs, a)
		}
	}
	in := scheduler.Input{View: model.NewView(1, nodes, allocs, nil), Now: bookNow}
	backfills := []string{structs.BackfillEASY, structs.BackfillSJF, structs.BackfillConservative, structs.BackfillGreedy, structs.BackfillNone}
	orders := []structs.Order{structs.OrderFCFS, structs.OrderAdaptive, structs.OrderPriority}
	in.Config = structs.SchedulerConfig{Order: orders[rng.IntN(3)], Backfill: backfills[rng.IntN(5)]}
	in.Queues = &contend.QueueTable{Turnover: time.Duration(rng.IntN(3)) * time.Hour}
	for i := range 1 + rng.IntN(12) {
		j := timed(fmt.Sprintf("w%02d", i), 1+rng.IntN(3)*rng.IntN(2), 200+rng.Int64N(4000), rng.Int64N(5)*rng.Int64N(2), time.Duration(rng.IntN(8))*time.Hour)
		j.AllAtOnce = rng.IntN(2) == 0
		j.CreateIndex = structs.Index(i + 1)
		w := load(j, i)
		if rng.IntN(3) > 0 && j.Runtime.Limit > 0 {
			w.Expect = j.Runtime.Limit / time.Duration(1+rng.IntN(5))
		}
		if rng.IntN(4) > 0 { // decided before
			w.Blocked, w.Evals = w.Evals[0], nil
			w.Blocked.Status = structs.EvalBlocked
		}
		w.Queue = &structs.Workload{Namespace: j.Namespace, JobID: j.ID, Domain: structs.NodePoolDefault, SubmitIndex: j.CreateIndex, SubmitTime: bookNow.Add(-time.Duration(rng.IntN(100)) * time.Hour), Priority: 50}
		in.Pending = append(in.Pending, w)
	}
	return in
}

func line(in *scheduler.Input) contend.Line {
	return queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
}

// A pass that refuses work quickly makes the same placements and reservations as one that does not, and a dump of it refuses the same
// work: that has no report, and keeps the reason it had.
func TestQuickRefusalChangesNothing(t *testing.T) {
	refused, promised := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 11))
		in := bookWorld(rng)
		in.Line = line(&in)
		slow, rep := scheduler.Schedule(in, binpack)
		for i := range in.Pending {
			in.Pending[i].Least = contend.LeastOf(in.Pending[i].Job)
		}
		dump, err := scheduler.Dump(in, binpack.Name())
		if err != nil {
			t.Fatal(err)
		}
		in.Line = line(&in)
		quick, qrep := scheduler.Schedule(in, binpack)
		if again, _, err := queue.Load(dump); err != nil {
			t.Fatal(err)
		} else if _, arep := scheduler.Schedule(again, binpack); !slices.EqualFunc(qrep.Workloads, arep.Workloads, func(a, b scheduler.WorkloadReport) bool { return a.Key == b.Key }) {
			t.Fatalf("seed %d: %d reports, and %d of the dump", seed, len(qrep.Workloads), len(arep.Workloads))
		}
		refused += len(rep.Workloads) - len(qrep.Workloads)
		keep := func(p scheduler.Plan) (out scheduler.Plan) {
			for _, e := range p.Entries {
				if len(e.Parts) > 0 || e.Reservation != nil {
					out.Entries = append(out.Entries, e)
				}
				if e.Reservation != nil {
					promised++
				}
			}
			return out
		}
		a, b := scheduler.AppendPlan(nil, keep(slow)), scheduler.AppendPlan(nil, keep(quick))
		if !bytes.Equal(a, b) {
			x, _ := placed(slow)
			y, _ := placed(quick)
			t.Fatalf("seed %d (%s, %s): with quick refusal %q, without %q", seed, in.Config.Order, in.Config.Backfill, y, x)
		}
	}
	if refused < 1000 || promised < 1000 {
		t.Errorf("only %d refusals and %d promises", refused, promised)
	}
	t.Logf("%d workloads refused from the memo, %d promises", refused, promised)
}

// What waited for another job and now finds no room is decided: its evaluation must say that it waits for room, or no end
// of other work would wake it.
func TestQuickRefusalOnlyOfWhatWaitsForRoom(t *testing.T) {
	in := scheduler.Input{View: benchView(5), Now: bookNow, Config: rules(structs.BackfillGreedy)}
	for i := range 30 {
		j := job(fmt.Sprintf("j%d", i), 1)
		j.Type, j.SubmitTime = structs.JobBatch, bookNow
		j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: 100_000, MemoryMiB: 10}
		w := load(j, i)
		w.Least = contend.LeastOf(j)
		if i%2 == 1 {
			w.Gate = &structs.Refusal{Code: structs.ReasonDependency, Obstacle: structs.Obstacle{Dimension: structs.DimensionDependency}, CuredBy: structs.EventJobEnded}
		}
		in.Pending = append(in.Pending, w)
	}
	plan, _ := scheduler.Schedule(in, binpack)
	for i, e := range plan.Entries {
		l := &in.Pending[i]
		l.Evals, l.Queue, l.Gate = nil, e.Workload, nil
		for _, ev := range e.Evals {
			if ev.Status == structs.EvalBlocked {
				l.Blocked = ev
			}
		}
	}
	plan, rep := scheduler.Schedule(in, binpack)
	told := map[string]structs.ReasonCode{}
	for _, e := range plan.Entries {
		for _, ev := range e.Evals {
			told[e.JobID] = ev.FailedGroups[0].Code
		}
	}
	for i := range in.Pending {
		want := structs.ReasonNone // its answer stays
		if i%2 == 1 {
			want = structs.ReasonResources
		}
		if id := in.Pending[i].Job.ID; told[id] != want {
			t.Errorf("%s is told %q, want %q", id, told[id], want)
		}
	}
	if quick := len(in.Pending) - len(rep.Workloads); quick == 0 {
		t.Error("nothing was refused without a decision")
	}
}

// No backfill delays a reservation, relative to the ends it was based on: when it begins, everything reserved fits next
// to all that is then still held. The test counts from the plan alone, not from the scheduler's data.
func TestBackfillDelaysNoPromise(t *testing.T) {
	checks, passed, guessed := 0, 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 12))
		in := bookWorld(rng)
		in.Line = line(&in)
		byID := map[string]*contend.Workload{}
		for i := range in.Pending {
			byID[in.Pending[i].Key.ID] = &in.Pending[i]
		}
		plan, _ := scheduler.Schedule(in, policy.Builtin["worst-fit"])
		type use struct {
			end  structs.LogTime // 0: never
			cpu  int64
			devs []string
		}
		on := map[structs.NodeID][]use{}
		total := map[structs.NodeID]int64{}
		in.View.EachHeld(func(n *structs.Node, end structs.LogTime, need structs.Vector, grants []structs.Grant) {
			u := use{end: end, cpu: need.CPU}
			for _, g := range grants {
				u.devs = append(u.devs, g.Instance)
			}
			on[n.ID] = append(on[n.ID], u)
		}, in.Now)
		in.View.EachNode(func(n *structs.Node) bool { total[n.ID] = n.Resources.CPU; return true })
		for _, e := range plan.Entries {
			for _, p := range e.Parts {
				for i := range p.Places {
					pl := &p.Places[i]
					w := byID[e.JobID]
					u := use{cpu: e.Asks[pl.Group].CPU}
					if lasts := max(w.Expect, 0); lasts > 0 {
						u.end = in.Now.Add(lasts)
					} else if w.Job.Runtime.Limit > 0 {
						u.end = in.Now.Add(w.Job.Runtime.Limit)
					}
					for _, g := range pl.Grants {
						u.devs = append(u.devs, g.Instance)
					}
					on[e.Nodes[pl.Node].ID] = append(on[e.Nodes[pl.Node].ID], u)
				}
			}
		}
		var rs []*structs.Reservation
		for i, e := range plan.Entries {
			if e.Reservation == nil {
				continue
			}
			if e.Reservation.Basis == structs.ReserveGuessed { // it counts on guessed ends, and moves when they do not come
				guessed++
			} else {
				rs = append(rs, e.Reservation)
			}
			for _, later := range plan.Entries[i+1:] {
				passed += len(later.Parts)
			}
		}
		for _, r := range rs {
			for n := range total {
				cpu, devs := int64(0), map[string]int{}
				for _, u := range on[n] {
					if u.end == 0 || u.end > r.Start {
						cpu += u.cpu
						for _, d := range u.devs {
							devs[d]++
						}
					}
				}
				for _, o := range rs {
					if o.Start > r.Start || o.End != 0 && o.End <= r.Start {
						continue
					}
					for _, p := range o.Places {
						if p.Node == n {
							cpu += p.Need.CPU
							for _, g := range p.Grants {
								devs[g.Instance]++
							}
						}
					}
				}
				checks++
				if cpu > total[n] {
					t.Fatalf("seed %d (%s): at %v, when %s is promised to begin, %d MHz of %d would be used on node %s", seed, in.Config.Backfill, r.Start.Sub(in.Now), r.JobID, cpu, total[n], n.Short())
				}
				for d, k := range devs {
					if k > 1 {
						t.Fatalf("seed %d (%s): when %s is promised to begin, %s would be used %d times", seed, in.Config.Backfill, r.JobID, d, k)
					}
				}
			}
		}
	}
	if checks < 2000 || passed < 500 {
		t.Errorf("only %d checks, %d placements past a promise", checks, passed)
	}
	if guessed < 20 {
		t.Errorf("only %d promises by guessed ends", guessed)
	}
	t.Logf("%d checks, %d placements past a promise, %d promises by guessed ends", checks, passed, guessed)
}

// TestBackfillMaxJobs: only so many jobs are tried in a pass behind the first one that finds no room, and the others
// report so.
func TestBackfillMaxJobs(t *testing.T) {
	n := node(1)
	big := job("big", 1)
	big.Groups[0].Tasks[0].Resources.CPU = 5000
	for _, c := range []struct {
		most   int64
		placed string
	}{{0, "[a b c d]"}, {1, "[a]"}, {3, "[a b c]"}} {
		in := scheduler.Input{View: model.NewView(7, []*structs.Node{n}, nil, nil), Now: bookNow, Pending: []contend.Workload{load(big, 1)},
			Queues: &contend.QueueTable{Queues: []*structs.Queue{{Path: structs.QueueRoot, BackfillMaxJobs: c.most}}}}
		for i, name := range []string{"a", "b", "c", "d"} {
			in.Pending = append(in.Pending, load(job(name, 1), i+2))
		}
		plan, rep := scheduler.Schedule(in, binpack)
		var placed []string
		for _, e := range plan.Entries {
			if len(e.Parts) > 0 {
				placed = append(placed, e.JobID)
			}
		}
		for _, e := range plan.Entries {
			for _, ev := range e.Evals { // on a quiet cluster nothing else would unblock them
				if again := ev.WaitUntil == bookNow.Add(30*time.Second); ev.Status == structs.EvalBlocked && again == (e.JobID == "big") {
					t.Errorf("at most %d: %s is looked at again at %v", c.most, e.JobID, ev.WaitUntil)
				}
			}
		}
		if got := fmt.Sprint(placed); got != c.placed {
			t.Errorf("at most %d: placed %s, want %s", c.most, got, c.placed)
		}
		for _, r := range rep.Workloads[1:] {
			if !r.Failed {
				continue
			}
			want := fmt.Sprintf("not tried in this pass: beyond backfill_max_jobs = %d behind job big in queue default", c.most)
			if x := r.Groups[0]; x.Code != structs.ReasonPriority || len(x.Refusals) != 1 || x.Refusals[0].Text() != want {
				t.Errorf("%s: %+v; want x.Code = %v, len(x.Refusals) = 1, x.Refusals[0].Text() = %v", r.Key.ID, x, structs.ReasonPriority, want)
			}
		}
	}
}

// TestBackfillUpToAPromise: work on a GPU that ends in the moment for which the GPU is reserved passes the blocked job.
func TestBackfillUpToAPromise(t *testing.T) {
	n := gpuNode(1, 2)
	run := timed("run", 1, 10, 1, 2*time.Hour)
	wide, short, longer := timed("wide", 1, 10, 2, time.Hour), timed("short", 1, 10, 1, time.Hour), timed("longer", 1, 10, 1, time.Hour+time.Second)
	for _, c := range []struct {
		next *structs.Job
		want string
	}{{short, "short:1 "}, {longer, ""}} {
		wide.CreateIndex, c.next.CreateIndex = 10, 11
		in := scheduler.Input{View: model.NewView(1, []*structs.Node{n}, []*structs.Allocation{holds(n, run, 1, time.Hour, []int{0})}, nil), Now: bookNow, Config: rules(structs.BackfillEASY),
			Pending: []contend.Workload{load(wide, 1), load(c.next, 2)}}
		in.Line = queue.NewLine(nil, in.Config, in.Pending, in.Now, 0)
		plan, _ := scheduler.Schedule(in, binpack)
		if got, rs := placed(plan); got != c.want || len(rs) != 1 || rs[0].Start != bookNow.Add(time.Hour) {
			t.Errorf("%s: placed %q, want %q; reservations %+v", c.next.ID, got, c.want, rs)
		}
	}
}

// TestBudgetOfAnotherGroupHoldsNothingBack: a group that found a place although a power budget closed a better node does
// not keep the other groups of its job from a reservation.
func TestBudgetOfAnotherGroupHoldsNothingBack(t *testing.T) {
	power := func(n *structs.Node, watts int64) *structs.Node {
		n.PowerBudgetW = 100
		n.Resources.Devices[0].Attributes = map[string]structs.Attribute{"power": {Kind: "int", Int: watts, Unit: "W"}}
		return n
	}
	full, small := power(gpuNode(1, 1), 700), power(gpuNode(2, 1), 50)
	small.Resources.CPU = 100
	run := timed("run", 1, 3000, 0, 2*time.Hour)
	j := timed("j", 1, 10, 1, time.Hour)
	wide := *timed("wide", 1, 3500, 0, time.Hour).Groups[0]
	wide.Name = "wide"
	j.Groups = append(j.Groups, &wide)
	in := scheduler.Input{View: model.NewView(1, []*structs.Node{full, small}, []*structs.Allocation{holds(full, run, 1, time.Hour, nil)}, nil), Now: bookNow, Config: rules(structs.BackfillEASY),
		Pending: []contend.Workload{load(j, 1)}, Power: true}
	in.Line = queue.NewLine(nil, in.Config, in.Pending, in.Now, 0)
	plan, rep := scheduler.Schedule(in, binpack)
	if got, rs := placed(plan); got != "j:1 " || len(rs) != 1 || rs[0].Start != bookNow.Add(time.Hour) {
		t.Errorf("placed %q, reservations %+v; %+v", got, rs, rep.Workloads[0].Groups)
	}
}
