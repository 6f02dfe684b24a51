package contend

import (
	"cmp"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Victim is running work that may be preempted, with what stops together with it.
type Victim struct {
	h      *model.Held
	cost   int64 // GPU seconds lost, of all that stops
	shrink bool  // an elastic group has it beyond its minimum
	free   bool  // it ends anyway
	with   []*model.Held
	set    *stopSet // with is all of it; nil: with does not have h
}

// Cheapest finds the node where the least is lost if a placement takes the place of others. best is -1 if there is
// none.
func (p *Preemptor) Cheapest(s *search.Search, id structs.AllocID) (best int, chosen []Victim) {
	best = -1
	var least int64
	p.each(s, id, func(row int, vs []Victim, sum int64) {
		if best < 0 || sum < least || sum == least && len(vs) < len(chosen) {
			best, chosen, least = row, vs, sum
		}
	})
	return best, chosen
}

// Losses estimates what each placement of a gang would cost on each node: 0 for those that find room there without others
// giving up their places, then once what is lost if they do.
func (p *Preemptor) Losses(s *search.Search, id structs.AllocID) [][]int64 {
	out := make([][]int64, p.w.View.Rows)
	p.each(s, id, func(row int, _ []Victim, sum int64) { out[row] = []int64{sum} })
	for row := range out {
		if n := s.RoomOn(row); n > 0 {
			out[row] = make([]int64, n)
		}
	}
	return out
}

// each calls f for every node where a placement can take the place of others, with the victims and what they lose.
func (p *Preemptor) each(s *search.Search, id structs.AllocID, f func(row int, vs []Victim, sum int64)) {
	for ci, c := range p.w.View.Chunks {
		for i := range c.IDs {
			row := p.w.View.Starts[ci] + i
			v := s.ClassVerdict(&c.Classes[c.Class[i]])
			if v.Outside || v.Far || v.Refused > 0 || !c.Ready[i] || s.Elsewhere(row) || s.Banned(c.IDs[i]) {
				continue
			}
			o := p.w.Get(row)
			if o.Hold == nil {
				continue
			}
			p.Looked++
			vs := p.victims(c, i, &o)
			if len(vs) == 0 {
				continue
			}
			vs = p.fewest(s, row, c, i, v, &o, id, vs)
			if vs == nil {
				continue
			}
			f(row, vs, p.costOf(vs))
		}
	}
}

// costOf returns what victims cost together: what stops with several of them counts once.
func (p *Preemption) costOf(vs []Victim) (sum int64) {
	t := total{p: p}
	for i := range vs {
		if vs[i].cost != 0 { // so it has no tails: shrinking costs nothing
			t.add(&vs[i])
		}
	}
	for _, x := range t.sets {
		sum += x.cost
	}
	for h := range t.alone() {
		sum += p.lost(h)
	}
	return sum
}

// fewest returns the victims of a node that suffice, the cheapest first; of those that cost the same, the ones with which
// least stops. It returns nil when even all of them do not, or
// when no guarantee lets enough of them go together.
func (p *Preemptor) fewest(s *search.Search, row int, c *model.Chunk, i int, v *search.Verdict, o *model.Occupancy, id structs.AllocID, vs []Victim) []Victim {
	n := c.Nodes[i]
	fitsWith := func(vs []Victim) bool {
		ids := make([]structs.AllocID, len(vs))
		for k := range vs {
			ids[k] = vs[k].h.ID
		}
		if _, bad := s.Indistinct(row, v, n); bad {
			return false
		}
		s.Choose(c, i, v, o)
		h, short := s.Ask.Equip(n, *o, v.Choices, id, ids, &s.Picker)
		if short.Dim != structs.DimensionNone {
			return false
		}
		after, x := model.Fits(n, c.Total[i], c.MHz[i], *o, h)
		return x.Dim == structs.DimensionNone && s.PowerShort(row, n, after) <= 0
	}
	slices.SortFunc(vs, func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.others(), b.others()), cmp.Compare(b.h.Work.Began, a.h.Work.Began), model.CompareID(a.h.ID, b.h.ID))
	})
	if !fitsWith(vs) {
		return nil
	}
	if vs = p.unguarded(vs, fitsWith); vs == nil {
		return nil
	}
	n1 := 1
	for n1 < len(vs) && !fitsWith(vs[:n1]) {
		n1++
	}
	vs = slices.Clone(vs[:n1])
	for k := len(vs) - 2; k >= 0; k-- { // those before the last one may not be needed any more
		rest := slices.Delete(slices.Clone(vs), k, k+1)
		if fitsWith(rest) {
			vs = rest
		}
	}
	return p.joined(vs)
}

