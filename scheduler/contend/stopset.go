package contend

import (
	"iter"
	"slices"

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
	if len(p.members(h))-1 >= g.Least() {
		return nil
	}
	return p.setOf(j, g)
}

// setOf returns the live members of a gang, with those of the groups that run as one with it.
func (p *Preemption) setOf(j *structs.Job, g *structs.Group) *stopSet {
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

// joined lets victims that together leave a gang with fewer members than its minimum stop with the rest of it: each of them
// alone would leave enough. nil: by shares, so much may not be taken.
func (p *Preemptor) joined(vs []Victim) []Victim {
	some := false
	for i := range vs {
		v := &vs[i]
		j := v.h.Work.Job
		g := j.Group(v.h.Work.Group)
		if v.free || v.shrink || v.set != nil || !g.IsGang() {
			continue
		}
		gone := leavers(vs, j.Key(), g)
		if len(p.members(v.h))-gone >= g.Least() {
			continue
		}
		if x := p.setOf(j, g); len(x.all) > gone {
			v.set, v.with, v.cost, some = x, x.all, x.cost, true
		}
	}
	if some && p.Rule.Name == preemptShares && slices.ContainsFunc(vs, func(v Victim) bool { return v.set != nil && !p.mayClaim(v.h, vs) }) {
		return nil
	}
	return vs
}

// leavers counts the members that a gang loses with victims of which none stops the whole gang. Of those that shrink, the lowest
// takes all the others along.
func leavers(vs []Victim, job structs.JobKey, g *structs.Group) int {
	evicted, shrunk := 0, 0
	for i := range vs {
		v := &vs[i]
		w := &v.h.Work
		switch {
		case v.free || w.Job.Key() != job || w.Group != g.Name || g.IsStandby(w.Index):
		case v.shrink:
			shrunk = max(shrunk, 1+len(v.with))
		default:
			evicted++
		}
	}
	return evicted + shrunk
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
	clear(p.tails)
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

// groupTails is what the members of an elastic group hold, for each of them with all after it by name index: the group shrinks
// from its last member on. It is computed once, as a stopSet is, and is valid for as long.
type groupTails struct {
	members []*model.Held
	held    []structs.Amount
	charged []structs.Amount // the same with billing units; only where shares are measured
}

// tailsOf returns the tails of the group of work; nil where its members are of job versions with several queues.
func (p *Preemption) tailsOf(h *model.Held) *groupTails {
	k := gangKey{h.Work.Job.Key(), h.Work.Group}
	if x, known := p.tails[k]; known {
		return x
	}
	ms := p.members(h)
	p.Scanned += len(ms)
	x := &groupTails{members: ms, held: make([]structs.Amount, len(ms)), charged: make([]structs.Amount, len(ms))}
	var held, charged structs.Amount
	for i, m := range slices.Backward(ms) {
		if m.Work.Job.QueueName() != h.Work.Job.QueueName() {
			x = nil
			break
		}
		held = held.Add(m.Amount())
		if p.shares != nil {
			charged = charged.Add(p.shares.amount(m))
		}
		x.held[i], x.charged[i] = held, charged
	}
	if p.tails == nil {
		p.tails = map[gangKey]*groupTails{}
	}
	p.tails[k] = x
	return x
}

// total adds up something over all that stops with victims, each once: of a set, of the tail of a group, and of a single
// allocation.
type total struct {
	p      *Preemption
	sets   []*stopSet
	tails  []tail
	single []*model.Held
}

// tail is the members of a group from one of them on.
type tail struct {
	*groupTails
	from int
}

// add adds what stops with a victim.
func (t *total) add(v *Victim) {
	switch {
	case v.set == nil:
		t.single = append(t.single, v.h)
		t.addAfter(v, structs.QueueRoot)
	case !t.hasSet(v.set):
		t.sets = append(t.sets, v.set)
	}
}

// addAfter adds the members after a victim that stop when its group shrinks, of those the ones in a queue.
func (t *total) addAfter(v *Victim, in structs.QueuePath) {
	if !v.shrink || len(v.with) == 0 {
		return
	}
	x := t.p.tailsOf(v.h)
	if x == nil {
		for _, m := range v.with {
			if in.Contains(m.Work.Job.QueueName()) {
				t.single = append(t.single, m)
			}
		}
		return
	}
	if !in.Contains(v.h.Work.Job.QueueName()) {
		return
	}
	from := len(x.members) - len(v.with)
	for i := range t.tails {
		if o := &t.tails[i]; o.groupTails == x {
			o.from = min(o.from, from)
			return
		}
	}
	t.tails = append(t.tails, tail{x, from})
}

// whole iterates over the tails that are in no set.
func (t *total) whole() iter.Seq[tail] {
	return func(yield func(tail) bool) {
		for _, x := range t.tails {
			if !t.has(x.members[x.from]) && !yield(x) {
				return
			}
		}
	}
}

// shrinks reports whether an allocation was added with a tail.
func (t *total) shrinks(h *model.Held) bool {
	for _, x := range t.tails {
		if at, found := rankOf(x.members, h); found && at >= x.from {
			return true
		}
	}
	return false
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

// alone iterates over the allocations that are in no set and no tail, each once.
func (t *total) alone() iter.Seq[*model.Held] {
	return func(yield func(*model.Held) bool) {
		seen := make(map[structs.AllocID]bool, len(t.single))
		for _, h := range t.single {
			if seen[h.ID] || t.has(h) || t.shrinks(h) {
				continue
			}
			if seen[h.ID] = true; !yield(h) {
				return
			}
		}
	}
}
