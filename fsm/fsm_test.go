package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// try applies a command and gives its result, refused or not.
func (c *cluster) try(body structs.CommandBody) structs.Result {
	c.tb.Helper()
	res, _, _ := c.f.ApplyBatch([]Entry{c.entry(body)})
	return res[0]
}

func (c *cluster) refused(body structs.CommandBody, words ...string) {
	c.tb.Helper()
	before := c.f.Snapshot().Index()
	res := c.try(body)
	if res.Err == nil {
		c.tb.Errorf("command type %T was carried out; want a refusal with %q", body, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(res.Err.Msg, w) {
			c.tb.Errorf("refused with %q, want %q in it", res.Err.Msg, w)
		}
	}
	if after := c.f.Snapshot(); after.Rehash() != after.Hash() || after.Index() == before {
		c.tb.Error("a refusal left something behind")
	}
}

var key = structs.JobKey{Namespace: "default", ID: "web"}

func (c *cluster) register(job *structs.Job) structs.Result {
	c.tb.Helper()
	return c.apply(&structs.JobRegisterCommand{Job: job, Eval: true, Submission: &structs.JobSubmission{Source: job.ID, Format: "hcl2"}})
}

func service(meta string, count int) *structs.Job {
	j := benchJob("web", count)
	j.Type, j.Meta = structs.JobService, map[string]string{"v": meta}
	return j
}

func (c *cluster) placeAll(eval structs.EvalID, version uint64, count int) *structs.PlanResult {
	c.tb.Helper()
	p := c.planFor("web", eval, 0, count)
	p.JobVersion = version
	return c.apply(p).Plan
}

func (c *cluster) observe(status structs.ClientStatus) structs.Result {
	c.tb.Helper()
	cmd := &structs.AllocObservedCommand{}
	for _, a := range c.f.Snapshot().AllocsByJob(key) {
		cmd.Updates = append(cmd.Updates, structs.AllocObserved{ID: a.ID, Client: status})
	}
	return c.apply(cmd)
}

func (c *cluster) status(want structs.JobStatus) {
	c.tb.Helper()
	if j := c.f.Snapshot().JobByKey(key); j == nil || j.Status != want {
		c.tb.Errorf("job is %+v, want %s", j, want)
	}
}

func TestLifeOfAJob(t *testing.T) {
	c := newCluster(t, 3)
	res := c.register(service("1", 2))
	c.status(structs.JobPending)
	if w := c.f.Snapshot().Workload(key); w == nil || w.SubmitIndex != res.Index || w.Domain != "default" {
		t.Fatalf("workload %+v", w)
	}
	if e := c.f.Snapshot().EvalByID(res.EvalID); e == nil || e.CreateIndex != res.Index || e.Status != structs.EvalPending {
		t.Fatalf("evaluation %+v: job and evaluation must come in one entry", e)
	}
	if r := c.placeAll(res.EvalID, 0, 2); !r.Accepted[0] || !r.Accepted[1] {
		t.Fatal(r.Refused)
	}
	c.status(structs.JobPending)
	c.observe(structs.ClientRunning)
	c.status(structs.JobRunning)
	usage := c.f.Snapshot().UsageOf("namespace", "default")
	if usage.Allocs != 2 || usage.Resources.MemoryMiB != 20 {
		t.Errorf("usage %+v", usage)
	}
	again := c.register(service("1", 2))
	if again.Version != 0 || again.SpecIndex != res.SpecIndex || again.EvalID.IsZero() {
		t.Errorf("the same job again gave %+v; want no new version, but an evaluation", again)
	}
	up := c.register(service("2", 2))
	if up.Version != 1 || c.f.Snapshot().Workload(key).SubmitIndex != res.Index {
		t.Errorf("update gave %+v, workload %+v", up, c.f.Snapshot().Workload(key))
	}
	c.apply(&structs.JobDeregisterCommand{Namespace: "default", JobID: "web", Purge: true})
	s := c.f.Snapshot()
	if s.JobByKey(key) != nil || s.Workload(key) != nil || s.JobVersion(key, 0) == nil || s.JobVersion(key, 1) != nil {
		t.Error("a purged job keeps the versions that allocations refer to, and nothing else")
	}
	for _, a := range s.AllocsByJob(key) {
		if a.Job == nil || a.Job.Meta["v"] != "1" {
			t.Errorf("allocation lost its job: %+v", a.Job)
		}
	}
	new := c.register(service("3", 2))
	if new.Version != 1 {
		t.Errorf("registered after a purge as version %d; version 0 still has allocations", new.Version)
	}
	c.observe(structs.ClientComplete)
	collect := &structs.CollectCommand{}
	for _, a := range c.f.Snapshot().AllocsByJob(key) {
		collect.Allocs = append(collect.Allocs, a.ID)
	}
	c.apply(collect)
	if s := c.f.Snapshot(); s.JobVersion(key, 0) != nil || s.AllocCount() != 0 || s.UsageOf("namespace", "default").Allocs != 0 {
		t.Error("version 0 outlived its allocations")
	}
}

// TestStoppedJobDies covers a job that waits for capacity when it is stopped: its blocked evaluation goes with it.
func TestStoppedJobDies(t *testing.T) {
	c := newCluster(t, 1)
	res := c.register(service("1", 1))
	blocked := &structs.Evaluation{ID: structs.EvalID{7}, Namespace: "default", JobID: "web", Type: structs.JobService, Status: structs.EvalBlocked, Trigger: structs.TriggerQueued}
	done := *c.f.Snapshot().EvalByID(res.EvalID)
	done.Status = structs.EvalComplete
	c.apply(&structs.PlanEntry{Namespace: "default", JobID: "web", EvalID: res.EvalID, Evals: []*structs.Evaluation{blocked, &done},
		Workload: &structs.Workload{BlockedEval: blocked.ID, Reason: structs.ReasonResources, Waiting: 1}})
	c.status(structs.JobPending)
	if w := c.f.Snapshot().Workload(key); w.Reason != structs.ReasonResources || w.BlockedEval != blocked.ID || w.Priority != 50 {
		t.Errorf("workload %+v", w)
	}
	stop := c.apply(&structs.JobDeregisterCommand{Namespace: "default", JobID: "web"})
	if e := c.f.Snapshot().EvalByID(blocked.ID); e.Status != structs.EvalCanceled || e.Successor != stop.EvalID {
		t.Errorf("blocked evaluation %+v", e)
	}
	last := *c.f.Snapshot().EvalByID(stop.EvalID)
	last.Status = structs.EvalComplete
	c.apply(&structs.EvalUpsertCommand{Evals: []*structs.Evaluation{&last}})
	c.status(structs.JobDead)
	if c.f.Snapshot().Workload(key) != nil {
		t.Error("a dead job still waits in the queue")
	}
	c.register(service("1", 1))
	c.status(structs.JobPending)
}

func TestPlanRefusals(t *testing.T) {
	c := newCluster(t, 3)
	res := c.register(service("1", 2))
	plan := func(edit func(*structs.PlanEntry)) *structs.PlanResult {
		p := c.planFor("web", res.EvalID, 0, 2)
		edit(p)
		r := c.apply(p).Plan
		if e := c.f.Snapshot().EvalByID(res.EvalID); r.Refused != "" && e.Status != structs.EvalPending {
			t.Errorf("a plan that was refused in part ended its evaluation")
		}
		return r
	}
	for name, edit := range map[string]func(*structs.PlanEntry){
		"at epoch":        func(p *structs.PlanEntry) { p.Nodes[0].Epoch++ },
		"does not exist":  func(p *structs.PlanEntry) { p.Nodes[0].ID = structs.NodeID{1} },
		"at version 0":    func(p *structs.PlanEntry) { p.JobVersion = 1 },
		"purged and":      func(p *structs.PlanEntry) { p.JobCreate = 1 },
		"has no group":    func(p *structs.PlanEntry) { p.Groups[0] = "other" },
		"job does not":    func(p *structs.PlanEntry) { p.JobID = "other" },
		"is placed twice": func(p *structs.PlanEntry) { p.Parts[0].Places = append(p.Parts[0].Places, p.Parts[0].Places[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(edit)
			if p.Accepted[0] || !strings.Contains(p.Refused, name) {
				t.Errorf("%s: %+v", name, p)
			}
			c.apply(&structs.BatchCommand{}) // nothing
		})
	}
	for _, a := range c.f.Snapshot().AllocsByJob(key) { // the second parts, which were fine
		if a.NameIndex != 1 {
			t.Errorf("a refused part placed %s", a.Name())
		}
	}
	c.refused(&structs.PlanEntry{JobID: "web", Groups: []structs.GroupName{"g"}, Parts: []structs.PlanPart{{Places: []structs.PlanPlace{{Node: 7}}}}}, "refers to node 7")
	c.refused(&structs.PlanEntry{JobID: "web", Parts: []structs.PlanPart{{Stops: []structs.PlanStop{{Client: structs.ClientComplete}}}}}, "lost or unknown")
}

// TestNodeReturnsBeforeAPlan: a plan that takes work for lost or out of touch is refused if the node has returned before it
// in the log, and its evaluation is decided again; with servers of format 1 it is carried out, as they would.
func TestNodeReturnsBeforeAPlan(t *testing.T) {
	for _, in := range []structs.Format{feature.Oldest, feature.Newest} {
		for away, client := range map[structs.NodeStatus]structs.ClientStatus{structs.NodeDown: structs.ClientLost, structs.NodeDisconnected: structs.ClientUnknown} {
			for _, back := range []structs.NodeStatus{structs.NodeReady, structs.NodeInit, away} {
				c := newCluster(t, 2)
				c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: in, By: "test"})
				c.placeAll(c.register(service("1", 1)).EvalID, 0, 1)
				c.observe(structs.ClientRunning)
				a := c.f.Snapshot().AllocsByJob(key)[0]
				eval := c.apply(&structs.NodeStatusCommand{ID: a.NodeID, Status: away}).EvalID
				p := c.planFor("web", eval, 0, 0)
				p.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{{ID: a.ID, Client: client}}}}
				if back != away {
					c.apply(&structs.NodeStatusCommand{ID: a.NodeID, Status: back})
				}
				want := in == feature.Oldest || back == away
				r := c.apply(p).Plan
				if r.Accepted[0] != want || !want && !strings.Contains(r.Refused, "has returned") {
					t.Errorf("format %d, a node that was %s is %s: %+v", in, away, back, r)
				}
				if is := c.f.Snapshot().AllocByID(a.ID).Client; (is == client) != want {
					t.Errorf("format %d, a node that was %s is %s: its allocation is %s", in, away, back, is)
				}
			}
		}
	}
}

