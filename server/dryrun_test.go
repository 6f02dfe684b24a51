package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// TestPlanIsThePass: a dry run reports what the real pass reports afterwards: the reason, the queue, the position, what
// is missing and by how much, and the victims.
func TestPlanIsThePass(t *testing.T) {
	big := func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = 3000 }
	batch := func(j *structs.Job) {
		j.Type, j.Groups[0].Reschedule = structs.JobBatch, structs.Reschedule{}
	}
	for _, c := range []struct {
		name   string
		before func(s *Server)
		job    func(j *structs.Job)
		reason structs.ReasonCode
		starts bool // its start is estimated
		evicts int
	}{
		{name: "room", reason: structs.ReasonNone},
		{name: "held", job: func(j *structs.Job) { j.Hold = true }, reason: structs.ReasonHeld},
		{name: "too early", job: func(j *structs.Job) { j.Begin = structs.LogTimeOf(time.Now().Add(time.Hour)) }, reason: structs.ReasonBeginTime},
		{name: "a dependency", before: func(s *Server) { register(t, s, passJob("first", 1, nil)) },
			job: func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "first", When: structs.WhenCompleted}} }, reason: structs.ReasonDependency},
		{name: "a limit of its queue", before: func(s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research", Limit: &structs.Amount{GPUMilli: structs.AmountNoLimit,
				GPUMemoryMiB: structs.AmountNoLimit, CPU: 50, MemoryMiB: structs.AmountNoLimit}}}})
		}, job: func(j *structs.Job) { j.Queue = "research" }, reason: structs.ReasonQuota},
		{name: "a cap on running jobs", before: func(s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research", RunningMax: 1}}})
			register(t, s, passJob("first", 1, func(j *structs.Job) { j.Queue = "research" }))
		}, job: func(j *structs.Job) { j.Queue = "research" }, reason: structs.ReasonQuota},
		{name: "a quota of its namespace", before: func(s *Server) {
			hard := structs.Unlimited
			hard.CPU = 50
			mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "small", Limits: []structs.QuotaLimit{{Region: "global", Hard: hard}}}}})
			mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "default", Quota: "small"}}})
		}, reason: structs.ReasonQuota},
		{name: "no room, and its turn is known", before: func(s *Server) {
			for i := range 3 {
				register(t, s, passJob(fmt.Sprint("first", i), 2, func(j *structs.Job) { batch(j); big(j); j.Runtime.Limit = time.Hour }))
				time.Sleep(time.Second)
			}
		}, job: func(j *structs.Job) { batch(j); big(j); j.Runtime.Limit = time.Hour }, reason: structs.ReasonResources, starts: true},
		{name: "nobody passes another", before: func(s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research", Backfill: structs.BackfillNone, Order: structs.OrderFCFS}}})
			register(t, s, passJob("first", 3, func(j *structs.Job) { j.Queue = "research"; big(j) }))
		}, job: func(j *structs.Job) { j.Queue = "research" }, reason: structs.ReasonPriority},
		{name: "a reservation of an operator", before: func(s *Server) {
			r := &structs.Reservation{ID: "course", Domain: "default", Start: structs.LogTimeOf(time.Now()), End: structs.LogTimeOf(time.Now().Add(10 * time.Hour)), Users: []string{"teacher"}}
			for n := range s.Published().Snapshot.Nodes() {
				r.Nodes = append(r.Nodes, n.ID)
			}
			mustApply(t, s, &structs.ReserveCommand{Reservations: []*structs.Reservation{r}})
			time.Sleep(time.Minute)
		}, reason: structs.ReasonReservation},
		{name: "others give way", before: func(s *Server) {
			mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "default", Preempt: structs.PreemptPriority}}})
			register(t, s, passJob("first", 2, func(j *structs.Job) { batch(j); big(j); j.Preemptible = true; j.Priority = 10 }))
			time.Sleep(time.Hour)
		}, job: func(j *structs.Job) { big(j); j.Priority = 90 }, reason: structs.ReasonPreemptionPending, evicts: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := testServer(t, nil)
				f := newFleet(t, one(s), 2)
				f.set(func() { f.kill = time.Hour })
				if c.before != nil {
					c.before(s)
				}
				time.Sleep(10 * time.Second)
				job := func() *structs.Job { return passJob("mine", 1, c.job) }
				plan := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: job()})
				before := s.Published().Index
				register(t, s, job())
				waitFor(t, time.Minute, "the real pass", func() bool {
					as, w := live(s, "mine"), s.Published().Snapshot.Workload(job().Key())
					return len(as) > 0 || w != nil && w.Reason != structs.ReasonNone
				})
				time.Sleep(50 * time.Millisecond)
				real := call(t, s, methods.JobWhy, rpc.Header{}, &methods.JobGetRequest{JobID: "mine"})
				got := plan.Why
				if got == nil {
					t.Fatal("the plan does not say why")
				}
				if got := s.Published().Snapshot.JobByKey(job().Key()).CreateIndex; got <= before {
					t.Fatalf("the plan registered the job: got %v, want more than %v", got, before)
				}
				code := real.Workload.Reason
				if c.evicts > 0 {
					code = real.Reports[0].Code // it has its places and waits for the work in them
					if len(plan.Preempted) != c.evicts || len(plan.Failed) != 0 {
						t.Errorf("the plan displaces %d and fails %d groups, want %d and none", len(plan.Preempted), len(plan.Failed), c.evicts)
					}
					for _, a := range plan.Preempted {
						would, _, _ := strings.Cut(a.DesiredDesc, ":") // the loss grows with time
						is := s.Published().Snapshot.AllocByID(a.ID)
						if is.Desired != a.Desired || !strings.HasPrefix(is.DesiredDesc, would+":") || !strings.Contains(a.DesiredDesc, "GPU seconds are lost") {
							t.Errorf("the plan says %s, %q; then it was %s, %q", a.Desired, a.DesiredDesc, is.Desired, is.DesiredDesc)
						}
					}
				} else if got.Workload.Reason != code || got.Workload.Waiting != real.Workload.Waiting {
					t.Errorf("planned: %d wait for %q, in truth %d for %q", got.Workload.Waiting, got.Workload.Reason, real.Workload.Waiting, code)
				}
				if code != c.reason {
					t.Errorf("the reason is %q, want %q", code, c.reason)
				}
				if c.evicts == 0 && (got.Position != real.Position || got.QueueLen != real.QueueLen || fmt.Sprint(got.Ahead) != fmt.Sprint(real.Ahead)) {
					t.Errorf("planned place %d of %d behind %v, in truth %d of %d behind %v", got.Position, got.QueueLen, got.Ahead, real.Position, real.QueueLen, real.Ahead)
				}
				if c.evicts == 0 && code != structs.ReasonNone && fmt.Sprint(got.Reports[0].Refusals) != fmt.Sprint(real.Reports[0].Refusals) {
					t.Errorf("planned refusals %+v, in truth %+v", got.Reports[0].Refusals, real.Reports[0].Refusals)
				}
				if c.starts != (got.Workload.StartEst > 0) {
					t.Errorf("the start is estimated as %d", got.Workload.StartEst)
				}
				if real.Workload != nil && real.Workload.StartEst != 0 && got.Workload.StartEst.Sub(real.Workload.StartEst).Abs() > time.Minute {
					t.Errorf("planned start %v, in truth %v", got.Workload.StartEst.Time(), real.Workload.StartEst.Time())
				}
			})
		})
	}
}