// victims lists what may be preempted on a node.
func (p *Preemptor) victims(c *model.Chunk, i int, o *model.Occupancy) (out []Victim) {
	for h := range o.Hold.All() {
		w := &h.Work
		if w.Job == nil || w.Job.Key() == p.Load.Key {
			continue
		}
		if !c.Hold[i].Has(h.ID) {
			continue // this decision is placing it
		}
		if o.Hold.Claimed(h.ID) || o.Hold.Waiting(h.ID) {
			continue
		}
		switch {
		case w.Ending || p.taken[h.ID]: // stopped by this pass: only work that could have stopped it may count on it
			if p.Rule.Name != "" && (w.Ending || p.mayEvict(h)) {
				out = append(out, Victim{h: h, free: true})
			}
			continue
		case p.shrinks(h):
			if v := (Victim{h: h, shrink: true, with: p.above(h)}); !p.tooYoung(h) && !p.guarded(&v, nil) {
				out = append(out, v)
			}
			continue
		}
		if p.Rule.Name == "" || !p.mayEvict(h) {
			continue
		}
		if g := w.Job.Group(w.Group); g != nil && g.IsStandby(w.Index) {
			out = append(out, Victim{h: h, shrink: true}) // nothing is lost
			continue
		}
		out = append(out, p.victim(h))
	}
	return out
}

// mayEvict reports whether the rule lets the job take the place of running work.
func (p *Preemptor) mayEvict(h *model.Held) bool {
	v, j := h.Work.Job, p.Load.Job
	if !p.Rule.any && !p.rules.Yields && !v.MayPreempt() || p.Rule.near && v.QueueName() != p.Rule.Queue || p.guards(&Victim{h: h}, nil) {
		return false
	}
	switch p.Rule.Name {
	case structs.PreemptPriority:
		if int64(v.Priority)+p.Rule.delta > int64(j.Priority) {
			return false
		}
	case structs.PreemptReclaim:
		if !p.mayReclaim(h) {
			return false
		}
	case preemptShares:
		if !p.mayClaim(h, nil) {
			return false
		}
	case structs.PreemptDeadline:
		if p.lateFor(h) {
			return false
		}
		if v.Deadline != 0 {
			left := v.Runtime.Expected
			if left == 0 {
				left = expectUnknown
			}
			if p.now.Add(p.Load.Expected()+2*left+2*deadlineMargin) > v.Deadline {
				return false // it could miss its own deadline
			}
		}
	}
	q := p.rules.Of(v.QueueName())
	if h.Work.Times >= q.PreemptMax {
		return false
	}
	return !p.tooYoung(h)
}

// tooYoung reports whether work has run for less than its queue's preempt_min_runtime since its tasks started (before that,
// since it was placed: an image that takes long to pull does not keep others away for ever), and has the decision made again
// when it has run for that long. A gang has run since its newest member began, which would stop with the others. So has an
// elastic group: an older member would go in the place of a younger one. An elastic gang has run since it was last resized: a gang from which others take member after member would only restart. Its roster says when that was, from
// the entry on that stops a member, so it does not matter when that member ends; a resize in flight is one of this moment.
func (p *Preemptor) tooYoung(h *model.Held) bool {
	began := h.Work.Began
	if g := h.Work.Job.Group(h.Work.Group); g != nil && (g.Elastic != nil || g.IsGang()) {
		began = max(began, p.newestOf(h).began)
		if k := (gangKey{h.Work.Job.Key(), h.Work.Group}); g.Elastic != nil && g.Gang != nil {
			if began = max(began, p.timesOf(k).At); p.leaving[k] {
				began = p.now
			}
		}
	}
	q := p.rules.Of(h.Work.Job.QueueName())
	if at := began.Add(q.PreemptMinRuntime); p.now < at {
		p.retry(at)
		if p.youngTo == 0 || at < p.youngTo {
			p.young, p.youngTo = p.young[:0], at
		}
		if at == p.youngTo {
			p.young = append(p.young, h.Work.Job.Key())
		}
		return true
	}
	return false
}

// newest is when a member of a gang or elastic group, or of what runs with it, began last, and when a member saved last; 0: none has. slow: the newest
// checkpoint of some member was not written within its grace of a notice.
type newest struct {
	began, saved structs.LogTime
	slow         bool
}