func TestOneWriterPerField(t *testing.T) {
	c := newCluster(t, 1)
	id := c.nodes[0].ID
	n := *c.f.Snapshot().NodeByID(id)
	n.Status, n.Eligibility, n.Drain = structs.NodeDown, structs.NodeIneligible, &structs.DrainStrategy{}
	epoch := n.Epoch
	n.Epoch, n.Meta = 99, map[string]string{"rack": "7"}
	c.apply(&structs.NodeRegisterCommand{Node: &n})
	got := c.f.Snapshot().NodeByID(id)
	if !got.Ready() || got.Epoch == epoch || got.Epoch == 99 || got.Meta["rack"] != "7" {
		t.Errorf("after registering again: %+v", got)
	}
	before := c.f.Snapshot().TableIndex(state.Nodes)
	c.apply(&structs.NodeRegisterCommand{Node: &n})
	c.apply(&structs.NodeEventCommand{IDs: []structs.NodeID{id}, Events: []structs.NodeEvent{{Message: "x"}}})
	if after := c.f.Snapshot().NodeByID(id); after.Epoch != got.Epoch || c.f.Snapshot().TableIndex(state.Nodes) == before {
		t.Error("an event moves the index, and not the epoch")
	}
	sent := &structs.NodeEventCommand{IDs: []structs.NodeID{id}, Events: []structs.NodeEvent{{Message: "disk slow", Subsystem: "Storage", Time: 5}}}
	c.apply(sent)
	c.apply(sent) // by an agent that did not hear the answer
	later := *sent
	later.Events = []structs.NodeEvent{{Message: "disk slow", Subsystem: "Storage", Time: 6}}
	c.apply(&later)
	if n := len(c.f.Snapshot().NodeByID(id).Events) - len(got.Events); n != 3 {
		t.Errorf("the node has %d events more, want x and two that the disk is slow", n)
	}
	c.nodes[0].Epoch = got.Epoch
	n.SecretID = structs.SecretID{66}
	c.refused(&structs.NodeRegisterCommand{Node: &n}, "another secret")
	res := c.register(service("1", 1))
	c.placeAll(res.EvalID, 0, 1)
	c.refused(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: c.f.Snapshot().AllocsByJob(key)[0].ID, Client: structs.ClientLost}}}, "lost")
}

