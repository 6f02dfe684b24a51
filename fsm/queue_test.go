package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

func cpu(mhz int64) *structs.Amount {
	a := structs.Unlimited
	a.CPU = mhz
	return &a
}

func (c *cluster) queues(qs ...*structs.Queue) {
	c.tb.Helper()
	c.apply(&structs.QueueUpsertCommand{Queues: qs})
}

// in registers the job in a queue and gives its evaluation.
func (c *cluster) in(queue string, count int) structs.EvalID {
	c.tb.Helper()
	j := service("1", count)
	j.Queue = structs.QueuePath(queue)
	return c.register(j).EvalID
}

func TestQueueObjects(t *testing.T) {
	c := newCluster(t, 1)
	upsert := func(q structs.Queue) structs.CommandBody {
		return &structs.QueueUpsertCommand{Queues: []*structs.Queue{&q}}
	}
	c.refused(upsert(structs.Queue{Path: "a/b"}), `parent "a" does not exist`)
	c.refused(upsert(structs.Queue{Path: "default/x"}), "cannot have children")
	c.refused(upsert(structs.Queue{Path: "a b"}), "only letters")
	c.refused(upsert(structs.Queue{Path: "root/a"}), "named without it")
	c.refused(upsert(structs.Queue{Path: "a", Order: "best"}), `order "best"`, "fcfs")
	c.refused(upsert(structs.Queue{Path: "a", Guarantee: &structs.Amount{CPU: 2}, Limit: cpu(1)}), "exceeds the limit of cpu by 1")
	c.refused(upsert(structs.Queue{Path: "a", Billing: &structs.Billing{}}), "every weight is 0")
	c.refused(upsert(structs.Queue{Path: "a", Billing: &structs.Billing{GPU: -1}}), "weight of gpu is not between 0 and 1000")
	c.refused(upsert(structs.Queue{Path: "a", UserWeights: map[string]int64{"ada": 0}}), `weight 0 of user "ada"`)
	of := func(user string, priority int64) map[string]int64 { return map[string]int64{user: priority} }
	for _, x := range []struct {
		q    structs.Queue
		want string
	}{
		{structs.Queue{UserPriorityMax: of("ada", 0)}, `user_priority_max 0 of user "ada"; give 1 to 100`}, {structs.Queue{UserPriorityMax: of("ada", 101)}, "user_priority_max 101"},
		{structs.Queue{UserPriorityDefault: of("ada", 101)}, "user_priority_default 101"}, {structs.Queue{UserPriorityDefault: of("", 5)}, "user_priority_default has a user without a name"},
		{structs.Queue{UserPriorityMax: of("*", 5)}, `user_priority_max of "*": give names; priority_max is for all others`},
		{structs.Queue{PriorityMax: 50, UserPriorityDefault: of("ada", 51)}, `user_priority_default 51 of user "ada" is above 50`},
		{structs.Queue{PriorityMax: 90, UserPriorityMax: of("ada", 50), UserPriorityDefault: of("ada", 51)}, `user "ada" is above 50`},
	} {
		x.q.Path = "a"
		c.refused(upsert(x.q), x.want)
	}
	c.apply(upsert(structs.Queue{Path: "z", PriorityMax: 50, PriorityDefault: 50, UserPriorityMax: map[string]int64{"ada": 90, "bob": 10}, UserPriorityDefault: of("ada", 90)}))
	c.refused(upsert(structs.Queue{Path: "a", PreemptDelta: 101}), "preempt_priority_delta 101")
	c.refused(upsert(structs.Queue{Path: "a", AgingMax: -1}), "aging_max -1")
	c.queues(&structs.Queue{Path: "a"}, &structs.Queue{Path: "a/b", AllowedUsers: []string{"ada"}})
	c.refused(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{"a"}}, "has children")
	c.refused(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{"b"}}, "not found")

	j := service("1", 1)
	j.Queue = "nowhere"
	reg := func() structs.CommandBody { return &structs.JobRegisterCommand{Job: j, Eval: true} }
	c.refused(reg(), "nonexistent queue")
	j.Queue = "root"
	c.refused(reg(), "no jobs of its own")
	j.Queue = "a/b"
	c.refused(reg(), "may not use queue")
	j.Queue = "a"
	c.register(j)
	c.refused(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{"a"}}, "has children")
	c.apply(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{"a/b"}})
	c.refused(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{"a"}}, "jobs that are not dead", "web")
	c.queues(&structs.Queue{Path: "a", SubmittedMax: 1})
	c.register(j) // the same job again is no further one
	k := *j
	k.ID = "second"
	c.refused(&structs.JobRegisterCommand{Job: &k, Eval: true}, "has 1 jobs and may have 1", "submitted_max")
	c.apply(&structs.JobDeregisterCommand{Namespace: "default", JobID: "web", Purge: true})
	c.register(&k)
}

