package duty_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

var seed = flag.Uint64("duty.seed", 0, "run the property with this seed only")

// TestLoadedIsFed: a duty that was loaded from the state gives the same commands as one that was fed every batch, so a
// change of leaders loses nothing. Collect is left out, because it does not use batches.
func TestLoadedIsFed(t *testing.T) {
	seeds := []uint64{*seed}
	if *seed == 0 {
		seeds = seeds[:0]
		for i := range uint64(10) {
			seeds = append(seeds, uint64(time.Now().UnixNano())+i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(builtin)) {
		if name == "collect" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			compared := 0
			for _, n := range seeds {
				h := &history{world: newWorld(t, builtin[name]()), r: rand.New(rand.NewPCG(n, 1)), name: name, seed: n}
				h.loose = true
				h.run(100)
				compared += h.compared
			}
			if compared == 0 && *seed == 0 {
				t.Errorf("no command was due in %d histories; the property says nothing", len(seeds))
			}
			t.Logf("%d commands compared, seeds %d to %d", compared, seeds[0], seeds[len(seeds)-1])
		})
	}
}

// history is a random history of a cluster.
type history struct {
	*world
	r    *rand.Rand
	name string
	seed uint64

	compared int // number of commands
}

// run runs random steps. It compares whenever the fed duty returns commands, and after each step, once it has had time
// to look.
func (h *history) run(steps int) {
	h.check = func(cmds []duty.Command) {
		if len(cmds) > 0 {
			h.compare(cmds)
		}
	}
	h.told = func(c duty.Command, res structs.Result) {
		if res.Err != nil && structs.CodeOf(res.Err) != structs.CodeConflict && structs.CodeOf(res.Err) != structs.CodeNotFound {
			h.tb.Fatalf("seed %d: %s was refused: %v", h.seed, h.text(c), res.Err)
		}
		if b, ok := c.Body.(*structs.AllocTransitionCommand); ok && h.chance(70) {
			h.end(b.IDs)
		}
	}
	for range steps {
		for range 1 + h.r.IntN(4) {
			h.happen()
		}
		h.now = h.now.Add(time.Second + time.Duration(h.r.IntN(1000))*time.Millisecond)
		cmds, _ := h.duty.Due(h.snap(), h.now)
		h.compare(cmds)
		for _, c := range cmds {
			h.told(c, h.try(c.Command))
		}
		h.runUntil(h.now.Add(time.Duration(h.r.IntN(300)) * time.Second))
	}
}

// end ends allocations as the scheduler and the agents do.
func (h *history) end(ids []structs.AllocID) {
	for _, id := range ids {
		if a := h.snap().AllocByID(id); a != nil && !a.Terminal() {
			h.stop(a.JobID, a.NodeName)
			h.observe([]*structs.Allocation{a}, structs.ClientComplete)
		}
	}
}

// compare compares the commands with those of a duty loaded from the same state.
func (h *history) compare(want []duty.Command) {
	loaded := builtin[h.name]()
	loaded.Load(h.snap(), h.now)
	got, _ := loaded.Due(h.snap(), h.now)
	a, b := h.derived(want), h.derived(got)
	if h.name == "arrays" || h.name == "rollouts" { // the fed duty looks only after some have ended, or a second after a change
		b = slices.DeleteFunc(b, func(x string) bool { return !slices.Contains(a, x) })
	}
	if !slices.Equal(a, b) {
		h.tb.Fatalf("after %s, run again with -duty.seed=%d\nfed gives    %q\nloaded gives %q", h.now.Sub(began), h.seed, a, b)
	}
	h.compared += len(a)
}

// derived returns commands as text, except those that do not follow from the state: with Keep, or repeated requests.
func (h *history) derived(cmds []duty.Command) (out []string) {
	for _, c := range cmds {
		if c.Keep {
			continue
		}
		if b, ok := c.Body.(*structs.AllocTransitionCommand); ok && b.Transition.Migrate && !b.Transition.Leave {
			ids := slices.DeleteFunc(slices.Clone(b.IDs), func(id structs.AllocID) bool { return h.snap().AllocByID(id).Transition.Migrate })
			if len(ids) == 0 {
				continue
			}
			again := *b
			again.IDs = ids
			c.Body = &again
		}
		out = append(out, h.text(c))
	}
	return out
}

func (h *history) chance(percent int) bool { return h.r.IntN(100) < percent }

func (h *history) node() string { return fmt.Sprint("n", h.r.IntN(4)) }

