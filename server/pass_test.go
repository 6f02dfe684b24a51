package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// fleet acts as the agents of some nodes: it sends heartbeats, starts what is placed, and ends what must stop.
type fleet struct {
	t    *testing.T
	s    func() *Server // the leader, or nil
	kill time.Duration  // time that a task takes to stop

	mu      sync.Mutex
	nodes   []*structs.Node
	dead    map[structs.NodeID]bool
	stops   map[structs.AllocID]time.Time
	runs    map[string]time.Duration // by job: its tasks end by themselves after this time
	fails   map[string]bool          // by job: its tasks fail as soon as they start
	odd     map[string]int           // by job: the task of every n-th index fails
	keeps   bool                     // preempted work continues where it was
	asks    bool                     // asks for a turn before work saves its state
	prompt  bool                     // work starts at its placement, as in the simulator, not when the places that it waits for are free
	untimed bool                     // agents of an older release: they do not time saves
	disks   map[string]*sharedDisk   // by storage: how it serves saves; others take the time kill

	seen *state.Snapshot // the state of the last turn; nil: something else has changed since
	due  time.Time       // until then there is nothing to do in this state
}

// fleetFails is set in the environment of tasks that fail as soon as they start.
const fleetFails = "FAILS"

func newFleet(t *testing.T, s func() *Server, n int) *fleet {
	t.Helper()
	f := &fleet{t: t, s: s, dead: map[structs.NodeID]bool{}, stops: map[structs.AllocID]time.Time{},
		runs: map[string]time.Duration{}, fails: map[string]bool{}, odd: map[string]int{}}
	for i := range n {
		f.nodes = append(f.nodes, readyNode(t, s(), i))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTimer(0)
		defer t.Stop()
		for tick := 0; ; tick++ {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			f.turn(ctx, tick%50 == 0)
			t.Reset(100 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

// newGPUFleet is newFleet of one node with GPUs.
func newGPUFleet(t *testing.T, s *Server, gpus int) *fleet {
	t.Helper()
	f := newFleet(t, one(s), 0)
	n := testNode(0)
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
	for i := range gpus {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprint("GPU-", i), Healthy: true, MemoryMiB: 81920})
	}
	n.Resources.Devices = []structs.DeviceGroup{g}
	mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
	mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
	f.set(func() { f.nodes = append(f.nodes, n) })
	return f
}

// batch submits a batch job of a user, which runs for its time limit on some GPUs.
func (f *fleet) batch(id string, queue structs.QueuePath, user string, gpus int64, runs time.Duration) {
	f.t.Helper()
	f.set(func() { f.runs[id] = runs })
	mustApplyBy(f.t, f.s(), user, &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
		j.Type, j.Queue, j.Runtime.Limit, j.Groups[0].Reschedule = structs.JobBatch, queue, runs, structs.Reschedule{}
		j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: gpus}}
	})})
}

