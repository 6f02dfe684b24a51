package decide

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/planner"
	"github.com/muster-sched/muster/structs"
)

// steps is the path of a decision without goroutines: state machine, view, broker, planner and scheduler, one step
// after the other, so that a seed gives one history.
type steps struct {
	fsm     *fsm.FSM
	view    *model.View
	broker  *broker.Broker
	planner *planner.Planner
	index   structs.Index
	now     structs.LogTime
	eager   bool // every event may unblock every job, so no blocked job is skipped
	learns  bool // passes have predictions, as on a server
	learned predictor
	seeds   uint64
	taken   int
	empty   int // jobs that a pass took without a result
}

func newSteps(eager bool) *steps {
	m := &steps{fsm: fsm.New(fsm.Options{}), planner: planner.New(planner.Limits{}), now: 1_000_000_000, eager: eager}
	m.view = model.NewView(0, nil, nil, poolsOf(m.fsm.Snapshot()))
	m.broker = broker.New(broker.Limits{}, broker.Env{Lookup: func(k structs.JobKey) *structs.Workload { return m.fsm.Snapshot().Workload(k) }})
	m.broker.Load(broker.Image{}, m.now)
	return m
}

// write commits one command.
func (m *steps) write(t *testing.T, body structs.CommandBody) structs.Result {
	m.index++
	if _, decided := body.(*structs.PlansCommand); !decided {
		m.seeds++ // decisions derive no IDs from it, so both histories draw the same seeds
	}
	cmd := structs.Command{Time: m.now, Body: body}
	cmd.Seed[0], cmd.Seed[1], cmd.Seed[2], cmd.Seed[3] = byte(m.seeds), byte(m.seeds>>8), byte(m.seeds>>16), 7
	data, err := fsm.Encode(cmd, feature.Newest)
	if err != nil {
		t.Fatal(err)
	}
	res, delta, _ := m.fsm.ApplyBatch([]fsm.Entry{{Index: m.index, Data: data}})
	m.view = m.view.Advance(delta)
	m.planner.Advance(m.index)
	m.learned.feed(&delta, m.fsm.Snapshot())
	m.broker.Feed(&delta, m.now)
	if m.eager {
		for _, name := range m.broker.Domains() {
			m.broker.Unblock(name, unblock.Any, m.index, m.now)
		}
	}
	return res[0]
}

// settle decides until nothing is ready. Writes of decisions wake no jobs in the eager run, or it would never end.
func (m *steps) settle(t *testing.T) {
	eager := m.eager
	m.eager = false
	defer func() { m.eager = eager }()
	for n := 0; ; n++ {
		if n > 10_000 {
			t.Fatal("decisions go on for ever")
		}
		p, ok := m.broker.Take(m.now)
		if !ok {
			return
		}
		snap := m.fsm.Snapshot()
		in := scheduler.Input{View: m.view, Flight: m.planner.Overlay(), Config: *snap.SchedulerConfig(), Now: m.now}
		for _, it := range p.Items {
			w := contend.Workload{Key: it.Key, Job: snap.JobByKey(it.Key), Evals: it.Evals,
				Blocked: it.Blocked, Queue: it.Workload, Allocs: snap.AllocsByJob(it.Key)}
			if m.learns {
				m.learned.predict(&w)
			}
			in.Pending = append(in.Pending, w)
		}
		plan, _ := scheduler.Schedule(in, policy.For(in.View.Pool(p.Domain), in.Config))
		m.broker.EndPass(p.ID)
		m.taken += len(p.Items)
		m.empty += len(p.Items) - len(plan.Entries)
		refused := map[structs.JobKey]bool{}
		for _, e := range plan.Entries {
			k := structs.JobKey{Namespace: e.Namespace, ID: e.JobID}
			if _, a, done := m.planner.Propose(m.view, snap.JobByKey(k), e, false, nil, 0); done {
				t.Fatalf("a plan was refused on the state that it was decided on: %s", a.Why)
			}
		}
		for {
			b, ok := m.planner.Next()
			if !ok {
				break
			}
			res := m.write(t, &structs.PlansCommand{Entries: b.Entries})
			for _, a := range m.planner.Landed(b.Seq, res.Index, res.Plans, m.index) {
				if a.Outcome != planner.Accepted {
					refused[a.Job] = true
					t.Fatalf("a plan was refused by Apply without any change between: %s", a.Why)
				}
			}
		}
		for _, it := range p.Items {
			if refused[it.Key] {
				m.broker.Nack(it.Key, m.index, m.now)
			} else {
				m.broker.Done(it.Key, m.index, m.now)
			}
		}
	}
}

