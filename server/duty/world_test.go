package duty_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// builtin constructs each duty by name.
var builtin = map[string]func() duty.Duty{
	"gangs":          func() duty.Duty { return duty.NewGangs() },
	"runtime_limits": func() duty.Duty { return duty.NewRuntimeLimits() },
	"rollouts":       func() duty.Duty { return duty.NewRollouts() },
	"deadlines":      func() duty.Duty { return duty.NewDeadlines() },
	"taints":         func() duty.Duty { return duty.NewTaints() },
	"drains":         func() duty.Duty { return duty.NewDrains() },
	"windows":        func() duty.Duty { return duty.NewWindows() },
	"periodic":       func() duty.Duty { return duty.NewPeriodic(allowed, func(structs.JobKey, error) {}) },
	"arrays":         func() duty.Duty { return duty.NewArrays() },
	"collect":        func() duty.Duty { return duty.NewCollect(duty.DefaultCollectLimits) },
}

// began is the time at which every world begins, a full hour.
const began = structs.LogTime(1_700_000_400_000_000_000 / 3_600_000_000_000 * 3_600_000_000_000)

// world is a state machine with one duty, driven like a leader drives it.
type world struct {
	tb    testing.TB
	fsm   *fsm.FSM
	index structs.Index
	now   structs.LogTime
	duty  duty.Duty
	down  structs.LogTime // no command can be written before this time
	kept  []duty.Command
	told  func(c duty.Command, res structs.Result) // called for each command of the duty
	check func(cmds []duty.Command)                // called with the duty's commands before they are written
	loose bool                                     // commands from outside may be refused
}

func newWorld(tb testing.TB, d duty.Duty) *world {
	w := &world{tb: tb, fsm: fsm.New(fsm.Options{CheckWrites: true}), now: began, duty: d,
		told: func(duty.Command, structs.Result) {}, check: func([]duty.Command) {}}
	d.Load(w.snap(), w.now)
	return w
}

func (w *world) snap() *state.Snapshot { return w.fsm.Snapshot() }

// try applies a command and feeds the duty.
func (w *world) try(cmd structs.Command) structs.Result {
	w.tb.Helper()
	w.index++
	cmd.Time, cmd.Seed = w.now, structs.Seed(structs.DeriveID[structs.AllocID](structs.Seed{7}, "seed", "", uint64(w.index)))
	data, err := fsm.Encode(cmd, feature.Newest)
	if err != nil {
		w.tb.Fatal(err)
	}
	results, delta, _ := w.fsm.ApplyBatch([]fsm.Entry{{Index: w.index, Data: data}})
	w.duty.Feed(w.snap(), &delta, w.now)
	return results[0]
}

func (w *world) apply(cmd structs.Command) structs.Result {
	w.tb.Helper()
	res := w.try(cmd)
	if res.Err != nil && !w.loose {
		w.tb.Fatalf("%T was refused: %v", cmd.Body, res.Err)
	}
	return res
}

// settle writes what is due now, and returns when to ask again.
func (w *world) settle() (next structs.LogTime) {
	w.tb.Helper()
	for range 10_000 {
		cmds, next := w.duty.Due(w.snap(), w.now)
		w.check(cmds)
		cmds = append(w.kept, cmds...)
		w.kept = nil
		for i, c := range cmds {
			if w.now < w.down {
				for _, rest := range cmds[i:] {
					if rest.Keep {
						w.kept = append(w.kept, rest)
					}
				}
				w.now = w.now.Add(time.Second)
				w.duty.Load(w.snap(), w.now)
				break
			}
			w.told(c, w.try(c.Command))
		}
		if len(cmds) == 0 {
			return next
		}
	}
	w.tb.Fatal("the duty does not come to an end")
	return 0
}

// runUntil advances the time as a leader's runner does.
func (w *world) runUntil(until structs.LogTime) (next structs.LogTime) {
	w.tb.Helper()
	for next = w.settle(); next != 0 && next <= until; next = w.settle() {
		w.now = max(w.now, next)
	}
	w.now = max(w.now, until)
	return next
}

func key(id string) structs.JobKey { return structs.JobKey{Namespace: "default", ID: id} }

func nodeID(name string) structs.NodeID {
	return structs.DeriveID[structs.NodeID](structs.Seed{1}, "node", name, 0)
}