// TestPlanOfTooMany: a plan is refused like the registration.
func TestPlanOfTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research", SubmittedMax: 1}}})
		research := func(id string) *structs.Job { j := apiJob(id, 1); j.Queue = "research"; return j }
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: research("a")})
		if _, err := callErr(s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: research("a")}); err != nil {
			t.Errorf("plan of a job that is there already: %v", err)
		}
		_, want := callErr(s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: research("b")})
		_, err := callErr(s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: research("b")})
		if want == nil || err == nil || err.Error() != want.Error() {
			t.Errorf("the plan says %v, the registration %v", err, want)
		}
	})
}

// TestStartWhen: the plan of a job that waits for something other than capacity says for what, and when that may be
// over.
func TestStartWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		call(t, s, methods.NodeRegister, rpc.Header{}, &methods.NodeRegisterRequest{Node: testNode(1)})
		prep := apiJob("prep", 1)
		prep.Runtime.Expected = 10 * time.Minute
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: prep})
		waitFor(t, time.Minute, "prep to have its place", func() bool {
			return len(s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: "prep"})) == 1
		})
		now := structs.LogTimeOf(time.Now())
		for name, c := range map[string]struct {
			change func(*structs.Job)
			text   string
			from   structs.LogTime // and at most a minute later; 0: unknown
		}{
			"held":    {func(j *structs.Job) { j.Hold = true }, "when it is released (muster job release later)", 0},
			"begin":   {func(j *structs.Job) { j.Begin = now.Add(time.Hour) }, "not before its time", now.Add(time.Hour)},
			"depends": {func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "prep"}} }, "after prep ends", now.Add(10 * time.Minute)},
			"started": {func(j *structs.Job) { j.Depends = []structs.Dependency{{Name: "prep", When: structs.WhenStarted}} }, "after prep starts", 0},
			"too big": {func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.CPU = 1 << 30 }, "", 0},
		} {
			j := apiJob("later", 1)
			c.change(j)
			resp := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: j})
			if w := resp.Why; w == nil || w.Starts != c.text || w.StartEst < c.from || w.StartEst > c.from.Add(time.Minute) || (c.from == 0) != (w.StartEst == 0) {
				t.Errorf("%s: %q at %v, want %q from %v", name, w.Starts, w.StartEst.Time(), c.text, c.from.Time())
			}
		}
		if _, text := s.decide.StartEstimates(s.Published().Snapshot, now).Of(apiJob("later", 1), &structs.Workload{Suspended: now}, nil); text != "when it is resumed (muster job resume later)" {
			t.Errorf("suspended: %q", text)
		}

		// When prep has ended well, what wants it to fail never starts; unless another job will do.
		alloc := s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: "prep"})[0]
		mustApply(t, s, &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: alloc.ID, Client: structs.ClientComplete, StartedAt: now, FinishedAt: now}}})
		waitFor(t, time.Minute, "prep to have ended", func() bool {
			return s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "prep"}).Status == structs.JobDead
		})
		cleanup := structs.Dependency{Name: "prep", When: structs.WhenFailed, Group: "any", AtLeast: 1}
		for text, depends := range map[string][]structs.Dependency{
			"":                 {{Name: "prep", When: structs.WhenFailed}, {Name: "other"}},
			"after other ends": {cleanup, {Name: "other", Group: "any", AtLeast: 1}},
		} {
			j := apiJob("later", 1)
			j.Depends = depends
			if resp := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: j}); resp.Why == nil || resp.Why.Starts != text {
				t.Errorf("%v: %+v, want %q", depends, resp.Why, text)
			}
		}
	})
}