// TestLimitsInApply: what no decision saw is refused by integers: a limit, that of an ancestor, a quota, a cap, and
// settings of the queue that changed since.
func TestLimitsInApply(t *testing.T) {
	for name, prepare := range map[string]func(c *cluster){
		`queue "a/b" would exceed its limit of cpu`: func(c *cluster) { c.queues(&structs.Queue{Path: "a"}, &structs.Queue{Path: "a/b", Limit: cpu(25)}) },
		`queue "a" would exceed its limit of cpu`:   func(c *cluster) { c.queues(&structs.Queue{Path: "a", Limit: cpu(25)}, &structs.Queue{Path: "a/b"}) },
		`queue "root" would exceed`: func(c *cluster) {
			c.queues(&structs.Queue{Path: "root", Limit: cpu(25)}, &structs.Queue{Path: "a"}, &structs.Queue{Path: "a/b"})
		},
		`quota "q" would be exceeded in cpu`: func(c *cluster) {
			c.queues(&structs.Queue{Path: "a"}, &structs.Queue{Path: "a/b"})
			c.apply(&structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", Hard: *cpu(25)}}}}})
			c.apply(&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "default", Quota: "q"}}})
			c.refused(&structs.QuotaDeleteCommand{Names: []string{"q"}}, "in use by namespace")
		},
	} {
		c := newCluster(t, 3)
		prepare(c)
		eval := c.in("a/b", 3) // 3 x 10 MHz
		p := c.planFor("web", eval, 0, 3)
		p.QueueEpoch = c.f.Snapshot().QueueByPath("a/b").Epoch
		res := c.apply(p).Plan
		if !res.Accepted[0] || !res.Accepted[1] || res.Accepted[2] || !strings.Contains(res.Refused, name) {
			t.Errorf("%s: %+v", name, res)
		}
		if why := c.f.Snapshot().CheckUse(); why != "" {
			t.Error(why)
		}
		if u := c.f.Snapshot().QueueUse("a", ""); u.Held.CPU != 20 || u.Jobs != 1 || u.Allocs != 2 {
			t.Errorf("%s: usage %+v", name, u)
		}
		c.observe(structs.ClientComplete)
		if u := c.f.Snapshot().QueueUse("a", ""); u.Held != (structs.Amount{}) || u.Jobs != 0 {
			t.Errorf("%s: usage %+v after the end", name, u)
		}
	}
	c := newCluster(t, 3)
	c.queues(&structs.Queue{Path: "a"})
	eval := c.in("a", 1)
	p := c.planFor("web", eval, 0, 1)
	p.QueueEpoch = c.f.Snapshot().QueueByPath("a").Epoch
	c.queues(&structs.Queue{Path: "a", Weight: 2})
	if res := c.apply(p).Plan; res.Accepted[0] || !strings.Contains(res.Refused, `queue "a" is at epoch`) {
		t.Errorf("a plan by old settings: %+v", res)
	}
}