func TestDrain(t *testing.T) {
	c := newCluster(t, 1)
	id := c.nodes[0].ID
	res := c.register(service("1", 1))
	c.placeAll(res.EvalID, 0, 1)
	d := c.apply(&structs.NodeDrainCommand{ID: id, Strategy: &structs.DrainStrategy{Deadline: time.Hour}, Meta: map[string]string{"by": "me"}})
	n := c.f.Snapshot().NodeByID(id)
	if len(d.Evals) != 1 || n.Drain.ForceAt != n.Drain.StartedAt.Add(time.Hour) || n.Eligibility != structs.NodeIneligible || n.LastDrain.Status != "draining" {
		t.Errorf("draining: %+v %+v", d, n)
	}
	taint := func(add, remove []structs.Taint) structs.CommandBody {
		return &structs.NodeTaintCommand{ID: id, Add: add, Remove: remove}
	}
	c.refused(taint([]structs.Taint{{Key: "a", Effect: "odd"}}, nil), `effect "odd" is not known`, "no-execute")
	c.refused(taint([]structs.Taint{{Key: "a b", Effect: structs.TaintNoSchedule}}, nil), "letters, digits")
	c.refused(taint(nil, []structs.Taint{{Key: "a"}}), `has no taint "a"`)
	c.apply(taint([]structs.Taint{{Key: "b", Effect: structs.TaintNoSchedule}, {Key: "a", Value: "x", Effect: structs.TaintNoExecute}, {Key: "a", Effect: structs.TaintNoSchedule}}, nil))
	if n := c.f.Snapshot().NodeByID(id); len(n.Tainted) != 3 || n.Tainted[0].String() != "a=x:no-execute" || n.Tainted[0].Since == 0 || n.Epoch != n.ModifyIndex {
		t.Errorf("taints %v, epoch %d of %d", n.Tainted, n.Epoch, n.ModifyIndex)
	}
	c.apply(taint(nil, []structs.Taint{{Key: "a", Effect: structs.TaintNoSchedule}, {Key: "b"}}))
	if n := c.f.Snapshot().NodeByID(id); len(n.Tainted) != 1 {
		t.Errorf("taints %v", n.Tainted)
	}
	c.apply(taint(nil, []structs.Taint{{Key: "a"}}))
	c.refused(&structs.NodeEligibilityCommand{ID: id, Eligibility: structs.NodeEligible}, "draining")
	c.apply(&structs.NodeDrainCommand{ID: id, Complete: true})
	if n = c.f.Snapshot().NodeByID(id); n.Drain != nil || n.LastDrain.Status != "complete" || n.LastDrain.Meta["by"] != "me" || n.Ready() {
		t.Errorf("drained: %+v", n)
	}
}

