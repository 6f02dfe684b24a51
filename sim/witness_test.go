package sim

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// elsewhere are the fields that decide nothing in a pass, with what they are for. Everything else needs a witness.
var elsewhere = map[string]string{
	"Queue.Path": "its name", "Queue.Description": "for people", "Queue.Meta": "for people", "Queue.AllowedUsers": "checked when a job is submitted",
	"Queue.SubmittedMax": "checked when a job is submitted", "Queue.SubmittedUserMax": "checked when a job is submitted",
	"Queue.PriorityMax": "checked when a job is submitted (TestQueuePriorityMax)", "Queue.PriorityDefault": "given to a job that is submitted (TestPriorityDefault)", "Queue.UserPriorityMax": "checked when a job is submitted (TestUserPriorityMax)", "Queue.UserPriorityDefault": "given to a job that is submitted (TestUserPriorityDefault)", "Queue.GPUHoursPeriod": "when GPUHoursMax counts from zero again (TestQueueBudget)", "Queue.Ends": "read where servers predict, before the pass (TestQueueEnds)",
	"Queue.PreemptGrace": "shortens the grace of jobs when they are submitted", "Queue.Epoch": "set by the state", "Queue.CreateIndex": "set by the state", "Queue.ModifyIndex": "set by the state",
	"SchedulerConfig.PreemptSystem": "for system jobs, which traces do not have", "SchedulerConfig.PreemptSysBatch": "for system jobs, which traces do not have",
	"SchedulerConfig.PreemptService": "for services, which traces do not have", "SchedulerConfig.MemoryOversub": "checked when a job is submitted",
	"SchedulerConfig.RejectRegister": "checked when a job is submitted", "SchedulerConfig.PauseBroker": "stops the broker", "SchedulerConfig.NodeLimit": "refused: it would do nothing",
	"SchedulerConfig.CreateIndex": "set by the state", "SchedulerConfig.ModifyIndex": "set by the state",
}

// witness changes one setting of a history. with are the options of the histories in which it may matter.
type witness struct {
	with map[string]string
	set  func(h *history)
}

// root returns the settings of the root.
func (h *history) root() *structs.Queue { return h.queue(structs.QueueRoot) }

func (h *history) queue(path structs.QueuePath) *structs.Queue {
	return h.cfg.Queues[slices.IndexFunc(h.cfg.Queues, func(q *structs.Queue) bool { return q.Path == path })]
}

func onRoot(set func(q *structs.Queue)) func(h *history) { return func(h *history) { set(h.root()) } }

func onA(set func(q *structs.Queue)) func(h *history) {
	return func(h *history) { set(h.queue("a")) }
}

func oneGPU() *structs.Amount {
	a := structs.Unlimited
	a.GPUMilli = 1000
	return &a
}

// oneOfAll limits the GPUs of all models that histories have to one.
func oneOfAll() []structs.ModelAmount {
	return []structs.ModelAmount{{Model: "GPU|A100|H100", Milli: 1000}}
}

// saves are the options of histories in which much work saves its state when it is stopped.
var saves = map[string]string{"storage": "two at a time", "drains": "deadline", "preempt": "priority", "preemptible": "all", "priorities": "spread"}