func (w *world) addNode(name string) {
	w.tb.Helper()
	w.apply(structs.Command{Body: &structs.NodeRegisterCommand{Node: &structs.Node{
		ID: nodeID(name), SecretID: structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", name, 0), Name: name, Datacenter: "dc1", Pool: "default",
		Resources: structs.NodeResources{CPU: 100_000, MemoryMiB: 1 << 20}}}})
	w.nodeStatus(name, structs.NodeReady)
}

func (w *world) nodeStatus(name string, s structs.NodeStatus) {
	w.tb.Helper()
	w.apply(structs.Command{Body: &structs.NodeStatusCommand{ID: nodeID(name), Status: s}})
}

// newJob returns a job with one group "g" of one task.
func newJob(id string, typ structs.JobType, count int) *structs.Job {
	return &structs.Job{Namespace: "default", ID: id, Name: id, Type: typ, Priority: 50, Datacenters: []string{"*"}, NodePool: "default",
		Groups: []*structs.Group{{Name: "g", Count: count, Tasks: []*structs.Task{{Name: "t", Driver: "fake", Resources: structs.Resources{CPU: 1, MemoryMiB: 1}}}}}}
}

func (w *world) register(j *structs.Job) {
	w.tb.Helper()
	w.apply(structs.Command{By: structs.Submitter{Name: "ann"}, Body: &structs.JobRegisterCommand{Job: j, Eval: j.Placeable()}})
}

// decide completes the open evaluations of a job, as the scheduler does when there is nothing left to do.
func (w *world) decide(id string) {
	w.tb.Helper()
	var done []*structs.Evaluation
	for _, e := range w.snap().EvalsByJob(key(id)) {
		if !e.Terminal() {
			d := *e
			d.Status = structs.EvalComplete
			done = append(done, &d)
		}
	}
	if len(done) > 0 {
		w.apply(structs.Command{Body: &structs.EvalUpsertCommand{Evals: done}})
	}
}

// place places the next count allocations of a job on nodes in turn; those of a gang in one plan.
func (w *world) place(id string, nodes []string, count int) structs.Result {
	w.tb.Helper()
	w.decide(id)
	j := w.snap().JobByKey(key(id))
	eval := structs.DeriveID[structs.EvalID](structs.Seed{3}, "eval", id, uint64(w.index))
	p := &structs.PlanEntry{Namespace: j.Namespace, JobID: j.ID, JobVersion: j.Version, JobCreate: j.CreateIndex, EvalID: eval,
		SnapshotIndex: w.index, Groups: []structs.GroupName{"g"}}
	for _, name := range nodes {
		p.Nodes = append(p.Nodes, structs.PlanNode{ID: nodeID(name), Epoch: w.snap().NodeByID(nodeID(name)).Epoch})
	}
	used := map[int]bool{}
	for _, a := range w.snap().AllocsByJob(j.Key()) {
		used[a.NameIndex] = used[a.NameIndex] || !a.Terminal() || j.Array != nil
	}
	roster := &structs.Roster{Namespace: j.Namespace, JobID: j.ID, Group: "g", Reason: structs.RosterPlaced}
	part := structs.PlanPart{}
	for i := 0; len(part.Places) < count; i++ {
		if !used[i] {
			at := len(part.Places) % len(nodes)
			part.Places = append(part.Places, structs.PlanPlace{Index: i, Node: at})
			roster.Members = append(roster.Members, structs.RosterMember{Alloc: structs.DeriveAllocID(eval, p.SnapshotIndex, "g", i), Node: p.Nodes[at].ID, Index: i})
		}
	}
	p.Parts = []structs.PlanPart{part}
	if j.Groups[0].Gang != nil {
		p.Rosters = []*structs.Roster{roster}
	}
	return w.apply(structs.Command{Body: p})
}

// stop stops allocations of a job as the scheduler does, on one node or ("") all nodes.
func (w *world) stop(id, node string) {
	w.tb.Helper()
	part := structs.PlanPart{}
	for _, a := range w.live(id, node) {
		part.Stops = append(part.Stops, structs.PlanStop{ID: a.ID, Desired: structs.DesiredStop})
	}
	w.apply(structs.Command{Body: &structs.PlanEntry{Namespace: "default", JobID: id, SnapshotIndex: w.index, Parts: []structs.PlanPart{part}}})
}

// live returns a job's allocations that have not ended, on one node or ("") all nodes, by index.
func (w *world) live(id, node string) (as []*structs.Allocation) {
	for _, a := range w.snap().AllocsByJob(key(id)) {
		if !a.ClientTerminal() && (node == "" || a.NodeID == nodeID(node)) {
			as = append(as, a)
		}
	}
	slices.SortFunc(as, func(a, b *structs.Allocation) int { return a.NameIndex - b.NameIndex })
	return as
}