// newestOf returns the newest times of the group of a member.
func (p *Preemption) newestOf(h *model.Held) newest {
	ms, k := p.members(h), gangKey{h.Work.Job.Key(), h.Work.Group}
	n, known := p.newest[k]
	if known {
		return n
	}
	for _, m := range ms {
		n.began = max(n.began, m.Work.Began)
	}
	for _, o := range h.Work.Job.Groups { // all groups of an all_at_once job run as one
		if o.Joint && h.Work.Job.Together(o.Name, h.Work.Group) {
			for _, m := range p.live(gangKey{k.job, o.Name}) {
				n.began = max(n.began, m.Work.Began)
			}
		}
	}
	for _, m := range p.gangs[k] { // also those that this pass stops: one may save for all
		n.saved, n.slow = max(n.saved, m.Work.Saved), n.slow || !savedAsked(m)
	}
	if p.newest == nil {
		p.newest = map[gangKey]newest{}
	}
	p.newest[k] = n
	p.Scanned += len(ms)
	return n
}

// lost returns what preempting one allocation costs, in GPU seconds (for work without GPUs: seconds).
func (p *Preemption) lost(h *model.Held) int64 { return p.lostBy(h, structs.CausePreempt) }

// lostBy is lost for work that is stopped for another cause of a checkpoint.
func (p *Preemption) lostBy(h *model.Held, cause string) int64 {
	return max(1, gpuSeconds(h, p.lostTime(h, cause)))
}

// gpuSeconds returns what an allocation does in a time, in GPU seconds (for work without GPUs: seconds).
func gpuSeconds(h *model.Held, d time.Duration) int64 {
	gpus := h.Amount().GPUMilli
	if gpus == 0 {
		gpus = 1000
	}
	return gpus * int64(d/time.Second) / 1000
}

// lostTime returns how much run time stopping one allocation for a cause costs: what the work has done since its last
// checkpoint, or since it started, unless it saves that when it is asked to (savingOf), and for work that saves its state,
// saving and loading. Work that is frozen does nothing, and it cannot have done more since its
// checkpoint than since its start. A gang has done its work since its newest complete checkpoint, also where some of
// its members have saved a newer one.
func (p *Preemption) lostTime(h *model.Held, cause string) time.Duration {
	until := p.now
	if f := h.Work.Frozen; f > 0 {
		until = min(until, f)
	}
	g := h.Work.Job.Group(h.Work.Group)
	saved := h.Work.Saved
	if g.SavesAsOne() {
		newest := max(h.Work.Saved, p.newestOf(h).saved)
		if t := p.timesOf(gangKey{h.Work.Job.Key(), h.Work.Group}); t.Tracked {
			saved = t.Saved
		} else {
			saved = newest
		}
	}
	lost := max(0, until.Sub(max(h.Work.Began, saved)))
	if g != nil && g.Checkpoint != nil {
		c := g.Checkpoint
		if p.savingOf(h, cause) == savesInTime {
			lost = 0
		}
		lost += cmp.Or(c.Cost, 2*cmp.Or(c.Grace, graceUnknown))
	}
	return lost
}

// shrinks reports whether work is beyond the minimum of its elastic group, counted from the highest index. Beyond the
// count of the group it makes room for any job, below it for jobs of higher priority.
func (p *Preemptor) shrinks(h *model.Held) bool {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || g.Elastic == nil {
		return false
	}
	at, found := rankOf(p.members(h), h)
	return found && at >= g.Fewest() && (at >= g.Count || h.Work.Job.Priority < p.Load.Job.Priority)
}

// above lists the members of a group with a higher index, which stop first.
func (p *Preemption) above(h *model.Held) []*model.Held {
	ms := p.members(h)
	at, found := rankOf(ms, h)
	if !found {
		return ms
	}
	return ms[at+1:]
}

// rankOf finds work among the members of its group, which are in the order of their indexes.
func rankOf(ms []*model.Held, h *model.Held) (int, bool) {
	return slices.BinarySearchFunc(ms, h, byIndex)
}

func byIndex(a, b *model.Held) int {
	return cmp.Or(cmp.Compare(a.Work.Index, b.Work.Index), model.CompareID(a.ID, b.ID))
}

// victim is work that is evicted, with what stops together with it. Standby members of a gang are released when it is decided.
func (p *Preemption) victim(h *model.Held) Victim {
	if x := p.stopSetOf(h); x != nil {
		return Victim{h: h, cost: x.cost, with: x.all, set: x}
	}
	return Victim{h: h, cost: p.lost(h)}
}