// TestMoveCharges: what replaces an allocation on a node that drains is charged for what it needs beyond that one, once, and
// only in the part that stops it; on a node that takes new work it is charged in full, and so it is before the format has the gate.
func TestMoveCharges(t *testing.T) {
	for name, x := range map[string]struct {
		old, ready, gone, twice bool
		larger                  int64
		want                    string
	}{
		"moves":                {},
		"old format":           {old: true, want: "would exceed its limit of cpu by 10"},
		"the node is eligible": {ready: true, want: "would exceed its limit of cpu by 10"},
		"stopped before":       {gone: true, want: "would exceed its limit of cpu by 10"},
		"for two":              {twice: true, want: "would exceed its limit of cpu by 10"},
		"larger":               {larger: 5, want: "would exceed its limit of cpu by 5"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			format := feature.MoveCharges.Format
			if x.old {
				format--
			}
			c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: format, By: "test"})
			c.queues(&structs.Queue{Path: "a", Limit: cpu(10)})
			eval := c.in("a", 1)
			plan := func(from, n int) *structs.PlanEntry {
				p := c.planFor("web", eval, from, n)
				p.QueueEpoch = c.f.Snapshot().QueueByPath("a").Epoch
				return p
			}
			if res := c.apply(plan(0, 1)).Plan; !res.Accepted[0] {
				t.Fatalf("%+v", res)
			}
			var old *structs.Allocation
			for _, a := range c.f.Snapshot().AllocsByJob(structs.JobKey{Namespace: "default", ID: "web"}) {
				old = a
			}
			if x.larger > 0 {
				j := service("2", 1)
				j.Queue = "a"
				j.Groups[0].Tasks[0].Resources.CPU += x.larger
				eval = c.register(j).EvalID
			}
			if !x.ready {
				c.apply(&structs.NodeDrainCommand{ID: old.NodeID, Strategy: &structs.DrainStrategy{Deadline: time.Hour}})
			}
			p := plan(1, 1)
			p.LinkNext = true
			p.JobVersion = c.f.Snapshot().JobByKey(structs.JobKey{Namespace: "default", ID: "web"}).Version
			stop := structs.PlanStop{ID: old.ID, Desired: structs.DesiredStop}
			if x.gone {
				c.apply(&structs.PlanEntry{Namespace: p.Namespace, JobID: p.JobID, EvalID: p.EvalID, Parts: []structs.PlanPart{{Stops: []structs.PlanStop{stop}}}})
			}
			p.Parts[0].Stops = []structs.PlanStop{stop}
			p.Parts[0].Places[0].Previous = old.ID
			if x.twice {
				two := p.Parts[0].Places[0]
				two.Index++
				p.Parts[0].Places = append(p.Parts[0].Places, two)
			}
			res := c.apply(p).Plan
			if res.Accepted[0] != (x.want == "") || !strings.Contains(res.Refused, x.want) {
				t.Errorf("%+v; want %q", res, x.want)
			}
			if why := c.f.Snapshot().CheckUse(); why != "" {
				t.Error(why)
			}
		})
	}
}