func TestNodeEvaluations(t *testing.T) {
	c := newCluster(t, 2)
	sys := benchJob("agent", 1)
	sys.Type, sys.Datacenters = structs.JobSystem, []string{"dc*"}
	c.register(sys)
	other := benchJob("agent-eu", 1)
	other.Type, other.Datacenters = structs.JobSystem, []string{"eu-*"}
	c.register(other)
	res := c.register(service("1", 1))
	c.placeAll(res.EvalID, 0, 1)
	down := c.apply(&structs.NodeStatusCommand{ID: c.nodes[0].ID, Status: structs.NodeDown})
	if len(down.Evals) != 1 || c.f.Snapshot().EvalByID(down.Evals[0]).JobID != "web" {
		t.Errorf("down: %+v", down)
	}
	up := c.apply(&structs.NodeStatusCommand{ID: c.nodes[0].ID, Status: structs.NodeReady})
	jobs := map[string]bool{}
	for _, id := range up.Evals {
		jobs[c.f.Snapshot().EvalByID(id).JobID] = true
	}
	if !jobs["agent"] || !jobs["web"] || len(jobs) != 2 {
		t.Errorf("ready again: %v", jobs)
	}
	failed := c.observe(structs.ClientFailed)
	if len(failed.Evals) != 1 || c.f.Snapshot().EvalByID(failed.EvalID).Trigger != structs.TriggerRetryFailed {
		t.Errorf("failed: %+v", failed)
	}
	if again := c.observe(structs.ClientRunning); len(again.Evals) != 0 || c.f.Snapshot().AllocsByJob(key)[0].Client != structs.ClientFailed {
		t.Error("a failed allocation came back to life")
	}
}