// happen changes the state from outside.
func (h *history) happen() {
	node, id := h.node(), fmt.Sprint("j", h.r.IntN(7))
	if h.chance(50) { // the kind of job that the duty is about
		id = map[string]string{"gangs": "j0", "periodic": "j1", "arrays": "j2", "drains": "j3", "taints": "j4"}[h.name]
		id = cmp.Or(id, "j6")
	}
	j, n := h.snap().JobByKey(key(id)), h.snap().NodeByID(nodeID(node))
	minutes := func(most int) structs.LogTime { return h.now.Add(time.Duration(h.r.IntN(60*most)+1) * time.Second) }
	switch h.r.IntN(16) {
	case 0, 1:
		if n == nil || n.Status == structs.NodeDown {
			h.addNode(node)
		} else if h.chance(20) {
			h.nodeStatus(node, structs.NodeDown)
		} else if h.chance(10) {
			h.apply(structs.Command{Body: &structs.NodePurgeCommand{IDs: []structs.NodeID{n.ID}}})
		}
	case 2:
		d := &structs.DrainStrategy{Deadline: time.Duration(h.r.IntN(1800)-100) * time.Second, IgnoreSystemJobs: h.chance(20)}
		h.apply(structs.Command{Body: &structs.NodeDrainCommand{ID: nodeID(node), Strategy: d}})
	case 3:
		h.apply(structs.Command{Body: &structs.NodeDrainCommand{ID: nodeID(node), MarkEligible: h.chance(80)}})
	case 4:
		h.apply(structs.Command{Body: &structs.NodeTaintCommand{ID: nodeID(node), Add: []structs.Taint{{Key: "k", Effect: structs.TaintNoExecute}}}})
	case 5:
		h.apply(structs.Command{Body: &structs.NodeTaintCommand{ID: nodeID(node), Remove: []structs.Taint{{Key: "k"}}}})
	case 6, 7:
		if j == nil || h.chance(50) {
			h.register(h.job(id))
		}
	case 8:
		if j != nil && h.chance(20) {
			h.apply(structs.Command{Body: &structs.JobDeregisterCommand{Namespace: "default", JobID: id, Purge: h.chance(50)}})
		}
	case 9, 10, 11:
		if j != nil && j.Placeable() && !j.IsPeriodic() && n != nil && n.Status == structs.NodeReady {
			h.place(id, []string{node}, j.Groups[0].Count)
		}
	case 12:
		if h.chance(80) {
			h.observe(h.live(id, ""), structs.ClientRunning)
		}
	case 13:
		if h.chance(40) || j != nil && j.Array != nil {
			h.observe(h.live(id, ""), []structs.ClientStatus{structs.ClientComplete, structs.ClientFailed}[h.r.IntN(2)])
			h.decide(id)
		}
	case 14:
		h.apply(structs.Command{Body: &structs.SuspendCommand{Namespace: "default", JobID: id, Resume: h.chance(50)}})
	case 15:
		r := &structs.Reservation{ID: fmt.Sprint("r", h.r.IntN(3)), Domain: "default", Nodes: []structs.NodeID{nodeID(node)}, Start: minutes(20), Maintenance: h.chance(80)}
		r.End = r.Start.Add(time.Duration(h.r.IntN(3600)+1) * time.Second)
		if h.chance(30) {
			h.apply(structs.Command{Body: &structs.UnreserveCommand{IDs: []string{r.ID}}})
		} else if n != nil {
			h.apply(structs.Command{Body: &structs.ReserveCommand{Reservations: []*structs.Reservation{r}}})
		}
	}
}

// job returns a random version of a job, whose kind follows from its name.
func (h *history) job(id string) *structs.Job {
	j := newJob(id, structs.JobBatch, 1+h.r.IntN(3))
	g := j.Groups[0]
	if h.chance(50) {
		j.Deadline = h.now.Add(time.Duration(h.r.IntN(3600)) * time.Second)
	}
	if h.chance(50) {
		g.MaxRunDuration = time.Duration(h.r.IntN(1800)+1) * time.Second
	}
	if h.chance(50) {
		j.Tolerations = []structs.Toleration{{Key: "k", For: time.Duration(h.r.IntN(600)) * time.Second}}
	}
	switch id {
	case "j0":
		g.Gang = &structs.Gang{Timeout: time.Duration(h.r.IntN(600)+1) * time.Second}
	case "j1":
		j.Periodic = &structs.Periodic{Enabled: h.chance(90), Specs: []string{[]string{"*/10 * * * *", "@hourly", "7 * * * *"}[h.r.IntN(3)]}, ProhibitOverlap: h.chance(50)}
	case "j2":
		g.Count, j.Deadline = 300, 0
		j.Array = &structs.Array{Count: 100_000}
	case "j3", "j4":
		j.Type, j.Deadline, g.MaxRunDuration = structs.JobService, 0, 0
		g.Migrate = &structs.Migrate{MaxParallel: 1 + h.r.IntN(2), HealthCheck: "task_states", MinHealthyTime: time.Duration(h.r.IntN(60)) * time.Second, HealthyDeadline: 5 * time.Minute}
		g.Update = &structs.Update{MaxParallel: 1, HealthyDeadline: time.Duration(h.r.IntN(3)) * time.Minute, ProgressDeadline: time.Duration(h.r.IntN(2)) * 4 * time.Minute, AutoRevert: h.chance(50)}
		g.Tasks[0].Env, g.Reschedule.Unlimited = map[string]string{"V": fmt.Sprint(h.r.IntN(3))}, true
	case "j5":
		j.Type, j.Deadline, g.MaxRunDuration = structs.JobSystem, 0, 0
	}
	return j
}
