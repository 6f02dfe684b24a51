package server

import (
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/planner"
	"github.com/muster-sched/muster/structs"
)

// steps is the path of a decision without goroutines: state machine, view, broker, planner and scheduler, one step after
// the other, so that a seed gives one history.
type steps struct {
	fsm     *fsm.FSM
	view    *model.View
	broker  *broker.Broker
	planner *planner.Planner
	index   structs.Index
	now     structs.LogTime
	eager   bool // every event is told as one that may cure anything: no blocked job is ever skipped
	seeds   uint64
	taken   int
	empty   int // jobs that a pass took and had nothing to say about
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
		m.seeds++ // decisions make no ids of it; so both histories draw the same
	}
	cmd := structs.Command{Time: m.now, Body: body}
	cmd.Seed[0], cmd.Seed[1], cmd.Seed[2], cmd.Seed[3] = byte(m.seeds), byte(m.seeds>>8), byte(m.seeds>>16), 7
	data, err := fsm.Encode(cmd)
	if err != nil {
		t.Fatal(err)
	}
	res, delta := m.fsm.ApplyBatch([]fsm.Entry{{Index: m.index, Data: data}})
	m.view = m.view.Advance(delta)
	m.planner.Advance(m.index)
	m.broker.Feed(&delta, m.now)
	if m.eager {
		for _, name := range m.broker.Domains() {
			m.broker.Unblock(name, unblock.Any, m.index, m.now)
		}
	}
	return res[0]
}

// settle decides until nothing is ready. Writes of decisions wake nobody by themselves in the eager run, else it would
// never end.
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
			in.Pending = append(in.Pending, contend.Workload{Key: it.Key, Job: snap.JobByKey(it.Key), Evals: it.Evals,
				Blocked: it.Blocked, Queue: it.Workload, Allocs: snap.AllocsByJob(it.Key)})
		}
		plan, _ := scheduler.Schedule(in, policy.For(in.View.Pool(p.Domain), in.Config))
		m.broker.EndPass(p.ID)
		m.taken += len(p.Items)
		m.empty += len(p.Items) - len(plan.Entries)
		refused := map[structs.JobKey]bool{}
		for _, e := range plan.Entries {
			k := structs.JobKey{Namespace: e.Namespace, ID: e.JobID}
			if _, a, done := m.planner.Propose(m.view, snap.JobByKey(k), e, false); done {
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

// placements is what runs where, as text.
func placements(s *state.Snapshot) (out []string) {
	for a := range s.Allocs() {
		if !a.Terminal() {
			out = append(out, fmt.Sprintf("%s %s", a.Name(), a.NodeID.Short()))
		}
	}
	slices.Sort(out) // ids, and with them the table's order, follow the log index, which a report that changed moves
	return out
}

// TestSkippingDecidesAsNotSkipping runs one random history twice: once blocked jobs are skipped until something happens
// that may cure them, once everything that happens wakes all of them. What runs where must be equal after every event.
func TestSkippingDecidesAsNotSkipping(t *testing.T) {
	events := 6_000
	if s := os.Getenv("MUSTER_CHECKS"); s != "" {
		events, _ = strconv.Atoi(s)
	} else if testing.Short() {
		events = 1_000
	}
	seed := time.Now().UnixNano()
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		seed, _ = strconv.ParseInt(s, 10, 64)
	}
	t.Logf("seed %d (repeat with MUSTER_SEED)", seed)
	checks, blocked, saved, ended := 0, 0, 0, 0
	for round := int64(0); events > 0; round++ {
		lazy, eager := newSteps(false), newSteps(true)
		for i := range 4 {
			node := testNode(i)
			node.Attributes = map[string]string{"rack": fmt.Sprint(i % 2)}
			for _, m := range []*steps{lazy, eager} {
				m.write(t, &structs.NodeRegisterCommand{Node: node})
				m.write(t, &structs.NodeStatusCommand{ID: node.ID, Status: structs.NodeReady})
			}
		}
		r := rand.New(rand.NewSource(seed + round))
		for range 60 {
			events--
			var body structs.CommandBody
			snap := lazy.fsm.Snapshot()
			var livers []*structs.Allocation
			for a := range snap.Allocs() {
				if !a.ClientTerminal() {
					livers = append(livers, a)
				}
			}
			switch k := r.Intn(10); {
			case k < 4:
				id := fmt.Sprint("j", r.Intn(12))
				body = &structs.JobRegisterCommand{Eval: true, Job: passJob(id, 1+r.Intn(3), func(j *structs.Job) {
					j.Priority = 30 + 10*r.Intn(4)
					j.Groups[0].Tasks[0].Resources.MemoryMiB = int64(1000 * (1 + r.Intn(6)))
					switch r.Intn(4) {
					case 0:
						j.Constraints = []structs.Constraint{{LTarget: "${attr.rack}", RTarget: fmt.Sprint(r.Intn(3)), Operand: "="}}
					case 1:
						j.Constraints = []structs.Constraint{{Operand: structs.OperandDistinctHosts}}
					}
				})}
			case k < 8 && len(livers) > 0:
				a := livers[r.Intn(len(livers))]
				st := structs.ClientRunning
				if a.ServerTerminal() || r.Intn(3) == 0 {
					st = structs.ClientComplete
					ended++
				}
				body = &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: st, StartedAt: lazy.now}}}
			case k == 8:
				body = &structs.JobDeregisterCommand{Namespace: "default", JobID: fmt.Sprint("j", r.Intn(12)), Purge: r.Intn(3) == 0}
			default:
				el := structs.NodeEligible
				if r.Intn(2) == 0 {
					el = structs.NodeIneligible
				}
				body = &structs.NodeEligibilityCommand{ID: testNode(r.Intn(4)).ID, Eligibility: el}
			}
			// A report that changed is an entry more in one history: without this the ids derived from indexes, and what is
			// chosen by them, would differ for no reason that matters.
			lazy.index = max(lazy.index, eager.index)
			eager.index = lazy.index
			for _, m := range []*steps{lazy, eager} {
				m.now += 1_000_000
				m.write(t, body)
				m.settle(t)
			}
			a, b := placements(lazy.fsm.Snapshot()), placements(eager.fsm.Snapshot())
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("round %d of seed %d, after %T:\nskipping:     %v\nnot skipping: %v", round, seed, body, a, b)
			}
			checks++
		}
		blocked += lazy.broker.Len().Blocked
		saved += eager.taken - lazy.taken
	}
	t.Logf("%d checks; %d jobs blocked at the end of a round, %d decisions skipped, %d allocations ended", checks, blocked, saved, ended)
	if blocked == 0 || saved == 0 || ended == 0 {
		t.Error("nothing was blocked, skipped or ended: the run proves nothing")
	}
}

func poolsOf(s *state.Snapshot) (ps []*structs.NodePool) {
	for p := range s.Pools() {
		ps = append(ps, p)
	}
	return ps
}