// work advances the time in steps of a minute. Placed work starts, and ends when it has run for its job's time or must
// stop.
func (m *steps) work(t *testing.T, d time.Duration, runs map[string]time.Duration) {
	for ; d > 0; d -= time.Minute {
		m.now = m.now.Add(time.Minute)
		var seen []structs.AllocObserved
		for a := range m.fsm.Snapshot().Allocs() {
			switch {
			case a.ClientTerminal():
			case a.ServerTerminal(), a.Client == structs.ClientRunning && m.now.Sub(a.StartedAt) >= runs[a.JobID]:
				seen = append(seen, structs.AllocObserved{ID: a.ID, Client: structs.ClientComplete, StartedAt: a.StartedAt, FinishedAt: m.now})
			case a.Client == structs.ClientPending:
				seen = append(seen, structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning, StartedAt: m.now})
			}
		}
		if len(seen) > 0 {
			m.write(t, &structs.AllocObservedCommand{Updates: seen})
		}
		m.settle(t)
	}
}

// collect collects garbage as the leader's duty does when an operator requests it.
func (m *steps) collect(t *testing.T) {
	c := duty.NewCollect(duty.DefaultCollectLimits)
	c.Load(m.fsm.Snapshot(), m.now)
	c.Force()
	for !c.Idle() {
		cmds, next := c.Due(m.fsm.Snapshot(), m.now)
		for _, x := range cmds {
			m.write(t, x.Command.Body)
		}
		m.now = max(m.now, next)
	}
}

// placements returns what runs where, as text.
func placements(s *state.Snapshot) (out []string) {
	for a := range s.Allocs() {
		if !a.Terminal() {
			out = append(out, fmt.Sprintf("%s %s", a.Name(), a.NodeID.Short()))
		}
	}
	slices.Sort(out) // the table's order follows the IDs, and those the log index, which a changed report moves
	return out
}

func poolsOf(s *state.Snapshot) (ps []*structs.NodePool) {
	for p := range s.Pools() {
		ps = append(ps, p)
	}
	return ps
}

func testNode(i int) *structs.Node {
	n := &structs.Node{Name: fmt.Sprintf("node-%d", i), Datacenter: "dc1", Pool: "default", Status: structs.NodeReady,
		Attributes: map[string]string{"kernel.name": "linux"},
		Resources:  structs.NodeResources{CPU: 4000, Cores: 4, MHzPerCore: 1000, MemoryMiB: 8192, DiskMiB: 100000, DynamicPortMin: 20000, DynamicPortMax: 32000},
		Drivers:    map[string]*structs.DriverInfo{"fake": {Detected: true, Healthy: true}},
	}
	n.ID = structs.DeriveID[structs.NodeID](structs.Seed{1}, "node", "", uint64(i))
	n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", "", uint64(i))
	return n
}

// testJob returns a service of n allocations for the driver that testNode has.
func testJob(id string, n int, edit func(*structs.Job)) *structs.Job {
	j := &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Name: id, Type: structs.JobService, Priority: 50, Region: structs.RegionDefault,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
		Groups: []*structs.Group{{Name: "g", Count: n, Disk: structs.EphemeralDisk{SizeMiB: 10},
			Restart: structs.Restart{Attempts: 0, Mode: "fail"}, Reschedule: structs.Reschedule{Unlimited: true, Delay: 30 * time.Second, DelayFunction: "constant"},
			Tasks: []*structs.Task{{Name: "t", Driver: "fake", Resources: structs.Resources{CPU: 100, MemoryMiB: 64}}}}}}
	if edit != nil {
		edit(j)
	}
	return j
}