// TestModelLimitsInApply: limits of the GPUs of a model are refused by integers, too.
func TestModelLimitsInApply(t *testing.T) {
	two := []structs.ModelAmount{{Model: "h100", Milli: 2000}}
	for name, prepare := range map[string]func(c *cluster){
		`queue "a/b" (user "") would exceed its limit of GPUs of model h100 by 1000`: func(c *cluster) { c.queues(&structs.Queue{Path: "a/b", LimitModels: two}) },
		`queue "a" (user "") would exceed its limit of GPUs of model h100 by 1000`:   func(c *cluster) { c.queues(&structs.Queue{Path: "a", LimitModels: two}) },
		`quota "q" would be exceeded in GPUs of model h100 by 1000`: func(c *cluster) {
			c.apply(&structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", Hard: structs.Unlimited, HardModels: two}}}}})
			c.apply(&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "default", Quota: "q"}}})
		},
	} {
		c := newCluster(t, 4)
		c.queues(&structs.Queue{Path: "a"}, &structs.Queue{Path: "a/b"})
		eval := c.in("a/b", 4)
		prepare(c)
		p := c.planFor("web", eval, 0, 4)
		for i, model := range []string{"H100", "H100", "A100", "H100"} {
			p.Parts[i].Places[0].Grants = []structs.Grant{{Task: "task", Device: "nvidia/gpu/" + model, Instance: fmt.Sprint("GPU-", i)}}
		}
		p.QueueEpoch = c.f.Snapshot().QueueByPath("a/b").Epoch
		if res := c.apply(p).Plan; !slices.Equal(res.Accepted, []bool{true, true, true, false}) || !strings.Contains(res.Refused, name) {
			t.Errorf("%s: %+v", name, res)
		}
		if why := c.f.Snapshot().CheckUse(); why != "" {
			t.Error(why)
		}
		if u := c.f.Snapshot().QueueUse("a", ""); fmt.Sprint(u.Models) != "[{A100 1000} {H100 2000}]" {
			t.Errorf("%s: usage %v", name, u.Models)
		}
		c.observe(structs.ClientComplete)
		if u := c.f.Snapshot().QueueUse("a", ""); len(u.Models) > 0 {
			t.Errorf("%s: usage %v after the end", name, u.Models)
		}
	}
	c := newCluster(t, 1)
	bad := func(models ...structs.ModelAmount) {
		c.refused(&structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "a", LimitModels: models}}}, "limit")
	}
	bad(structs.ModelAmount{Model: "H100", Milli: -1})
	bad(structs.ModelAmount{Model: "H100|", Milli: 1})
	bad(structs.ModelAmount{Model: "H100", Milli: 1}, structs.ModelAmount{Model: "A100", Milli: 1})
	c.refused(&structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "q", Limits: []structs.QuotaLimit{{Region: "global", SoftModels: []structs.ModelAmount{{Milli: 1}}}}}}}, "model")
}

// TestModelsOfWaiters: an allocation that waits for another one of its job is charged with the GPU of a model once, and after
// the other has ended alone.
func TestModelsOfWaiters(t *testing.T) {
	c := newCluster(t, 1)
	c.queues(&structs.Queue{Path: "a", LimitModels: []structs.ModelAmount{{Model: "H100", Milli: 1000}}})
	eval := c.in("a", 2)
	place := func(i int, waits ...structs.AllocID) {
		t.Helper()
		p := c.planFor("web", eval, 0, 1)
		p.QueueEpoch = c.f.Snapshot().QueueByPath("a").Epoch
		at := &p.Parts[0].Places[0]
		at.Index, at.WaitsOn, at.Grants = i, waits, []structs.Grant{{Task: "task", Device: "nvidia/gpu/H100", Instance: "GPU-0"}}
		if len(waits) > 0 {
			p.Parts[0].Stops = []structs.PlanStop{{ID: waits[0], Desc: "replaced", Desired: structs.DesiredStop}}
			p.Evals = nil
		}
		if res := c.apply(p).Plan; !res.Accepted[0] {
			t.Fatal(res.Refused)
		}
	}
	held := func(when string) {
		t.Helper()
		snap := c.f.Snapshot()
		if u := snap.QueueUse("a", ""); fmt.Sprint(u.Models) != "[{H100 1000}]" {
			t.Errorf("%s: usage %v", when, u.Models)
		}
		if why := snap.CheckUse(); why != "" {
			t.Errorf("%s: %s", when, why)
		}
	}
	place(0)
	held("one runs")
	var first structs.AllocID
	for a := range c.f.Snapshot().Allocs() {
		first = a.ID
	}
	place(1, first)
	held("another waits for it")
	c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: first, Client: structs.ClientComplete}}})
	held("it has ended")
}