func (f *fleet) turn(ctx context.Context, beat bool) {
	s := f.s()
	if s == nil {
		return
	}
	f.mu.Lock()
	var up []structs.AllocObserved
	snap := s.Published().Snapshot
	now := time.Now()
	for _, n := range f.nodes {
		if beat && !f.dead[n.ID] {
			s.nodes.Beats.Beat(n.ID)
		}
	}
	if snap == f.seen && now.Before(f.due) {
		f.mu.Unlock()
		return
	}
	due := now.Add(time.Hour)
	at := func(t time.Time) {
		if t.Before(due) {
			due = t
		}
	}
	for _, n := range f.nodes {
		if f.dead[n.ID] {
			continue
		}
		for _, a := range snap.AllocsByNode(n.ID) {
			switch {
			case a.ClientTerminal():
			case a.ServerTerminal():
				end, stopping := f.stops[a.ID]
				if !stopping && f.asks && !f.hasTurn(ctx, s, a) {
					at(now)
					continue
				}
				if d := f.diskOf(a); d != nil {
					at(now)
					if u := d.save(a, now); u != nil {
						if f.untimed {
							u.Saved.Took = 0
						}
						up = append(up, *u)
					}
					f.stops[a.ID] = now
				} else if !stopping {
					f.stops[a.ID] = now.Add(f.kill)
					at(f.stops[a.ID])
				} else if at(end); !now.Before(end) {
					up = append(up, structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete, StartedAt: a.StartedAt, FinishedAt: structs.LogTimeOf(now)})
				}
			case a.Client == structs.ClientPending && !f.prompt && slices.ContainsFunc(a.WaitsOn, func(id structs.AllocID) bool {
				w := snap.AllocByID(id)
				return w != nil && structs.Holds(w)
			}): // an agent starts it when they have ended
			case a.Client == structs.ClientPending && (f.fails[a.JobID] || a.Job.Groups[0].Tasks[0].Env[fleetFails] != "" || f.odd[a.JobID] > 0 && a.NameIndex%f.odd[a.JobID] == 0):
				up = append(up, structs.AllocObserved{ID: a.ID, Client: structs.ClientFailed, StartedAt: structs.LogTimeOf(now)})
			case a.Client == structs.ClientPending:
				up = append(up, structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning, StartedAt: structs.LogTimeOf(now)})
			case f.runs[a.JobID] > 0:
				end := a.StartedAt.Time().Add(f.runs[a.JobID] - f.before(snap, a))
				if at(end); now.Before(end) {
					continue
				}
				up = append(up, structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete, StartedAt: a.StartedAt, FinishedAt: structs.LogTimeOf(now)})
			}
		}
	}
	if f.seen, f.due = snap, due; len(up) > 0 {
		f.seen = nil // what is reported may be lost
	}
	f.mu.Unlock()
	if len(up) > 0 {
		s.apply(ctx, replica.LanePriority, structs.Command{Body: &structs.AllocObservedCommand{Updates: up}})
	}
}

// before returns how long an allocation's job had run before it, as far as that counts.
func (f *fleet) before(snap *state.Snapshot, a *structs.Allocation) time.Duration {
	if !f.keeps {
		return 0
	}
	w := snap.Workload(a.JobKey())
	if w == nil {
		return 0
	}
	return time.Duration(w.Attained) * time.Second / time.Duration(max(1, structs.AmountOf(a).GPUMilli/1000))
}

func (f *fleet) hasTurn(ctx context.Context, s *Server, a *structs.Allocation) bool {
	turn, err := s.endpoints.NodeSaveTurn(ctx, nil, &methods.NodeSaveTurnRequest{NodeAuth: methods.NodeAuth{NodeID: a.NodeID}, AllocID: a.ID})
	return err == nil && turn.Now
}

// join adds a node to the fleet.
func (f *fleet) join(s *Server, i int) *structs.Node {
	f.t.Helper()
	node := readyNode(f.t, s, i)
	f.set(func() { f.nodes = append(f.nodes, node) })
	return node
}

// readyNode registers a node, which is ready then.
func readyNode(t *testing.T, s *Server, i int) *structs.Node {
	t.Helper()
	node := testNode(i)
	mustApply(t, s, &structs.NodeRegisterCommand{Node: node})
	mustApply(t, s, &structs.NodeStatusCommand{ID: node.ID, Status: structs.NodeReady})
	return node
}

func (f *fleet) set(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = nil
	fn()
}

func mustApply(t *testing.T, s *Server, body structs.CommandBody) structs.Result {
	t.Helper()
	return mustApplyBy(t, s, "", body)
}

func mustApplyBy(t *testing.T, s *Server, user string, body structs.CommandBody) structs.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := s.apply(ctx, replica.LaneUser, structs.Command{By: structs.Submitter{Name: user}, Body: body})
	if err != nil {
		t.Fatalf("%T: %v", body, err)
	}
	return res
}

// passJob returns a service of n allocations for the driver that testNode has.
func passJob(id string, n int, edit func(*structs.Job)) *structs.Job {
	j := &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Name: id, Type: structs.JobService, Priority: 50, Region: structs.RegionDefault,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
		Groups: []*structs.Group{{Name: "g", Count: n, Disk: structs.EphemeralDisk{SizeMiB: 10},
			Restart: structs.Restart{Attempts: 0, Mode: "fail"}, Reschedule: structs.Reschedule{Unlimited: true, Delay: 30 * time.Second, DelayFunction: structs.DelayConstant},
			Tasks: []*structs.Task{{Name: "t", Driver: "fake", Resources: structs.Resources{CPU: 100, MemoryMiB: 64}}}}}}
	if edit != nil {
		edit(j)
	}
	return j
}