func TestRefusals(t *testing.T) {
	c := newCluster(t, 1)
	reg := func(edit func(*structs.JobRegisterCommand)) *structs.JobRegisterCommand {
		r := &structs.JobRegisterCommand{Job: service("1", 1), Eval: true}
		edit(r)
		return r
	}
	c.refused(reg(func(r *structs.JobRegisterCommand) { r.Job.Namespace = "nope" }), "nonexistent namespace", "nope")
	c.refused(reg(func(r *structs.JobRegisterCommand) { r.Job.NodePool = "nope" }), "nonexistent node pool")
	c.refused(reg(func(r *structs.JobRegisterCommand) { r.EnforceIndex, r.SpecIndex = true, 7 }), "Enforcing job modify index 7")
	res := c.register(service("1", 1))
	c.refused(reg(func(r *structs.JobRegisterCommand) { r.EnforceIndex = true }), "Enforcing job modify index 0")
	c.refused(reg(func(r *structs.JobRegisterCommand) { r.Job.Type = structs.JobBatch }), "from type")
	c.apply(reg(func(r *structs.JobRegisterCommand) {
		r.EnforceIndex, r.SpecIndex, r.Job.Priority = true, res.SpecIndex, 51
	}))
	c.refused(&structs.PoolDeleteCommand{Names: []structs.PoolName{"default"}}, "built in")
	c.refused(&structs.NamespaceDeleteCommand{Names: []string{"default"}}, "cannot be deleted")
	c.apply(&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "team"}}})
	c.register(func() *structs.Job { j := benchJob("b", 1); j.Namespace = "team"; return j }())
	c.refused(&structs.NamespaceDeleteCommand{Names: []string{"team"}}, "non-terminal jobs")
	neg := int64(-1)
	c.refused(&structs.ScaleCommand{Namespace: "default", JobID: "web", Group: "group", Count: &neg}, "outside")
	tok := func(b byte) *structs.ACLToken {
		return &structs.ACLToken{Accessor: structs.AccessorID{b}, Secret: structs.SecretID{b}}
	}
	first := c.apply(&structs.ACLBootstrapCommand{Token: tok(1)})
	c.refused(&structs.ACLBootstrapCommand{Token: tok(2)}, fmt.Sprintf("reset index: %d", first.Index))
	c.apply(&structs.ACLBootstrapCommand{Token: tok(2), ResetIndex: first.Index})
	client := tok(3)
	client.Type = structs.TokenClient
	c.refused(&structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{client}}, "missing policies")
	client.Roles = []structs.ACLTokenRole{{Name: "nope"}}
	c.refused(&structs.TokenUpsertCommand{Tokens: []*structs.ACLToken{client}}, "cannot find role")
	c.refused(&structs.RoleUpsertCommand{Roles: []*structs.ACLRole{{Name: "r", Policies: []string{"nope"}}}}, "cannot find policy")
	c.refused(&structs.BatchCommand{Commands: []structs.Command{
		{Body: &structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: "half"}}}},
		{Body: &structs.PoolDeleteCommand{Names: []structs.PoolName{"all"}}},
	}}, "command 2")
	if c.f.Snapshot().Namespace("half") != nil {
		t.Error("a refused batch left its first command's work")
	}
	if res := c.apply(&structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{}, CAS: true, CASIndex: 9}); res.Swapped {
		t.Error("swapped at the wrong index")
	}
}

// TestOverlapIsDecidedFromState checks that a new leader, which remembers nothing, does not start a second run.
func TestOverlapIsDecidedFromState(t *testing.T) {
	c := newCluster(t, 1)
	parent := benchJob("cron", 1)
	parent.Periodic = &structs.Periodic{Enabled: true, ProhibitOverlap: true}
	if res := c.register(parent); !res.EvalID.IsZero() {
		t.Error("a periodic job itself is not evaluated")
	}
	launch := func(at structs.LogTime, forced bool) structs.Result {
		child := benchJob(fmt.Sprintf("cron/periodic-%d", at), 1)
		return c.try(&structs.PeriodicLaunchCommand{Namespace: "default", JobID: "cron", Launch: at, Child: child, Forced: forced})
	}
	if r := launch(100, false); r.ChildID != "cron/periodic-100" || r.EvalID.IsZero() {
		t.Errorf("first launch: %+v", r)
	}
	if r := launch(100, false); r.Err == nil {
		t.Error("the same time was launched twice")
	}
	if r := launch(200, false); r.Err != nil || r.ChildID != "" || c.f.Snapshot().PeriodicLaunch(structs.JobKey{Namespace: "default", ID: "cron"}).Launch != 200 {
		t.Errorf("overlapping launch: %+v", r)
	}
	if r := launch(300, true); r.ChildID == "" {
		t.Errorf("forced launch: %+v", r)
	}
}