// witnesses has one for each field of a queue and of the scheduler's configuration.
var witnesses = map[string]witness{
	"Queue.Weight":            {map[string]string{"order": "weighted-fair", "queues": "tree"}, onA(func(q *structs.Queue) { q.Weight = 50 })},
	"Queue.UserWeights":       {map[string]string{"order": "fair"}, onRoot(func(q *structs.Queue) { q.UserWeights = map[string]int64{"ann": 20} })},
	"Queue.Billing":           {map[string]string{"order": "fair", "work": "cpu"}, onRoot(func(q *structs.Queue) { q.Billing = &structs.Billing{CPU: 1_000_000} })},
	"Queue.Guarantee":         {map[string]string{"queues": "tree"}, onA(func(q *structs.Queue) { q.Guarantee = &structs.Amount{GPUMilli: 2000} })},
	"Queue.Limit":             {nil, onA(func(q *structs.Queue) { q.Limit = oneGPU() })},
	"Queue.Borrow":            {map[string]string{"queues": "guarantee"}, onA(func(q *structs.Queue) { q.Borrow = &structs.Amount{} })},
	"Queue.Lend":              {map[string]string{"queues": "guarantee"}, onA(func(q *structs.Queue) { q.Lend = &structs.Amount{} })},
	"Queue.UserLimit":         {nil, onA(func(q *structs.Queue) { q.UserLimit = oneGPU() })},
	"Queue.LimitModels":       {nil, onA(func(q *structs.Queue) { q.LimitModels = oneOfAll() })},
	"Queue.UserLimitModels":   {nil, onA(func(q *structs.Queue) { q.UserLimitModels = oneOfAll() })},
	"Queue.SoftLimitModels":   {map[string]string{"queues": "tree"}, onA(func(q *structs.Queue) { q.SoftLimitModels = oneOfAll() })},
	"Queue.SoftLimit":         {map[string]string{"queues": "tree"}, onA(func(q *structs.Queue) { q.SoftLimit = oneGPU() })},
	"Queue.Order":             {nil, onRoot(func(q *structs.Queue) { q.Order = structs.OrderSJF })},
	"Queue.Preempt":           {map[string]string{"preempt": "none", "preemptible": "all"}, onRoot(func(q *structs.Queue) { q.Preempt = structs.PreemptPriority })},
	"Queue.Backfill":          {map[string]string{"backfill": "none"}, onRoot(func(q *structs.Queue) { q.Backfill = structs.BackfillGreedy })},
	"Queue.ReserveDepth":      {map[string]string{"backfill": "conservative"}, onRoot(func(q *structs.Queue) { q.ReserveDepth = 1 })},
	"Queue.MaxWait":           {map[string]string{"max_wait": "default"}, onRoot(func(q *structs.Queue) { q.MaxWait = 20 * time.Minute })},
	"Queue.HalfLife":          {map[string]string{"order": "fair"}, onRoot(func(q *structs.Queue) { q.HalfLife = time.Minute })},
	"Queue.Aging":             {map[string]string{"order": "priority", "priorities": "spread"}, onRoot(func(q *structs.Queue) { q.Aging = 5 * time.Second })},
	"Queue.AgingMax":          {map[string]string{"order": "priority", "priorities": "spread"}, onRoot(func(q *structs.Queue) { q.AgingMax = 1 })},
	"Queue.BackfillWindow":    {map[string]string{"backfill": "easy", "depth": "default"}, onRoot(func(q *structs.Queue) { q.BackfillWindow = 5 * time.Minute })},
	"Queue.BackfillMaxJobs":   {map[string]string{"depth": "default"}, onRoot(func(q *structs.Queue) { q.BackfillMaxJobs = 1 })},
	"Queue.RunningMax":        {nil, onA(func(q *structs.Queue) { q.RunningMax = 1 })},
	"Queue.RunningUserMax":    {nil, onA(func(q *structs.Queue) { q.RunningUserMax = 1 })},
	"Queue.GPUMinutesMax":     {map[string]string{"times": "limit"}, onA(func(q *structs.Queue) { q.GPUMinutesMax = 30 })},
	"Queue.GPUMinutesUserMax": {map[string]string{"times": "limit"}, onA(func(q *structs.Queue) { q.GPUMinutesUserMax = 30 })},
	"Queue.GPUHoursMax":       {map[string]string{"times": "limit"}, onA(func(q *structs.Queue) { q.GPUHoursMax, q.GPUHoursPeriod = 1, structs.PeriodDay })},
	"Queue.GPUHoursUserMax":   {map[string]string{"times": "limit"}, onA(func(q *structs.Queue) { q.GPUHoursUserMax, q.GPUHoursPeriod = 1, structs.PeriodDay })},
	"Queue.PreemptMinRuntime": {map[string]string{"preempt": "priority", "preemptible": "all", "priorities": "spread"}, onRoot(func(q *structs.Queue) { q.PreemptMinRuntime = 3 * time.Hour })},
	"Queue.PreemptMax":        {map[string]string{"preempt": "order", "preemptible": "all", "saves": "free"}, onRoot(func(q *structs.Queue) { q.PreemptMax = 1 })},
	"Queue.PreemptRate":       {map[string]string{"preempt": "order", "preemptible": "all", "saves": "free"}, onRoot(func(q *structs.Queue) { q.PreemptRate = 1 })},
	"Queue.PreemptAfter":      {map[string]string{"preempt": "order", "preemptible": "all", "saves": "free"}, onRoot(func(q *structs.Queue) { q.PreemptAfter = 3 * time.Hour })},
	"Queue.PreemptDelta":      {map[string]string{"preempt": "priority", "preemptible": "all", "priorities": "spread"}, onRoot(func(q *structs.Queue) { q.PreemptDelta = 75 })},

	"SchedulerConfig.CheckpointStorage": {saves, onConfig(func(c *structs.SchedulerConfig) { c.CheckpointStorage = map[string]int64{histories.Storage: 1} })},
	"SchedulerConfig.MaxCheckpoints":    {saves, onConfig(func(c *structs.SchedulerConfig) { c.MaxCheckpoints = 1 })},
	"SchedulerConfig.Algorithm":         {map[string]string{"placement": "first-fit"}, onConfig(func(c *structs.SchedulerConfig) { c.Algorithm = "spread" })},
	"SchedulerConfig.PreemptBatch":      {map[string]string{"preempt": "none", "priorities": "spread"}, onConfig(func(c *structs.SchedulerConfig) { c.PreemptBatch = true })},
	"SchedulerConfig.GPUFit":            {map[string]string{"work": "share"}, onConfig(func(c *structs.SchedulerConfig) { c.GPUFit = structs.GPUFitWorst })},
	"SchedulerConfig.TopologyLevels":    {map[string]string{"levels": "rack and leaf", "work": "gang"}, onConfig(func(c *structs.SchedulerConfig) { c.TopologyLevels = []string{"none"} })},
	"SchedulerConfig.Order": {nil, func(h *history) {
		h.root().Order, h.cfg.Scheduler.Order = "", structs.OrderSJF
	}},
	"SchedulerConfig.Backfill": {map[string]string{"backfill": "none"}, func(h *history) {
		h.root().Backfill, h.cfg.Scheduler.Backfill = "", structs.BackfillGreedy
	}},
	"SchedulerConfig.Weights": {map[string]string{"placement": "binpack", "cluster": "mixed"}, onConfig(func(c *structs.SchedulerConfig) { c.Weights = structs.ScoreWeights{Fit: structs.WeightOff} })},
}