func register(t *testing.T, s *Server, j *structs.Job) structs.Result {
	t.Helper()
	return mustApply(t, s, &structs.JobRegisterCommand{Job: j, Eval: true})
}

// live returns the allocations of a job that should run and have not ended.
func live(s *Server, job string) (as []*structs.Allocation) {
	for _, a := range s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: structs.NamespaceDefault, ID: job}) {
		if !a.Terminal() {
			as = append(as, a)
		}
	}
	return as
}

func running(s *Server, job string) (n int) {
	for _, a := range live(s, job) {
		if a.Client == structs.ClientRunning {
			n++
		}
	}
	return n
}

// openEvals counts evaluations without an answer. Blocked ones have been answered.
func openEvals(s *Server) (n int) {
	for e := range s.Published().Snapshot.Evals() {
		if e.Status == structs.EvalPending && e.WaitUntil <= s.replica.Now() {
			n++
		}
	}
	return n
}

// overcommitted names a node that holds more than it has.
func overcommitted(s *Server) string {
	snap := s.Published().Snapshot
	for n := range snap.Nodes() {
		if u := structs.Usage(snap.AllocsByNode(n.ID)); !u.Fits(structs.Vector{CPU: n.Resources.CPU, Cores: n.Resources.Cores, MemoryMiB: n.Resources.MemoryMiB, DiskMiB: n.Resources.DiskMiB}) {
			return fmt.Sprintf("node %s holds %+v", n.Name, u)
		}
	}
	return ""
}

func one(s *Server) func() *Server { return func() *Server { return s } }

func TestFiftyJobsArePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 10)
		for i := range 50 {
			register(t, s, passJob(fmt.Sprint("job-", i), 3, nil))
		}
		for i := range 50 {
			waitFor(t, 10*time.Second, "running job", func() bool { return running(s, fmt.Sprint("job-", i)) == 3 })
		}
		if n := openEvals(s); n != 0 {
			t.Errorf("%d evaluations are open at rest", n)
		}
		if over := overcommitted(s); over != "" {
			t.Error(over)
		}
		f := s.decide.Metrics()
		if f.Planner.Places != 150 {
			t.Errorf("%d placements, want 150", f.Planner.Places)
		}
		t.Logf("%+v", f)
	})
}

// TestBurstSharesEntries registers many jobs at once: their plans share log entries, and the pipeline is deep.
func TestBurstSharesEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 20)
		var props []*replica.Proposal
		for i := range 400 {
			props = append(props, s.decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: passJob(fmt.Sprint("job-", i), 1, nil), Eval: true}}))
		}
		for _, p := range props {
			if _, err := p.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, 20*time.Second, "400 placements", func() bool { return s.Published().Snapshot.AllocCount() == 400 })
		waitFor(t, 20*time.Second, "rest", func() bool { return openEvals(s) == 0 })
		if over := overcommitted(s); over != "" {
			t.Error(over)
		}
		f := s.decide.Metrics()
		t.Logf("plans per entry %.1f (most %d), depth %.1f (most %d), %+v", float64(f.Planner.Plans)/float64(f.Planner.Entries), f.Planner.PlansMax, float64(f.Planner.DepthSum)/float64(f.Planner.Entries), f.Planner.DepthMax, f)
		if f.Planner.PlansMax < 2 {
			t.Errorf("no two plans shared a log entry: got %v, want at least 2", f.Planner.PlansMax)
		}
	})
}

