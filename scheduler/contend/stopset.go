package contend

import (
	"iter"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// stopSet is allocations that stop together: the members of a gang that would be below its minimum, and with a joint group all
// others of its job. What follows from all of them is computed once, and not for each member that a preemption looks at, which
// is quadratic in the size of the gang. It is valid until the pass stops other work, or keeps it after all.
type stopSet struct {
	groups  []structs.GroupName
	all     []*model.Held
	cost    int64          // GPU seconds that all of them lose
	charged structs.Amount // what they are charged, in billing units, too; only where shares are measured
	held    structs.Amount
}

// stopSetOf returns what stops together with work that is evicted; nil: it stops alone.
func (p *Preemption) stopSetOf(h *model.Held) *stopSet {
	j := h.Work.Job
	g := j.Group(h.Work.Group)
	if !g.IsGang() {
		return nil
	}
	ms := p.members(h)
	if len(ms)-1 >= g.Least() {
		return nil
	}
	first := g.Name
	for _, o := range j.Groups {
		if o.Name != g.Name && j.Together(g.Name, o.Name) {
			first = min(first, o.Name)
		}
	}
	k := gangKey{j.Key(), first}
	if old := p.sets[k]; old != nil {
		return old
	}
	x := &stopSet{groups: []structs.GroupName{g.Name}}
	for _, o := range j.Groups {
		if o.Name != g.Name && j.Together(g.Name, o.Name) {
			x.groups = append(x.groups, o.Name)
		}
	}
	for _, name := range x.groups {
		x.all = append(x.all, p.live(gangKey{j.Key(), name})...)
	}
	for _, m := range x.all {
		x.cost += p.lost(m)
		x.held = x.held.Add(m.Amount())
		if p.shares != nil {
			x.charged = x.charged.Add(p.shares.amount(m))
		}
	}
	p.Scanned += len(x.all)
	if p.sets == nil {
		p.sets = map[gangKey]*stopSet{}
	}
	p.sets[k] = x
	return x
}

// has reports whether an allocation is one of the set.
func (x *stopSet) has(h *model.Held) bool {
	if len(x.all) == 0 || h.Work.Job == nil || h.Work.Job.Key() != x.all[0].Work.Job.Key() {
		return false
	}
	for _, name := range x.groups {
		if name == h.Work.Group {
			return !h.Work.Job.Group(name).IsStandby(h.Work.Index)
		}
	}
	return false
}

// moved drops what was computed for gangs, because the pass stops other work, or keeps it after all.
func (p *Preemption) moved() {
	clear(p.sets)
	clear(p.alive)
	clear(p.newest)
	clear(p.saves)
}

// stops iterates over what stops with a victim, itself first.
func (v *Victim) stops() iter.Seq[*model.Held] {
	return func(yield func(*model.Held) bool) {
		if !yield(v.h) {
			return
		}
		for _, h := range v.with {
			if h != v.h && !yield(h) {
				return
			}
		}
	}
}

// others counts what stops with a victim in addition to itself.
func (v *Victim) others() int {
	if v.set != nil {
		return len(v.with) - 1
	}
	return len(v.with)
}

// total adds up something over all that stops with victims, each once: of a set and of a single allocation.
type total struct {
	sets   []*stopSet
	single []*model.Held
}

// add adds what stops with a victim.
func (t *total) add(v *Victim) {
	switch {
	case v.set == nil:
		for h := range v.stops() {
			t.single = append(t.single, h)
		}
	case !t.hasSet(v.set):
		t.sets = append(t.sets, v.set)
	}
}

func (t *total) hasSet(x *stopSet) bool {
	for _, s := range t.sets {
		if s == x {
			return true
		}
	}
	return false
}

// has reports whether an allocation was added with a set.
func (t *total) has(h *model.Held) bool {
	for _, s := range t.sets {
		if s.has(h) {
			return true
		}
	}
	return false
}

// alone iterates over the allocations that are in no set, each once.
func (t *total) alone() iter.Seq[*model.Held] {
	return func(yield func(*model.Held) bool) {
		seen := make(map[structs.AllocID]bool, len(t.single))
		for _, h := range t.single {
			if seen[h.ID] || t.has(h) {
				continue
			}
			if seen[h.ID] = true; !yield(h) {
				return
			}
		}
	}
}