// TestBilling: usage is weighted by the weights of the job's queue, and weighted again when they change.
func TestBilling(t *testing.T) {
	c := newCluster(t, 3)
	c.queues(&structs.Queue{Path: "a", Billing: &structs.Billing{CPU: 2e6}}, &structs.Queue{Path: "a/b"})
	eval := c.in("a/b", 2) // 2 x 10 MHz, 10 MiB
	p := c.planFor("web", eval, 0, 2)
	p.QueueEpoch = c.f.Snapshot().QueueByPath("a/b").Epoch
	c.apply(p)
	billed := func(want int64, at string) {
		t.Helper()
		for _, path := range []structs.QueuePath{structs.QueueRoot, "a", "a/b"} {
			if u := c.f.Snapshot().QueueUse(path, ""); u.Held.Billed != want || u.Held.CPU != 20 || u.Jobs != 1 {
				t.Errorf("%s: queue %s holds %+v, want %d billed", at, path, u.Held, want)
			}
		}
		if why := c.f.Snapshot().CheckUse(); why != "" {
			t.Errorf(`%s: %s; want ""`, at, why)
		}
	}
	billed(40, "inherited weights")
	c.queues(&structs.Queue{Path: "a/b", Billing: &structs.Billing{CPU: 1e6, Memory: 1024e5}})
	billed(20+20*100, "own weights")
	c.queues(&structs.Queue{Path: "a/b"})
	billed(40, "inherited again")
	c.queues(&structs.Queue{Path: "a"})
	billed(0, "without weights")
	c.queues(&structs.Queue{Path: structs.QueueRoot, Billing: &structs.Billing{CPU: 3e6}})
	billed(60, "the root's weights")
	c.apply(&structs.QueueDeleteCommand{Paths: []structs.QueuePath{structs.QueueRoot}})
	billed(0, "the root deleted")
}

// TestCountingStartsOnce: a cluster without queues keeps no usage; the first queue counts what is there.
func TestCountingStartsOnce(t *testing.T) {
	c := newCluster(t, 3)
	res := c.register(service("1", 3))
	c.placeAll(res.EvalID, 0, 3)
	for range c.f.Snapshot().QueueUses() {
		t.Fatal("usage is kept without a queue")
	}
	c.queues(&structs.Queue{Path: "a"})
	s := c.f.Snapshot()
	if u := s.QueueUse(structs.QueueDefault, ""); u.Held.CPU != 30 || u.Allocs != 3 {
		t.Errorf("the first queue counted %+v", u)
	}
	if why := s.CheckUse(); why != "" {
		t.Error(why)
	}
}

func TestReservations(t *testing.T) {
	c := newCluster(t, 2)
	now := c.f.Snapshot().Time()
	ok := structs.Reservation{ID: "maint", Domain: "default", Start: now, End: now.Add(time.Hour), Nodes: []structs.NodeID{c.nodes[0].ID}, Maintenance: true}
	for why, edit := range map[string]func(r *structs.Reservation){
		"neither slashes": func(r *structs.Reservation) { r.ID = "job/default/web" },
		"does not exist":  func(r *structs.Reservation) { r.Nodes = []structs.NodeID{{9}} },
		"needs a window":  func(r *structs.Reservation) { r.End = r.Start },
		"for nobody":      func(r *structs.Reservation) { r.Users = []string{"ada"} },
		"nodes or an":     func(r *structs.Reservation) { r.Nodes = nil },
		"node pool":       func(r *structs.Reservation) { r.Domain = "nowhere" },
		"ended at":        func(r *structs.Reservation) { r.Start, r.End = 1, 2 },
	} {
		r := ok
		edit(&r)
		c.refused(&structs.ReserveCommand{Reservations: []*structs.Reservation{&r}}, why)
	}
	c.apply(&structs.ReserveCommand{Reservations: []*structs.Reservation{&ok}})
	c.apply(&structs.UnreserveCommand{IDs: []string{"maint"}})

	// That of a job is written with a plan, stays as it is while it says the same, and goes with the job's place.
	res := c.register(service("1", 1))
	id := structs.ReservationID(key)
	promise := func(start structs.LogTime) *structs.Reservation {
		c.apply(&structs.PlanEntry{Namespace: "default", JobID: "web", EvalID: res.EvalID, SnapshotIndex: c.f.Snapshot().Index(),
			Reservation: &structs.Reservation{Domain: "default", Start: start, Basis: structs.ReserveLimit}})
		return c.f.Snapshot().Reservation(id)
	}
	first := promise(now + 5)
	if first == nil || first.JobID != "web" {
		t.Fatalf("reservation %+v", first)
	}
	if again := promise(now + 5); again != first {
		t.Errorf("the same promise was written again: got %v, want %v", again, first)
	}
	if moved := promise(now + 6); moved.Start != now+6 || moved.CreateIndex != first.CreateIndex {
		t.Errorf("moved to %+v", moved)
	}
	c.refused(&structs.UnreserveCommand{IDs: []string{id}}, "not an operator's")
	c.placeAll(res.EvalID, 0, 1)
	if c.f.Snapshot().Reservation(id) != nil {
		t.Error("the reservation outlived the placement")
	}
	promise(now + 7)
	c.apply(&structs.JobDeregisterCommand{Namespace: "default", JobID: "web"})
	if c.f.Snapshot().Reservation(id) != nil {
		t.Error("the reservation outlived the job")
	}
}