// TestBlockedJobRunsWhenCapacityAppears (I3): a blocked job runs within 2 s.
func TestBlockedJobRunsWhenCapacityAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 1)
		big := func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 5000 }
		register(t, s, passJob("a", 1, big))
		waitFor(t, 5*time.Second, "a", func() bool { return running(s, "a") == 1 })
		register(t, s, passJob("b", 1, big))
		key := structs.JobKey{Namespace: "default", ID: "b"}
		waitFor(t, 5*time.Second, "blocked evaluation", func() bool {
			w := s.Published().Snapshot.Workload(key)
			return w != nil && !w.BlockedEval.IsZero()
		})
		if got := s.decide.Reports(key); len(got) != 1 || got[0].Code != structs.ReasonResources {
			t.Errorf("reports in memory: %+v, want one with %s", got, structs.ReasonResources)
		}
		if q := s.endpoints.Waiting(s.Published()); len(q) != 1 || q[0].JobID != key.ID {
			t.Errorf("queue %v, want [%v]", q, key)
		}
		if n := holding(t, s); n.Blocked != 1 || n.Ready != 0 {
			t.Errorf("the broker holds %+v, want one blocked job", n)
		}
		mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: "a"})
		waitFor(t, 2*time.Second, "b", func() bool { return running(s, "b") == 1 })
		waitFor(t, time.Second, "blocked evaluation completed", func() bool {
			for e := range s.Published().Snapshot.Evals() {
				if !e.Terminal() {
					return false
				}
			}
			return true
		})
		before := s.decide.Metrics().Broker.Passes
		time.Sleep(time.Minute)
		if n := s.decide.Metrics().Broker.Passes - before; n > 0 {
			t.Errorf("%d passes in a minute in which nothing happened", n)
		}
	})
}

// TestEvaluationsCoalesce: many triggers of one job are answered by one decision.
func TestEvaluationsCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 3)
		mustApply(t, s, &structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{PauseBroker: true}})
		register(t, s, passJob("a", 2, nil))
		for range 30 {
			mustApply(t, s, &structs.EvalUpsertCommand{Evals: []*structs.Evaluation{{Namespace: "default", JobID: "a",
				Type: structs.JobService, Priority: 50, Trigger: structs.TriggerNodeUpdate, Status: structs.EvalPending}}})
		}
		if n := len(live(s, "a")); n != 0 {
			t.Fatalf("%d allocations although decisions are paused", n)
		}
		mustApply(t, s, &structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{}})
		waitFor(t, 5*time.Second, "a", func() bool { return running(s, "a") == 2 })
		complete, canceled := 0, 0
		waitFor(t, 5*time.Second, "answers", func() bool { return openEvals(s) == 0 })
		for e := range s.Published().Snapshot.Evals() {
			switch e.Status {
			case structs.EvalComplete:
				complete++
			case structs.EvalCanceled:
				canceled++
				if e.Successor.IsZero() {
					t.Error("a canceled evaluation does not name its successor")
				}
			}
		}
		// Two if the decision about the registration had begun before the others were known.
		if complete < 1 || complete > 2 || complete+canceled != 31 {
			t.Errorf("%d complete and %d canceled, want 31 answered by one or two decisions", complete, canceled)
		}
	})
}

// TestDelayedReschedule: a failed allocation comes back after its delay, and not before.
func TestDelayedReschedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		f.fails["a"] = true
		began := time.Now()
		register(t, s, passJob("a", 1, nil))
		waitFor(t, 5*time.Second, "failure", func() bool {
			return failed(s, "a") == 1
		})
		f.set(func() { f.fails["a"] = false })
		waitFor(t, time.Minute, "replacement", func() bool { return running(s, "a") == 1 })
		if d := time.Since(began); d < 30*time.Second || d > 33*time.Second {
			t.Errorf("replaced after %s, want 30 s", d)
		}
	})
}

// holding returns what the broker holds now. It is counted at most once a second.
func holding(t *testing.T, s *Server) broker.Len {
	t.Helper()
	time.Sleep(2 * time.Second)
	return s.decide.Metrics().Holding
}

func failed(s *Server, job string) (n int) {
	for _, a := range s.Published().Snapshot.AllocsByJob(structs.JobKey{Namespace: "default", ID: job}) {
		if a.Client == structs.ClientFailed {
			n++
		}
	}
	return n
}