// observe reports a status of allocations, as agents do.
func (w *world) observe(as []*structs.Allocation, status structs.ClientStatus) {
	w.tb.Helper()
	c := &structs.AllocObservedCommand{}
	for _, a := range as {
		o := structs.AllocObserved{ID: a.ID, Client: status, StartedAt: a.StartedAt}
		if status == structs.ClientRunning && a.StartedAt == 0 {
			o.StartedAt = w.now
		}
		if status == structs.ClientComplete || status == structs.ClientFailed {
			o.FinishedAt = w.now
		}
		c.Updates = append(c.Updates, o)
	}
	w.apply(structs.Command{Body: c})
}

// text returns what a command of a duty does, in the form that scripts expect.
func (w *world) text(c duty.Command) string {
	by := c.By.Name + ": "
	switch b := c.Body.(type) {
	case *structs.RosterCommand:
		return fmt.Sprintf("%sdissolve %s.%s epoch %d", by, b.JobID, b.Group, b.Epoch)
	case *structs.WorkloadCommand:
		return fmt.Sprintf("%s%s %s", by, b.Action, b.JobID)
	case *structs.AllocTransitionCommand:
		how := ""
		for _, f := range []struct {
			set  bool
			name string
		}{{b.Transition.Expire, "expire"}, {b.Transition.Leave, "leave"}, {b.Transition.Migrate, "migrate"}, {b.Transition.Reschedule, "reschedule"}} {
			if f.set {
				how = f.name
				break
			}
		}
		return by + how + w.allocs(b.IDs)
	case *structs.NodeDrainCommand:
		n := w.snap().NodeByID(b.ID)
		switch {
		case b.Strategy != nil:
			return fmt.Sprintf("%sdrain %s within %s", by, n.Name, b.Strategy.Deadline)
		case b.Complete:
			return fmt.Sprintf("%sdrain of %s complete", by, n.Name)
		}
		return fmt.Sprintf("%send drain of %s, mark eligible %v", by, n.Name, b.MarkEligible)
	case *structs.JobStableCommand:
		switch {
		case b.Failed != "":
			return fmt.Sprintf("%supdate of %s to version %d stopped: %s", by, b.JobID, b.Version, strings.ReplaceAll(b.Failed, "; auto_revert", ";\n    auto_revert"))
		case b.Stable:
			return fmt.Sprintf("%sversion %d of %s is stable", by, b.Version, b.JobID)
		}
		return fmt.Sprintf("%sversion %d of %s is not stable", by, b.Version, b.JobID)
	case *structs.JobRegisterCommand:
		return fmt.Sprintf("%sregister %s as version %d was", by, b.Job.ID, b.Job.Version)
	case *structs.UnreserveCommand:
		return fmt.Sprintf("%sdelete reservation %s", by, strings.Join(b.IDs, " "))
	case *structs.PeriodicLaunchCommand:
		return fmt.Sprintf("%slaunch %s for %s", by, b.JobID, since(b.Launch))
	case *structs.CollectCommand:
		out := by + "collect"
		for _, x := range []struct {
			what string
			n    int
		}{{"allocations", len(b.Allocs)}, {"evaluations", len(b.Evals)}, {"jobs", len(b.Jobs)}, {"nodes", len(b.Nodes)}, {"tokens", len(b.Tokens)}} {
			if x.n > 0 {
				out += fmt.Sprintf(" %s=%d", x.what, x.n)
			}
		}
		return out
	case *structs.AcctCollectCommand:
		return fmt.Sprintf("%scollect accounting before %s, keep %d", by, since(b.Before), b.Keep)
	case *structs.OneTimeDeleteCommand:
		return fmt.Sprintf("%scollect one-time tokens=%d", by, len(b.Secrets))
	}
	return fmt.Sprintf("%s%T", by, c.Body)
}

// allocs names allocations by job, index and node.
func (w *world) allocs(ids []structs.AllocID) string {
	var b strings.Builder
	for i, id := range ids {
		a := w.snap().AllocByID(id)
		if i == 8 {
			fmt.Fprintf(&b, " and %d more", len(ids)-i)
			break
		}
		if a == nil {
			b.WriteString(" gone")
			continue
		}
		fmt.Fprintf(&b, " %s[%d]@%s", a.JobID, a.NameIndex, a.NodeName)
	}
	return b.String()
}