// TestLotteryDraw: the draw changes when work starts, by itself or in the same entry in which as much ends, and at no other
// time; it is kept from the format on that has it.
func TestLotteryDraw(t *testing.T) {
	c := newCluster(t, 1)
	draw := func() structs.Index {
		return c.f.Snapshot().QueueUse(structs.QueueRoot, "").Draw
	}
	c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.LotteryDraws.Format - 1, By: "test"})
	c.apply(&structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{Order: "fcfs,lottery"}})
	if draw() != 0 {
		t.Error("the old format keeps a draw")
	}
	c.apply(&structs.UpgradeFinishCommand{Format: feature.LotteryDraws.Format, By: "test"})
	first := draw()
	if first == 0 {
		t.Fatal("there is no draw after the upgrade")
	}
	eval := c.register(service("1", 2)).EvalID
	if got := draw(); got != first {
		t.Errorf("a job that is submitted makes draw %d of %d", got, first)
	}
	c.apply(c.planFor("web", eval, 0, 1))
	started := draw()
	if started != c.index {
		t.Errorf("what starts in entry %d leaves draw %d", c.index, started)
	}
	c.observe(structs.ClientRunning)
	c.observe(structs.ClientComplete)
	if got := draw(); got != started {
		t.Errorf("what ends makes draw %d of %d", got, started)
	}
}

// TestHalfLifeByDefault: use counts half after a day until the upgrade to the format with a week is finished, and after a
// week from then on.
func TestHalfLifeByDefault(t *testing.T) {
	c := newCluster(t, 1)
	days := func(n structs.Index) { c.index += n * 86_400_000 } // an entry is a millisecond
	used := func() int64 { return c.f.Snapshot().QueueUse("a", "").Used.CPU }
	about := func(when string, want int64) {
		t.Helper()
		if got := used(); got < want*999/1000 || got > want*1001/1000 {
			t.Errorf("%s: used %d, want %d", when, got, want)
		}
	}
	c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.FairWeek.Format - 1, By: "test"})
	c.queues(&structs.Queue{Path: "a"})
	p := c.planFor("web", c.in("a", 1), 0, 1)
	p.QueueEpoch = c.f.Snapshot().QueueByPath("a").Epoch
	c.apply(p)
	days(1)
	c.observe(structs.ClientComplete)
	first := used()
	if first == 0 {
		t.Fatal("nothing was used")
	}
	days(1)
	c.apply(&structs.UpgradeFinishCommand{Format: feature.FairWeek.Format, By: "test"})
	about("a day later, when the upgrade is finished", first/2)
	days(7)
	c.queues(&structs.Queue{Path: "a", HalfLife: time.Hour})
	about("another week later", first/4)
}