// TestCollectedStateIsSmall checks I10: what is collected leaves the snapshot. The decision log and
// the accounting have limits of their own.
func TestCollectedStateIsSmall(t *testing.T) {
	c := newCluster(t, 10)
	size := func() int {
		var b bytes.Buffer
		if err := WriteSnapshot(&b, c.f.Snapshot()); err != nil {
			t.Fatal(err)
		}
		info, err := state.Inspect(&b)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, x := range info.Tables {
			if x.Name != state.DecisionLog.Name() && x.Name != state.Acct.Name() {
				sum += x.Bytes
			}
		}
		return int(sum)
	}
	empty := size()
	collect := &structs.CollectCommand{}
	for i := range 20 {
		id := fmt.Sprintf("job-%d", i)
		c.place(id, 100)
		collect.Jobs = append(collect.Jobs, structs.JobKey{Namespace: "default", ID: id})
	}
	full := size()
	done := &structs.AllocObservedCommand{}
	for a := range c.f.Snapshot().Allocs() {
		done.Updates = append(done.Updates, structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete})
	}
	c.apply(done)
	c.apply(collect)
	if now := size(); now > empty+1000 || full < 100*empty/10 {
		t.Errorf("%d bytes empty, %d full, %d collected", empty, full, now)
	}
	if n := len(c.f.store.AllCounts()); n != 0 {
		t.Errorf("%d counters left", n)
	}
}

// TestReadersBesideTheWriter reads snapshots from other goroutines while entries are applied; run it with -race.
func TestReadersBesideTheWriter(t *testing.T) {
	c := newCluster(t, 20)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := c.f.Snapshot()
				n := 0
				for a := range s.Allocs() {
					if s.AllocByID(a.ID) != a {
						t.Error("a snapshot disagrees with itself")
					}
					n++
				}
				if n != s.AllocCount() || s.Hash() != s.Rehash() {
					t.Errorf("a snapshot disagrees with itself: got %v, %v; want %v, %v", n, s.Hash(), s.AllocCount(), s.Rehash())
				}
			}
		})
	}
	for i := range 40 {
		c.place(fmt.Sprintf("job-%d", i), 10)
	}
	close(stop)
	wg.Wait()
}

func TestFailedRestoreLeavesTheOldState(t *testing.T) {
	c := newCluster(t, 3)
	var b bytes.Buffer
	if err := WriteSnapshot(&b, c.f.Snapshot()); err != nil {
		t.Fatal(err)
	}
	c.register(service("1", 1))
	hash, snap := c.f.Snapshot().Hash(), c.f.Snapshot()
	if _, err := c.f.Restore(bytes.NewReader(b.Bytes()[:b.Len()-1])); err == nil || c.f.Snapshot() != snap {
		t.Fatalf("a cut file: %v", err)
	}
	c.observe(structs.ClientRunning)
	if c.f.Snapshot().Hash() == hash && c.f.Snapshot().Time() == snap.Time() {
		t.Error("the old state no longer advances")
	}
	watch := c.f.Snapshot().Watch(state.Jobs)
	if _, err := c.f.Restore(&b); err != nil || c.f.Snapshot().JobByKey(key) != nil {
		t.Fatalf("restore: %v", err)
	}
	select {
	case <-watch:
	default:
		t.Error("a restore must wake every watcher")
	}
}

