package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// history is a random history, set up for the simulator.
type history struct {
	*histories.History
	is     map[string]string // value of each option
	cfg    Config
	jobs   []*Job
	checks checks
}

// newHistory draws the history of a seed, in half of them with drains, and in half with a storage that limits saves.
func newHistory(t *testing.T, seed uint64) *history {
	rng, with := rand.New(rand.NewPCG(seed, 28)), map[string]string{}
	for _, o := range operated {
		with[o.Name] = o.Values[max(0, rng.IntN(2*len(o.Values)-2)-1)]
	}
	return newHistoryWith(t, seed, with)
}

// operated are the operations that histories have here.
var operated = []histories.Option{histories.Operations[0], histories.Operations[2]}

// newHistoryWith draws the history of a seed with fixed values of some options.
func newHistoryWith(t *testing.T, seed uint64, with map[string]string) *history {
	t.Helper()
	drawn := histories.New(seed, with)
	h := &history{History: drawn, is: drawn.Is, cfg: Config{Queues: drawn.Queues, Scheduler: drawn.Scheduler, Seed: seed}}
	kinds := make([]string, len(drawn.Nodes))
	for i, n := range drawn.Nodes {
		kinds[i] = fmt.Sprintf("1x%d", n.GPUs)
	}
	h.cfg.Nodes = nodes(t, strings.Join(kinds, "+"))
	for i, n := range drawn.Nodes {
		h.cfg.Nodes[i].Resources.Devices[0].Name, h.cfg.Nodes[i].Meta = n.Model, n.Meta
	}
	for _, j := range drawn.Jobs {
		for _, g := range j.Groups {
			g.Tasks[0].Driver = Driver
		}
		h.jobs = append(h.jobs, &Job{Job: j.Job, At: j.At, Run: j.Run})
	}
	for _, r := range drawn.Reserved {
		if r.First {
			r.Nodes = []structs.NodeID{h.cfg.Nodes[0].ID}
		}
		h.cfg.Reservations = append(h.cfg.Reservations, r.Reservation)
	}
	h.drains()
	h.rules()
	return h
}

// drains plans the drains, and when their nodes take work again. A node that is away is not drained.
func (h *history) drains() {
	back := map[int]time.Duration{} // when a node takes work again
	for _, d := range h.Drains {
		if d.At < back[d.Node] {
			continue
		}
		back[d.Node] = d.At + max(d.Deadline, 0) + d.Away
		h.cfg.Events = append(h.cfg.Events, NodeEvent{At: d.At, Node: d.Node, What: EventDrain, Deadline: d.Deadline}, NodeEvent{At: back[d.Node], Node: d.Node, What: EventUp})
	}
}

func (h *history) String() string {
	var b strings.Builder
	for _, o := range covered {
		fmt.Fprintf(&b, "%s=%s ", o.Name, h.is[o.Name])
	}
	return b.String()
}

// rules sets how the cluster decides and what is charged.
func (h *history) rules() {
	h.cfg.Policy = policy.For(nil, h.cfg.Scheduler)
	h.cfg.Source = &list{jobs: h.jobs}
	h.cfg.Whole = h.is["waiting"] == "whole"
	h.cfg.Kept = func(l *Live, ran time.Duration) time.Duration {
		if l.Job.Job.Saves() {
			return ran
		}
		return 0
	}
	h.cfg.Restart = func(l *Live) time.Duration {
		if g := l.Job.Job.Groups[0]; g.Checkpoint != nil {
			return g.Checkpoint.Cost
		}
		return 0
	}
	h.storage()
	if h.is["times"] == "learned" {
		h.cfg.Predict = NewLearner(predict.NewSimilar())
	}
	if h.is["failures"] == "some" {
		h.cfg.Failures = Failures{MTBF: 12 * time.Hour, MTTR: 30 * time.Minute, Seed: h.Seed}
	}
	h.checks.begin(h)
}
