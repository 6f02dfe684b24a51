package scheduler

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/search"
)

// Shown returns the line of pending work as users see it: that of a pass, in which work that competes with preemptible work
// comes in the order in which it gets places. All of it counts as waiting; nothing is placed.
func Shown(in *Input, line contend.Line) contend.Line {
	if in.Chooser == nil {
		return line
	}
	w := search.NewPass(in.View, in.Flight)
	defer w.Release()
	env := in.contention(w)
	return contend.Ranked(&env, contend.NewLimits(in.Queues, in.View, in.Flight, in.Now), line)
}

// contention returns what contention depends on.
func (in *Input) contention(w *search.Pass) contend.Env {
	return contend.Env{W: w, Now: in.Now, Rules: &contend.Rules{Queues: in.Queues, Config: &in.Config, OldEvents: in.OldEvents, Yields: in.Yields}, Flight: in.Flight, Pending: in.Pending, Running: in.Running,
		Reserved: in.Reserved, Evicted: in.Evicted, Chooser: in.Chooser, EstimateFor: in.EstimateFor, GangTimes: in.GangTimes}
}