func onConfig(set func(c *structs.SchedulerConfig)) func(h *history) {
	return func(h *history) {
		set(&h.cfg.Scheduler)
		h.cfg.Policy = policy.For(nil, h.cfg.Scheduler)
	}
}

// outcome returns when and where all work of a history ran.
func (h *history) outcome(t *testing.T) string {
	var b strings.Builder
	h.checks.begin(h)
	h.cfg.Hooks.Placed = func(e *Engine, l *Live, a *structs.Allocation) {
		fmt.Fprintln(&b, Since(e.now), l.Key.ID, a.NameIndex, a.NodeID.Short(), a.Grants)
	}
	if err := h.run(t.Context()); err != nil {
		fmt.Fprintln(&b, err) // work that the setting keeps from running
	}
	return b.String()
}

// differs reports whether the outcome of some history with the given options differs after a change.
func differs(t *testing.T, with map[string]string, set func(h *history)) bool {
	for seed := range uint64(150) {
		made := func() *history { return newHistoryWith(t, seed, with) }
		changed := made()
		set(changed)
		if made().outcome(t) != changed.outcome(t) {
			return true
		}
	}
	return false
}

// TestWitnesses: every field of a queue and of the scheduler's configuration changes what some history decides.
func TestWitnesses(t *testing.T) {
	known := 0
	for _, typ := range []reflect.Type{reflect.TypeFor[structs.Queue](), reflect.TypeFor[structs.SchedulerConfig]()} {
		for i := range typ.NumField() {
			name := typ.Name() + "." + typ.Field(i).Name
			w, ok := witnesses[name]
			if why := elsewhere[name]; why != "" || ok {
				known++
			}
			switch {
			case !ok && elsewhere[name] == "":
				t.Errorf("%s has no witness. Add to witnesses how to set it, with the options of the histories in which it matters; if no pass asks for it, say in elsewhere what does", name)
			case ok:
				if !differs(t, w.with, w.set) {
					t.Errorf("%s changes the outcome of no history: it does nothing, or its witness sets it where it does not matter", name)
				}
			}
		}
	}
	if most := len(witnesses) + len(elsewhere); known < most {
		t.Errorf("%d rows are of fields that do not exist", most-known)
	}
}