// TestSilentNode: a node is silent from the first heartbeat that it missed, until it answers or says that it leaves.
func TestSilentNode(t *testing.T) {
	c := newCluster(t, 1)
	id := c.nodes[0].ID
	status := func(s structs.NodeStatus, silent bool) structs.LogTime {
		t.Helper()
		c.apply(&structs.NodeStatusCommand{ID: id, Status: s, Silent: silent, Event: &structs.NodeEvent{Message: "x"}})
		return c.f.Snapshot().NodeByID(id).SilentAt
	}
	since := status(structs.NodeDisconnected, true)
	if since == 0 {
		t.Fatal("a node that missed its heartbeat is not silent")
	}
	if again := status(structs.NodeDown, true); again != since {
		t.Errorf("disconnected, then down: silent since %d, want %d", again, since)
	}
	n := *c.f.Snapshot().NodeByID(id)
	n.Meta, n.SilentAt = map[string]string{"rack": "8"}, 0
	c.apply(&structs.NodeRegisterCommand{Node: &n})
	if at := c.f.Snapshot().NodeByID(id).SilentAt; at != since {
		t.Errorf("after it registered: silent since %d, want %d", at, since)
	}
	if at := status(structs.NodeReady, false); at != 0 {
		t.Errorf("ready: silent since %d", at)
	}
	if at := status(structs.NodeDown, false); at != 0 {
		t.Errorf("a node that left is silent since %d", at)
	}
}

// TestNodePast: a node remembers the newest times during which it was ready, and whether it was lost then: not where its agent
// left, where contact returned, or where it took no new work.
func TestNodePast(t *testing.T) {
	c := newCluster(t, 1)
	id := c.nodes[0].ID
	now := func() structs.LogTime { return structs.LogTime(c.index) * 1e6 }
	pass := func(d time.Duration) { c.index += structs.Index(d / 1e6) }
	turn := func(s structs.NodeStatus, silent bool) *structs.Node {
		t.Helper()
		c.apply(&structs.NodeStatusCommand{ID: id, Status: s, Silent: silent})
		return c.f.Snapshot().NodeByID(id)
	}
	back := func() {
		t.Helper()
		pass(time.Hour)
		turn(structs.NodeReady, false)
		pass(10 * time.Hour)
	}
	want := func(what string, n *structs.Node, periods int, lost int64) {
		t.Helper()
		if _, got, _ := n.Past(now()); len(n.Periods) != periods || got != lost {
			t.Fatalf("%s: %d periods and %d losses, want %d and %d: %+v", what, len(n.Periods), got, periods, lost, n.Periods)
		}
	}
	turn(structs.NodeReady, false)
	pass(10 * time.Hour)
	want("lost", turn(structs.NodeDown, true), 1, 1)
	back()
	want("its agent left", turn(structs.NodeDown, false), 2, 1)
	back()
	turn(structs.NodeDisconnected, true)
	want("contact returned", turn(structs.NodeReady, false), 3, 1)
	back()
	turn(structs.NodeDisconnected, true)
	n := turn(structs.NodeDown, true)
	want("out of touch, then lost", n, 4, 2)
	if ready, _, _ := n.Past(now()); ready.Round(time.Minute) != 41*time.Hour { // it was back for an hour before the last 10
		t.Errorf("ready for %s", ready)
	}
	back()
	turn(structs.NodeInit, false)
	want("its agent ended, then its machine was lost", turn(structs.NodeDown, true), 5, 3)
	back()
	c.apply(&structs.NodeEligibilityCommand{ID: id, Eligibility: structs.NodeIneligible})
	want("ineligible", turn(structs.NodeDown, true), 6, 3)
	again := *c.f.Snapshot().NodeByID(id)
	again.Meta, again.Periods = map[string]string{"rack": "8"}, nil
	c.apply(&structs.NodeRegisterCommand{Node: &again})
	want("registered again", c.f.Snapshot().NodeByID(id), 6, 3)
	for range 2 * structs.ReadyPeriodsKept {
		back()
		n = turn(structs.NodeDown, true)
	}
	want("often", n, structs.ReadyPeriodsKept, 0)
	pass(structs.ReadyPeriodsAge + time.Hour)
	turn(structs.NodeReady, false)
	pass(time.Hour)
	want("after a month", turn(structs.NodeDown, false), 1, 0)
}