// TestPlanSaysWhere: a plan has the node and the GPUs of each allocation, and what quota and queues would hold.
func TestPlanSaysWhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newGPUFleet(t, s, 4)
		quota := structs.Unlimited
		quota.GPUMilli = 16_000
		limit := structs.Unlimited
		limit.GPUMilli = 2_000
		mustApply(t, s, &structs.QuotaUpsertCommand{Quotas: []*structs.QuotaSpec{{Name: "team", Limits: []structs.QuotaLimit{{Region: structs.RegionDefault, Hard: quota}}}}})
		mustApply(t, s, &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "default", Quota: "team"}}})
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "research", Limit: &limit}}})
		work := func(id, queue string, n int) *structs.Job {
			return passJob(id, n, func(j *structs.Job) {
				j.Type, j.Queue = structs.JobBatch, structs.QueuePath(queue)
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1}}
			})
		}
		register(t, s, work("first", "", 1))
		waitFor(t, time.Minute, "it runs", func() bool { return running(s, "first") == 1 })
		plan := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: work("second", "research", 2)})
		gpus := map[string]bool{}
		for i, p := range plan.Places {
			n := s.Published().Snapshot.NodeByID(p.NodeID)
			if p.Group != "g" || p.Index != i || n == nil || n.Name != p.NodeName || len(p.GPUs) != 1 {
				t.Fatalf("place %d is %+v", i, p)
			}
			g := p.GPUs[0]
			if in := n.Resources.Devices[0].Instances[g.Index]; in.ID != g.ID || g.Model != n.Resources.Devices[0].Name {
				t.Errorf("GPU %+v is %q of its node", g, in.ID)
			}
			gpus[p.NodeName+g.ID] = true
		}
		if len(gpus) != 2 || plan.MorePlaces != 0 {
			t.Errorf("%d GPUs in %+v, and %d places more", len(gpus), plan.Places, plan.MorePlaces)
		}
		want := []methods.PlannedUse{
			{Kind: "quota", Name: "team", Before: structs.Amount{GPUMilli: 1000}, After: structs.Amount{GPUMilli: 3000}, Limit: quota},
			{Kind: "queue", Name: "research", After: structs.Amount{GPUMilli: 2000}, Limit: limit},
		}
		check := func(got []methods.PlannedUse) {
			t.Helper()
			if len(got) != len(want) {
				t.Fatalf("limits %+v, want %+v", got, want)
			}
			for i, w := range want {
				if g := got[i]; g.Kind != w.Kind || g.Name != w.Name || g.Before.GPUMilli != w.Before.GPUMilli || g.After.GPUMilli != w.After.GPUMilli || g.Limit != w.Limit {
					t.Errorf("limit %d is %+v, want %+v", i, g, w)
				}
			}
		}
		check(plan.Use)
		// What waits counts, too; and what is stopped goes.
		want[0].After.GPUMilli, want[1].After.GPUMilli = 4000, 3000
		check(call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: work("second", "research", 3)}).Use)
		want = want[:1]
		want[0].After.GPUMilli = 0
		none := work("first", "", 0)
		check(call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: none}).Use)
	})
}

// TestPlanSaysWhatIsLost: a plan that preempts says how many GPU-seconds have no checkpoint yet.
func TestPlanSaysWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newGPUFleet(t, s, 2)
		mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{{Path: "default", Preempt: structs.PreemptPriority}}})
		work := func(id string, priority int) *structs.Job {
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Priority, j.Preemptible = structs.JobBatch, priority, true
				j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 2}}
			})
		}
		register(t, s, work("first", 10))
		waitFor(t, time.Minute, "it runs", func() bool { return running(s, "first") == 1 })
		if plan := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: work("low", 10)}); plan.Lost != 0 || len(plan.Preempted) != 0 {
			t.Errorf("a plan that preempts nothing loses %d GPU seconds", plan.Lost)
		}
		time.Sleep(5 * time.Minute)
		plan := call(t, s, methods.JobPlan, rpc.Header{}, &methods.JobPlanRequest{Job: work("urgent", 90)})
		if len(plan.Preempted) != 1 || plan.Lost < 2*300 || plan.Lost > 2*330 {
			t.Errorf("%d allocations would be preempted, and %d GPU seconds lost; want 1 and 600", len(plan.Preempted), plan.Lost)
		}
	})
}
