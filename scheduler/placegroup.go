package scheduler

import (
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// groupWork is the work on one group: the plan of the reconciliation and what has become of it.
type groupWork struct {
	*reconcile.GroupPlan
	search     *search.Search
	noFitKey   string // see decision.noFitKey
	noFitKeyed bool

	over                                 *structs.Refusal // the limit that kept some of it from being placed, or nil
	note                                 *structs.Refusal // why no work was preempted for it, if that was tried; or nil
	deferredExpansion, unplacedExpansion int64            // of grow: not tried because others wait; no place found
	growsAt                              structs.LogTime  // of deferredExpansion: a gang that was resized recently, or whose room became free recently, may grow then; 0: others wait
	resize                               *contend.Resize  // of deferredExpansion: what the members lose is worth more; nil: something else is in the way
	standbysPlaced, standbysMissing      int64            // of refillStandby: placed; no place found
}

// reconcile determines what has to change.
func (d *decision) reconcile() {
	load := d.load
	d.work = reconcile.Run(reconcile.Input{View: d.in.View, Now: d.in.Now, Job: load.Job, Evals: load.Evals, Rosters: load.Rosters, Ended: load.Ended,
		Ask: func(tg *structs.Group) *match.Ask {
			a := match.CompileAsk(load.Job, tg, d.in.Config.GPUFit)
			a.Weights = weightsFor(d.in, load.Job)
			return a
		}}, load.Allocs)
	d.groups = make([]*groupWork, len(d.work.Groups))
	for i, g := range d.work.Groups {
		d.groups[i] = &groupWork{GroupPlan: g}
	}
}

// closeSearches releases the memory of the searches for reuse.
func (d *decision) closeSearches() {
	for _, g := range d.groups {
		if g.search != nil {
			g.search.Done()
		}
	}
}