// TestPanicFailsOneEvaluation: the other jobs of the pass are placed. The bad evaluation fails and is tried again
// later, a bounded number of times.
func TestPanicFailsOneEvaluation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plant := func(in scheduler.Input) {
			for i := range in.Pending {
				if in.Pending[i].Key.ID == "bad" {
					panic("planted")
				}
			}
		}
		s := testServer(t, func(cfg *Config) { cfg.Testing.Decide.BeforeSchedule = plant })
		newFleet(t, one(s), 3)
		mustApply(t, s, &structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{PauseBroker: true}})
		for _, id := range []string{"a", "bad", "c"} {
			register(t, s, passJob(id, 1, nil))
		}
		mustApply(t, s, &structs.SchedulerConfigCommand{Config: &structs.SchedulerConfig{}})
		waitFor(t, 5*time.Second, "the good jobs", func() bool { return running(s, "a") == 1 && running(s, "c") == 1 })
		time.Sleep(40 * time.Minute)
		evals := s.Published().Snapshot.EvalsByJob(structs.JobKey{Namespace: "default", ID: "bad"})
		for _, e := range evals {
			if e.Status != structs.EvalFailed {
				t.Errorf("evaluation %s is %s, want failed", e.ID, e.Status)
			}
		}
		if n := len(evals); n != 7 {
			t.Errorf("%d evaluations of the bad job, want 7: the first and its follow-ups", n)
		}
	})
}

// TestSpeculativePlacement: a new job on an idle cluster is placed by a plan that was proposed before the registration
// was committed. A refused registration leaves nothing behind.
func TestSpeculativePlacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		newFleet(t, one(s), 3)
		for i := range 20 {
			id := fmt.Sprint("job-", i)
			res := register(t, s, passJob(id, 2, nil))
			waitFor(t, 5*time.Second, "placement", func() bool { return running(s, id) == 2 })
			waitFor(t, 5*time.Second, "answer", func() bool { return openEvals(s) == 0 })
			e := s.Published().Snapshot.EvalByID(res.EvalID)
			if e == nil || e.Status != structs.EvalComplete || e.JobSpecIndex != res.SpecIndex {
				t.Fatalf("evaluation %+v, want complete with the index of the specification", e)
			}
		}
		f := s.decide.Metrics()
		// Whether a pass sees a registration before its commit depends on timing; most do.
		if f.Broker.Speculated < 10 || f.Planner.PartsStale != 0 {
			t.Errorf("%d speculations and %d stale parts, want 10 of 20 at least, and 0", f.Broker.Speculated, f.Planner.PartsStale)
		}
		for i, bad := range []func(*structs.Job){
			func(j *structs.Job) { j.Namespace = "absent" },
			func(j *structs.Job) { j.Groups[0].Tasks[0].Resources.MemoryMiB = 1 << 20 },
		} {
			j := passJob(fmt.Sprint("bad-", i), 1, bad)
			s.apply(t.Context(), replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: j, Eval: true}})
			time.Sleep(5 * time.Second)
			if n := len(s.Published().Snapshot.AllocsByJob(j.Key())); n != 0 {
				t.Errorf("%d allocations of a job that cannot be placed", n)
			}
		}
		if n := holding(t, s); n.Ready+n.Blocked+n.Flight != 1 {
			t.Errorf("the broker holds %+v, want the one job that is too large", n)
		}
		// Two registrations of one job at once: whichever is first, what runs matches the state.
		for i := range 20 {
			id := fmt.Sprint("twice-", i)
			a, b := passJob(id, 1, nil), passJob(id, 3, nil)
			pa := s.decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: a, Eval: true}})
			pb := s.decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: b, Eval: true}})
			pa.Wait(t.Context())
			pb.Wait(t.Context())
			waitFor(t, 5*time.Second, "three of them", func() bool { return running(s, id) == 3 })
			mustApply(t, s, &structs.JobDeregisterCommand{Namespace: "default", JobID: id})
			waitFor(t, 5*time.Second, "none", func() bool { return len(live(s, id)) == 0 })
		}
		if over := overcommitted(s); over != "" {
			t.Error(over)
		}
	})
}

// TestSystemJobsMeetNewNodes: a system job that is registered in the moment in which a node becomes ready runs there, too. No
// evaluation of the node knows the job yet, and a decision that began before the node was ready does not see it.
func TestSystemJobsMeetNewNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		for i := range 40 {
			id := fmt.Sprint("sys-", i)
			n := testNode(1 + i)
			mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
			f.set(func() { f.nodes = append(f.nodes, n) })
			s.replica.Propose(replica.LanePriority, structs.Command{Body: &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady}})
			s.decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Groups[0].Tasks[0].Resources.CPU = structs.JobSystem, 10
			})}})
			time.Sleep(5 * time.Second)
			if got, want := running(s, id), 2+i; got != want {
				t.Fatalf("system job %d runs on %d of %d nodes", i, got, want)
			}
		}
	})
}