// TestGPUFault: a GPU that its node reports as failed is remembered and has an event, once. The agent cannot change what is
// remembered, and what a program may have caused does not count.
func TestGPUFault(t *testing.T) {
	c := newCluster(t, 1)
	id := c.nodes[0].ID
	c.apply(&structs.NodeStatusCommand{ID: id, Status: structs.NodeReady})
	report := func(change func(d *structs.DeviceInstance)) *structs.Node {
		t.Helper()
		n := *c.f.Snapshot().NodeByID(id)
		d := structs.DeviceInstance{ID: "GPU-1", Healthy: true, MemoryMiB: 80_000}
		change(&d)
		n.Resources.Devices = []structs.DeviceGroup{{Vendor: "nvidia", Type: "gpu", Name: "H100", Instances: []structs.DeviceInstance{d}}}
		n.GPUFaults = []structs.LogTime{1, 2, 3}
		c.apply(&structs.NodeRegisterCommand{Node: &n})
		return c.f.Snapshot().NodeByID(id)
	}
	fault := func(d *structs.DeviceInstance) {
		d.Healthy, d.Failed, d.HealthDesc = false, true, "XID 79 (fell off the bus)"
	}
	report(func(*structs.DeviceInstance) {})
	if n := report(func(d *structs.DeviceInstance) { d.Healthy, d.HealthDesc = false, "XID 500" }); len(n.GPUFaults) > 0 {
		t.Fatalf("unhealthy for another reason: %v", n.GPUFaults)
	}
	n := report(fault)
	if at := n.GPUFaults; len(at) != 1 || at[0] != structs.LogTime(c.index)*1e6 || !n.WasLost() {
		t.Fatalf("faults %v at %d", n.GPUFaults, c.index)
	}
	if e := n.Events[len(n.Events)-1]; e.Details["gpu"] != "GPU-1" || e.Details["reason"] != "XID 79 (fell off the bus)" {
		t.Errorf("the last event is %+v", e)
	}
	c.index += structs.Index(24 * time.Hour / 1e6)
	if n := report(func(d *structs.DeviceInstance) { fault(d); d.HealthDesc = "the GPU is lost" }); len(n.GPUFaults) != 1 {
		t.Errorf("it stays failed: %v", n.GPUFaults)
	}
	report(func(*structs.DeviceInstance) {})
	if n := report(fault); len(n.GPUFaults) != 2 {
		t.Errorf("it fails again: %v", n.GPUFaults)
	}
}

// TestLapsed: an allocation that its node ended because contact was lost is lost, and its job is decided again.
func TestLapsed(t *testing.T) {
	c := newCluster(t, 1)
	res := c.register(service("1", 1))
	c.placeAll(res.EvalID, 0, 1)
	id := c.f.Snapshot().AllocsByJob(key)[0].ID
	c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: structs.ClientRunning, Lapsed: true}}})
	if a := c.f.Snapshot().AllocByID(id); a.Client != structs.ClientRunning {
		t.Errorf("it runs and is %s", a.Client)
	}
	d := c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: structs.ClientComplete, Lapsed: true}}})
	if a := c.f.Snapshot().AllocByID(id); a.Client != structs.ClientLost || a.Desired != structs.DesiredRun {
		t.Errorf("it is %s, desired %s; want lost", a.Client, a.Desired)
	}
	if len(d.Evals) != 1 || c.f.Snapshot().EvalByID(d.Evals[0]).Trigger != structs.TriggerNodeUpdate {
		t.Errorf("evaluations %+v; want one of a lost node", d.Evals)
	}
}

// TestOneRollingUpdate: the evaluation that a plan makes for a rolling update cancels the earlier ones of the job, and
// nothing else.
func TestOneRollingUpdate(t *testing.T) {
	c := newCluster(t, 3)
	first := c.register(service("1", 2)).EvalID
	later := func(n uint64, trigger structs.Trigger) *structs.Evaluation {
		return &structs.Evaluation{ID: structs.DeriveID[structs.EvalID](structs.Seed{9}, "later", "", n), Namespace: key.Namespace, JobID: key.ID, Trigger: trigger,
			Status: structs.EvalPending, WaitUntil: structs.LogTime(n) << 50}
	}
	retry, a, b := later(1, structs.TriggerRetryFailed), later(2, structs.TriggerRollingUpdate), later(3, structs.TriggerRollingUpdate)
	for _, evals := range [][]*structs.Evaluation{{retry, a}, {b}} {
		p := c.planFor("web", first, 0, 0)
		p.Evals = evals
		c.apply(p)
	}
	for e, want := range map[*structs.Evaluation]structs.EvalStatus{retry: structs.EvalPending, a: structs.EvalCanceled, b: structs.EvalPending} {
		if got := c.f.Snapshot().EvalByID(e.ID); got.Status != want || want == structs.EvalCanceled && got.Successor != b.ID {
			t.Errorf("the evaluation of %s until %d is %s, want %s", got.Trigger, got.WaitUntil, got.Status, want)
		}
	}
}