// TestWitnessesOfValues: each order, backfill, preemption rule, placement and fit within a GPU decides otherwise than each other one.
func TestWitnessesOfValues(t *testing.T) {
	fits := map[string]string{"work": "share"}
	yields := map[string]string{"preemptible": "all", "queues": "guarantee", "work": "deadline", "priorities": "spread"}
	check := func(what string, with map[string]string, values []string, set func(h *history, v string)) {
		for i, a := range values {
			for _, b := range values[:i] {
				seen := false
				for seed := uint64(0); seed < 150 && !seen; seed++ {
					x, y := newHistoryWith(t, seed, with), newHistoryWith(t, seed, with)
					set(x, a)
					set(y, b)
					seen = x.outcome(t) != y.outcome(t)
				}
				if !seen {
					t.Errorf("%s %q and %q have the same outcome in all histories", what, a, b)
				}
			}
		}
	}
	check("order", nil, structs.Enums["Queue.Order"], func(h *history, v string) { h.root().Order = structs.Order(v) })
	check("backfill", map[string]string{"times": "exact"}, structs.Enums["Queue.Backfill"], func(h *history, v string) { h.root().Backfill = v })
	check("preempt", yields, structs.Enums["Queue.Preempt"], func(h *history, v string) { h.root().Preempt = v })
	var placements []string
	for name := range policy.Builtin {
		switch name {
		case "worst-fit": // another name of spread
		case "search": // the default with more moves, which no history needs (TestPlacementSearch)
		default:
			placements = append(placements, name)
		}
	}
	slices.Sort(placements)
	check("placement", map[string]string{"cluster": "mixed", "work": "mixed"}, placements, func(h *history, v string) {
		h.cfg.Scheduler.Algorithm = v
		h.cfg.Policy = policy.For(nil, h.cfg.Scheduler)
	})
	check("GPU fit", fits, structs.Enums["SchedulerConfig.GPUFit"], func(h *history, v string) {
		h.cfg.Scheduler.GPUFit = v
		h.cfg.Policy = policy.For(nil, h.cfg.Scheduler)
	})
}

// TestWitnessesOfDefaults: a value in the cluster's configuration, of which TestWitnessesOfValues compares those of queues,
// does what it does in the root. A policy that all jobs or a pool name does what the cluster's does.
func TestWitnessesOfDefaults(t *testing.T) {
	equal := func(name string, with map[string]string, values []string, usual, other func(h *history, v string)) {
		for i, v := range values {
			seed := uint64(i)
			x, y := newHistoryWith(t, seed, with), newHistoryWith(t, seed, with)
			usual(x, v)
			other(y, v)
			if x.outcome(t) != y.outcome(t) {
				t.Errorf("%s %q, seed %d: not the outcome that the value has elsewhere", name, v, seed)
			}
		}
	}
	equal("SchedulerConfig.Order", nil, structs.Enums["Queue.Order"], func(h *history, v string) { h.root().Order = structs.Order(v) },
		func(h *history, v string) { h.root().Order, h.cfg.Scheduler.Order = "", structs.Order(v) })
	equal("SchedulerConfig.Backfill", map[string]string{"times": "exact"}, structs.Enums["Queue.Backfill"], func(h *history, v string) { h.root().Backfill = v },
		func(h *history, v string) { h.root().Backfill, h.cfg.Scheduler.Backfill = "", v })
	mixed := map[string]string{"cluster": "mixed", "work": "mixed"}
	cluster := func(h *history, v string) { h.cfg.Policy = policy.For(nil, structs.SchedulerConfig{Algorithm: v}) }
	equal("Job.Placement", mixed, policy.Names(), cluster, func(h *history, v string) {
		h.cfg.Policy = policy.For(nil, structs.SchedulerConfig{Algorithm: "random"})
		for _, w := range h.jobs {
			w.Job.Placement = v
		}
	})
	equal("NodePool.Algorithm", mixed, policy.Names(), cluster, func(h *history, v string) {
		h.cfg.Policy = policy.For(&structs.NodePool{Algorithm: v}, structs.SchedulerConfig{Algorithm: "random"})
	})
}
