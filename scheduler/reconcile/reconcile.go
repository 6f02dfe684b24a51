package reconcile

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Run compares what a job wants with what it has, and returns what should change.
func Run(in Input, allocs []*structs.Allocation) *Work {
	r := &reconciler{view: in.View, now: in.Now, job: in.Job, evals: in.Evals, rosters: in.Rosters, ended: in.Ended, ask: in.Ask}
	for _, e := range in.Evals {
		r.force = r.force || e.ForceResch
	}
	r.run(allocs)
	r.from = r
	return &r.Work
}

// run reconciles every group of the job in their order, then every group that only allocations still have, by name.
func (r *reconciler) run(allocs []*structs.Allocation) {
	var byGroup map[structs.GroupName][]*structs.Allocation
	if len(allocs) > 0 {
		byGroup = make(map[structs.GroupName][]*structs.Allocation)
	}
	for _, a := range allocs {
		byGroup[a.Group] = append(byGroup[a.Group], a)
	}
	for _, as := range byGroup {
		slices.SortFunc(as, func(a, b *structs.Allocation) int {
			return cmp.Or(cmp.Compare(a.NameIndex, b.NameIndex), cmp.Compare(a.CreateIndex, b.CreateIndex), model.CompareID(a.ID, b.ID))
		})
	}
	active := r.job != nil && r.job.Placeable()
	if r.job != nil {
		for _, tg := range r.job.Groups {
			g := &GroupPlan{Name: tg.Name, Tg: tg}
			g.Counts.Group = tg.Name
			r.Groups = append(r.Groups, g)
			as := byGroup[tg.Name]
			delete(byGroup, tg.Name)
			switch {
			case !active:
				r.stopAll(g, as, descStopped)
			case r.job.Type == structs.JobSystem || r.job.Type == structs.JobSysBatch:
				g.Ask = r.ask(tg)
				r.system(g, as)
			case r.job.Array != nil:
				g.Ask = r.ask(tg)
				r.array(g, as)
			default:
				g.Ask = r.ask(tg)
				r.service(g, as)
			}
		}
	}
	r.planJoint()
	desc := descNotNeeded
	if !active {
		desc = descStopped
	}
	for _, name := range model.SortedKeys(byGroup) {
		g := &GroupPlan{Name: name}
		g.Counts.Group = name
		r.Groups = append(r.Groups, g)
		r.stopAll(g, byGroup[name], desc)
	}
}

// service reconciles a group of a service or batch job.
func (r *reconciler) service(g *GroupPlan, as []*structs.Allocation) {
	if g.Tg.IsGang() {
		r.gang(g, as)
		return
	}
	slots := r.slots(g, as)
	slots = r.dedupe(g, slots)
	// Scale down: keep the lowest indices.
	for len(slots) > max(g.Tg.Most(), 0) {
		s := slots[len(slots)-1]
		slots = slots[:len(slots)-1]
		switch s.kind {
		case slotLive:
			g.Stops = append(g.Stops, StopOf(s.a, descNotNeeded))
			g.Counts.Stop++
		case slotReplace:
			if s.want.Stop != nil {
				g.Stops = append(g.Stops, *s.want.Stop)
				g.Counts.Stop++
			}
		}
	}
	taken := make(map[int]bool, len(slots))
	var stale []*structs.Allocation
	unsettled, look := 0, structs.LogTime(0)
	update := RollingUpdate(r.job, g.Tg)
	for _, s := range slots {
		taken[s.index()] = true
		if s.kind == slotReplace && (s.a.Client == structs.ClientFailed || s.a.Transition.Reschedule) || s.a.Client == structs.ClientFailed && r.unsettled(s.a, update) {
			unsettled++ // also if what replaces it is of the new version: that is to run first
		}
		switch s.kind {
		case slotDone, slotWaiting:
			g.Counts.Ignore++
		case slotReplace:
			g.Wants = append(g.Wants, s.want)
		case slotLive:
			g.Staying = append(g.Staying, s.a)
			switch {
			case !r.older(s.a):
				g.Counts.Ignore++
			case r.inPlace(g, s.a):
				g.Updates = append(g.Updates, structs.PlanUpdate{ID: s.a.ID})
				g.Counts.InPlace++
			default:
				stale = append(stale, s.a)
			}
		}
	}
	if len(stale) > 0 { // task states are read only while there is something to replace
		for _, s := range slots {
			if s.kind == slotLive && s.a.Client != structs.ClientFailed && r.unsettled(s.a, update) {
				unsettled++
				if at := r.look(s.a, update); look == 0 || at < look {
					look = at
				}
			}
		}
	}
	r.replace(g, stale, unsettled, look, update)
	missing := max(g.Tg.Most()-len(slots), 0)
	starts := r.startsNow(g.Tg, missing)
	g.Counts.Place += int64(missing)
	g.More = int64(missing - starts)
	g.Wants = slices.Grow(g.Wants, min(starts, max(g.Tg.Fewest()-len(slots), 0)))
	next := 0
	for n := len(slots); n < len(slots)+starts; n++ {
		for taken[next] {
			next++
		}
		w := Want{Index: next, Prev: g.former[next]}
		next++
		if n >= g.Tg.Fewest() {
			g.Expansion = append(g.Expansion, w)
			continue
		}
		g.Wants = append(g.Wants, w)
	}
	slices.SortStableFunc(g.Wants, func(a, b Want) int { return cmp.Compare(a.Index, b.Index) })
}

// startsMax bounds the allocations that one decision starts of an array, or of another group whose allocations start
// independently. A decision takes some 2 KiB of memory for each; without the bound, a job of 2 KB with a count of 100,000
// took 200 MiB in every pass in which one of its allocations had ended.
const startsMax = 2_000

// startsNow returns how many of the missing allocations of a group this decision starts: all of those that are placed
// together or ranked against each other, and otherwise startsMax.
func (r *reconciler) startsNow(tg *structs.Group, missing int) int {
	if r.job.AllAtOnce || tg.Elastic != nil {
		return missing
	}
	return min(missing, startsMax)
}
