package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Preemption (D19). What found no place may take that of running work, by the rule of its queue: of lower priority, of
// queues that borrowed what others are guaranteed, or of work that can wait while its own deadline cannot. Only work that
// says that it may be preempted, or can save its state, is; unless the operator allows more for a kind of job. The
// victims are those that lose least. They are told in the very part that places the preemptor, which waits on them and
// owns the claim: who is cancelled gives it up, and no third one slips in.
//
// No loops at fixed time and usage: by each rule the preemptor is out of reach of its victims' rules. Priorities are
// strictly ordered; who reclaims stays within its guarantee and takes only what is beyond others'; who has no time left
// is not taken the place of for a deadline.

// Defaults of the settings of queues, and what is assumed where work does not say.
const (
	preemptDelta   = 10 // of priority, where the operator's switch alone allows it: as Nomad has it
	expectUnknown  = time.Hour
	graceUnknown   = 30 * time.Second
	deadlineMargin = time.Minute // before the last moment, to let victims go
)

// preemption is what a pass knows of work that may give way, and has told to.
type preemption struct {
	gangs map[gangKey][]*model.Held // live members of gangs and elastic groups, by name index
	taken map[structs.AllocID]bool
	made  map[structs.QueuePath]int64          // evicted jobs, by the preemptor's queue
	gone  map[structs.QueuePath]structs.Amount // of what queues hold, by path: told to go by this pass
	rules map[structs.QueuePath]*structs.Queue
	noFit search.NoFit
}

func newPreemption() *preemption {
	return &preemption{taken: make(map[structs.AllocID]bool), made: make(map[structs.QueuePath]int64), gone: make(map[structs.QueuePath]structs.Amount), rules: make(map[structs.QueuePath]*structs.Queue)}
}

type gangKey struct {
	job   structs.JobKey
	group string
}

// preemptRule is how a job may preempt.
type preemptRule struct {
	name  string // of structs.Preempt...; "" for not at all
	any   bool   // the operator's switch: also work that does not say that it may be preempted
	queue structs.QueuePath
	rate  int64 // evicted jobs an hour; 0: no limit
	delta int64 // by how much the job's priority must be higher
}

// preemptRule is the rule for the decision's job.
func (d *decision) preemptRule() preemptRule {
	j := d.load.Job
	q := d.settings(j.QueueName())
	r := preemptRule{queue: j.QueueName(), name: q.Preempt, rate: q.PreemptRate, delta: max(q.PreemptDelta, 1)}
	switch r.name {
	case structs.PreemptPriority, structs.PreemptReclaim, structs.PreemptDeadline:
		return r
	}
	r.name = ""
	c := &d.in.Config
	switch j.Type {
	case structs.JobBatch:
		r.any = c.PreemptBatch
	case structs.JobService:
		r.any = c.PreemptService
	case structs.JobSystem:
		r.any = c.PreemptSystem
	case structs.JobSysBatch:
		r.any = c.PreemptSysBatch
	}
	if r.any {
		r.name, r.delta = structs.PreemptPriority, cmp.Or(q.PreemptDelta, preemptDelta)
	}
	return r
}

// preempt looks for places that others give up for what the decision found none for. Elastic work shrinks for anybody
// before somebody is preempted.
func (d *decision) preempt() {
	if d.load.Job == nil || d.load.Job.AllAtOnce || len(d.misses) == 0 || d.pre == nil {
		return
	}
	rule := d.preemptRule()
	if at := d.patience(); rule.name != "" && d.in.Now < at {
		d.look(at)
		for _, g := range d.groups {
			if d.misses[g.Name] > 0 && g.note == nil {
				g.note = &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptDelay, Holder: queueHolder(rule.queue)}, Short: int64((at.Sub(d.in.Now) + time.Second - 1) / time.Second), Unit: structs.UnitSeconds, CuredBy: structs.EventTime}
			}
		}
		rule.name = ""
	}
	defer d.lookLater()
	if rule.name == "" && !d.w.View.MayShrink() {
		return // nobody can be made to go
	}
	for _, g := range d.groups {
		if d.misses[g.Name] == 0 || g.Refused != nil || g.over != nil || g.Nowhere || g.Ask == nil || len(g.Wants) == 0 {
			continue
		}
		ws := d.unplaced(g)
		if slices.ContainsFunc(ws, func(w *reconcile.Want) bool { return w.MayWait }) {
			continue // it waits for its own old one
		}
		key := d.noFitKey(g)
		if key != "" {
			key = fmt.Sprint(rule.name, rule.queue, d.load.Job.Priority, d.load.Job.Deadline, d.load.Job.Runtime, key)
			if d.pre.noFit.Find(d.w, key) != nil {
				continue
			}
		}
		if rule.name == structs.PreemptDeadline && !d.urgent() {
			rule.name = ""
		}
		if g.Gang {
			d.preemptFor(g, ws, rule)
		} else {
			for i := range ws {
				if !d.preemptFor(g, ws[i:i+1], rule) {
					break
				}
			}
		}
		if key != "" && d.misses[g.Name] == int64(len(g.Wants)) {
			d.pre.noFit.Note(d.w, key, g.search)
		}
	}
}

// patience is when the decision's job has waited for as long as its queue wants before others make room for it; 0: always.
func (d *decision) patience() structs.LogTime {
	after := d.settings(d.load.QueueName()).PreemptAfter
	since := d.load.WaitingSince()
	if after == 0 || since == 0 {
		return 0
	}
	return since.Add(after)
}

// lookLater makes for another decision when more may be preempted.
func (d *decision) lookLater() {
	if at := d.retry; at > d.in.Now && len(d.load.Evals) > 0 && len(d.misses) > 0 {
		d.work.Later = append(d.work.Later, reconcile.Later{At: at, Trigger: structs.TriggerPreemption, Desc: "more work may be preempted then"})
	}
}

// unplaced lists the wants of a group that found no place.
func (d *decision) unplaced(g *groupWork) (out []*reconcile.Want) {
	for i := range g.Wants {
		w := &g.Wants[i]
		if !slices.ContainsFunc(d.placed, func(p placement) bool { return p.want == w }) {
			out = append(out, w)
		}
	}
	return out
}

// expected is how long the decision's job will run, as far as one can tell.
func (d *decision) expected() time.Duration {
	j := d.load.Job
	switch {
	case j.Runtime.Expected > 0:
		return j.Runtime.Expected
	case d.load.Expect > 0:
		return d.load.Expect
	case j.Runtime.Limit > 0:
		return j.Runtime.Limit
	}
	return expectUnknown
}

// urgent reports whether a job would miss its deadline if it waited, and will not if it starts now. One that has time
// asks for a look when it has none left.
func (d *decision) urgent() bool {
	j := d.load.Job
	if j.Deadline == 0 {
		return false
	}
	last := j.Deadline.Add(-d.expected())
	if d.in.Now > last {
		return false // too late anyway
	}
	if at := last.Add(-deadlineMargin); d.in.Now < at {
		d.look(at)
		return false
	}
	return true
}

// look asks for a decision at a time, unless one comes earlier.
func (d *decision) look(at structs.LogTime) {
	if d.retry == 0 || at < d.retry {
		d.retry = at
	}
}

// victim is running work that may give way, with what goes with it.
type victim struct {
	h      *model.Held
	cost   int64 // GPU-seconds lost, of all that goes
	shrink bool  // an elastic group has it beyond its fewest
	free   bool  // it ends anyway
	with   []*model.Held
}

// preemptFor places wants of a group, all or none, with others making room where there is none.
func (d *decision) preemptFor(g *groupWork, ws []*reconcile.Want, rule preemptRule) bool {
	s := d.gangSearch(g, 0, nil, nil)
	if g.Gang && g.Tg.Topology != nil && g.Tg.Topology.Across != "" && g.Tg.Topology.Mode == structs.TopologyRequired {
		l := d.w.Level(g.Tg.Topology.Across)
		if len(l.Names) == 0 {
			return false
		}
		s.Places = l
		for at := range l.Names { // the first place of the level where it works
			s.Within = []int32{int32(at)}
			if d.preemptIn(g, ws, rule, s) {
				return true
			}
			s = d.gangSearch(g, 0, l, s.Within)
		}
		return false
	}
	if !g.Gang {
		for _, pl := range d.placed {
			if pl.g == g {
				s.Count(pl.at.Row, true, 1)
			}
		}
	}
	return d.preemptIn(g, ws, rule, s)
}

// preemptIn is preemptFor within the places of a search.
func (d *decision) preemptIn(g *groupWork, ws []*reconcile.Want, rule preemptRule, s *search.Search) bool {
	p := d.pre
	mark, placed, cursor := d.w.Mark(), len(d.placed), d.cursor
	var told []*model.Held
	cost, jobs, top := int64(0), []structs.JobKey(nil), 0
	undo := func() bool {
		d.w.Rollback(mark)
		d.placed, d.cursor = d.placed[:placed], cursor
		for _, h := range told {
			delete(p.taken, h.ID)
			p.release(h)
		}
		return false
	}
	for _, w := range ws {
		id := structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, w.Index)
		if sp, ok := d.find(s, w, id); ok {
			d.placed = append(d.placed, placement{g: g, want: w, at: sp})
			d.cursor = sp.Node.ID
			continue
		}
		row, vs := d.cheapest(s, id, rule)
		if row < 0 {
			return undo()
		}
		var ids []structs.AllocID
		var stops []structs.PlanStop
		for _, v := range vs {
			ids = append(ids, v.h.ID)
			for _, h := range append([]*model.Held{v.h}, v.with...) {
				st := structs.PlanStop{ID: h.ID, Desc: "preempted by job " + d.load.Job.ID, Desired: structs.DesiredEvict, Preempt: id}
				if v.shrink {
					st.Desc, st.Desired, st.Cause = "shrunk in favour of job "+d.load.Job.ID, structs.DesiredStop, structs.CausePreempt
				}
				stops = append(stops, st)
				if v.free || p.taken[h.ID] {
					continue
				}
				p.take(h)
				told = append(told, h)
				if k := h.Work.Job.Key(); !v.shrink && !slices.Contains(jobs, k) {
					jobs = append(jobs, k)
				}
				if !v.shrink {
					top = max(top, h.Work.Job.Priority)
				}
			}
			if !v.free {
				cost += v.cost
			}
		}
		sp, ok := s.PlaceOn(row, id, ids)
		if !ok {
			return undo()
		}
		d.placed = append(d.placed, placement{g: g, want: w, at: sp, evict: stops})
		d.cursor = sp.Node.ID
	}
	members := int64(0)
	for _, w := range ws {
		if !w.Standby {
			members++
		}
	}
	gain := d.gain(g, members, rule, top)
	if cost > 0 && gain <= cost {
		g.note = &structs.Refusal{Code: structs.ReasonPriority, Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptCost}, Short: cost - gain, Unit: structs.UnitGPUSeconds, CuredBy: structs.EventAllocStopped}
		return undo()
	}
	if rule.rate > 0 && len(jobs) > 0 && d.in.evicted(rule.queue)+p.made[rule.queue]+int64(len(jobs)) > rule.rate {
		g.note = &structs.Refusal{Code: structs.ReasonRateLimit, Obstacle: structs.Obstacle{Dimension: structs.DimensionPreemptRate, Holder: queueHolder(rule.queue)}, Short: int64(len(jobs)), Unit: structs.UnitPerHour, CuredBy: structs.EventTime}
		if at, ok := d.in.rateFree(rule.queue); ok {
			d.look(at)
		}
		return undo()
	}
	d.tellCosts(placed, rule, cost, gain)
	p.made[rule.queue] += int64(len(jobs))
	if d.misses[g.Name] -= int64(len(ws)); d.misses[g.Name] == 0 {
		delete(d.misses, g.Name)
	}
	g.Counts.Preemptions += int64(len(told))
	if g.Gang && g.search != nil {
		g.search.Found = int64(len(g.Wants))
	}
	return true
}

// tellCosts adds to what victims are told why they, and what was weighed: what all of them lose together (lost)
// against what is gained (gain).
func (d *decision) tellCosts(first int, rule preemptRule, cost, gain int64) {
	why := ""
	switch rule.name {
	case structs.PreemptReclaim:
		why = fmt.Sprintf(": its queue gets back what it is guaranteed; %d GPU seconds are lost", cost)
	case structs.PreemptPriority:
		why = fmt.Sprintf(" (priority %d): %d GPU seconds are lost, worth less than the %d gained", d.load.Job.Priority, cost, gain)
	case structs.PreemptDeadline:
		why = fmt.Sprintf(", which would miss its deadline: %d GPU seconds are lost, worth less than the %d gained", cost, gain)
	}
	for i := first; i < len(d.placed); i++ {
		for k := range d.placed[i].evict {
			if s := &d.placed[i].evict[k]; s.Desired == structs.DesiredEvict && !s.Preempt.IsZero() {
				s.Desc += why
			}
		}
	}
}

// evicted counts the jobs evicted on behalf of a queue in the last hour.
func (in *Input) evicted(queue structs.QueuePath) int64 {
	for _, e := range in.Evicted {
		if e.Queue == queue {
			return e.Within(in.Now)
		}
	}
	return 0
}

// rateFree is when the oldest eviction of the last hour is an hour old.
func (in *Input) rateFree(queue structs.QueuePath) (structs.LogTime, bool) {
	for _, e := range in.Evicted {
		if e.Queue != queue {
			continue
		}
		for _, t := range e.Recent {
			if at := t.Add(time.Hour); at > in.Now {
				return at, true
			}
		}
	}
	return 0, false
}

// gain is what a preemption brings, in GPU-seconds: the work done sooner, times the difference of the priorities.
func (d *decision) gain(g *groupWork, members int64, rule preemptRule, top int) int64 {
	if rule.name == structs.PreemptReclaim {
		return 1 << 62 // it is theirs
	}
	gpus := max(structs.GroupAmount(g.Tg).GPUMilli, 1000)
	work := members * gpus * int64(d.expected()/time.Second) / 1000
	return work * int64(max(1, d.load.Job.Priority-top))
}

// cheapest finds the node where least is lost if a placement takes the place of others; row -1 for none.
func (d *decision) cheapest(s *search.Search, id structs.AllocID, rule preemptRule) (best int, chosen []victim) {
	best = -1
	var least int64
	for ci, c := range d.w.View.Chunks {
		for i := range c.IDs {
			row := d.w.View.Starts[ci] + i
			v := s.ClassVerdict(&c.Classes[c.Class[i]])
			if v.Outside || v.Far || v.Refused > 0 || !c.Ready[i] || s.Elsewhere(row) || s.Banned(c.IDs[i]) {
				continue
			}
			o := d.w.Get(row)
			if o.Hold == nil {
				continue
			}
			vs := d.victims(c, i, &o, rule)
			if len(vs) == 0 {
				continue
			}
			d.steps++
			vs = d.fewest(s, row, c, i, v, &o, id, vs)
			if vs == nil {
				continue
			}
			sum := int64(0)
			for _, x := range vs {
				sum += x.cost
			}
			if best < 0 || sum < least || sum == least && len(vs) < len(chosen) {
				best, chosen, least = row, vs, sum
			}
		}
	}
	return best, chosen
}

// fewest gives the victims of a node that suffice, the cheapest first; nil when even all of them do not.
func (d *decision) fewest(s *search.Search, row int, c *model.Chunk, i int, v *search.Verdict, o *model.Occupancy, id structs.AllocID, vs []victim) []victim {
	n := c.Nodes[i]
	fitsWith := func(vs []victim) bool {
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
	slices.SortFunc(vs, func(a, b victim) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(b.h.Work.Began, a.h.Work.Began), model.CompareID(a.h.ID, b.h.ID))
	})
	if !fitsWith(vs) {
		return nil
	}
	n1 := 1
	for n1 < len(vs) && !fitsWith(vs[:n1]) {
		n1++
	}
	vs = slices.Clone(vs[:n1])
	for k := len(vs) - 2; k >= 0; k-- { // whoever was taken before the last one may not be needed any more
		rest := slices.Delete(slices.Clone(vs), k, k+1)
		if fitsWith(rest) {
			vs = rest
		}
	}
	return vs
}

// victims lists what may give way on a node.
func (d *decision) victims(c *model.Chunk, i int, o *model.Occupancy, rule preemptRule) (out []victim) {
	p := d.pre
	for h := range o.Hold.All() {
		w := &h.Work
		if w.Job == nil || w.Job.Key() == d.load.Key {
			continue
		}
		if !c.Hold[i].Has(h.ID) {
			continue // it is being placed right now
		}
		if o.Hold.Claimed(h.ID) || o.Hold.Waiting(h.ID) {
			continue
		}
		switch {
		case w.Ending || p.taken[h.ID]: // told by this pass: only who could have told it himself may count on it
			if rule.name != "" && (w.Ending || d.mayEvict(h, rule)) {
				out = append(out, victim{h: h, free: true})
			}
			continue
		case p.shrinks(d, h):
			out = append(out, victim{h: h, shrink: true, with: p.above(d, h)})
			continue
		}
		if rule.name == "" || !d.mayEvict(h, rule) {
			continue
		}
		if g := w.Job.Group(w.Group); g != nil && g.IsStandby(w.Index) {
			out = append(out, victim{h: h, shrink: true}) // nothing is lost
			continue
		}
		v := victim{h: h, cost: d.lost(h)}
		for _, m := range p.fellows(d, h) {
			v.with = append(v.with, m)
			v.cost += d.lost(m)
		}
		out = append(out, v)
	}
	return out
}

// mayEvict reports whether a rule lets the decision's job take the place of running work.
func (d *decision) mayEvict(h *model.Held, rule preemptRule) bool {
	v, j := h.Work.Job, d.load.Job
	if !rule.any && !v.MayPreempt() {
		return false
	}
	switch rule.name {
	case structs.PreemptPriority:
		if int64(v.Priority)+rule.delta > int64(j.Priority) {
			return false
		}
	case structs.PreemptReclaim:
		if !d.mayReclaim(h) {
			return false
		}
	case structs.PreemptDeadline:
		if v.Deadline != 0 {
			left := v.Runtime.Expected
			if left == 0 {
				left = expectUnknown
			}
			if d.in.Now.Add(d.expected()+2*left+2*deadlineMargin) > v.Deadline {
				return false // it could miss its own
			}
		}
	}
	q := d.settings(v.QueueName())
	if h.Work.Times >= q.PreemptMax {
		return false
	}
	if at := h.Work.Began.Add(q.PreemptMinRuntime); d.in.Now < at {
		d.look(at)
		return false
	}
	return true
}

// settings are those of a queue, computed once a pass.
func (d *decision) settings(path structs.QueuePath) *structs.Queue {
	q := d.pre.rules[path]
	if q == nil {
		x := d.in.Queues.Settings(path, &d.in.Config)
		q = &x
		d.pre.rules[path] = q
	}
	return q
}

// mayReclaim reports whether the decision's job may have back what running work holds. Let top be the nearest queue above
// both queues. Then the job's queue, or one between it and top, must be guaranteed what the job asks for beside all that
// it holds; and without the work, its queue and each between it and top must still hold what they are guaranteed.
func (d *decision) mayReclaim(h *model.Held) bool {
	mine, theirs := d.load.Job.QueueName(), h.Work.Job.QueueName()
	top := commonQueue(mine, theirs)
	if d.limits == nil || theirs == top { // no guarantee anywhere; or theirs is above mine
		return false
	}
	var ask structs.Amount
	for _, g := range d.groups {
		if g.Tg != nil {
			ask = ask.Add(d.limits.estimate(g.Tg).Times(int64(len(g.Wants))))
		}
	}
	owed := false
	for path := range mine.Lineage() {
		if path == top || owed {
			break
		}
		q := d.in.Queues.Queue(path)
		if q == nil || q.Guarantee == nil {
			continue
		}
		holds, _ := d.limits.held(structs.UseRow{Path: path})
		owed = guaranteed(holds.Add(ask), *q.Guarantee, ask)
	}
	if !owed {
		return false
	}
	for path := range theirs.Lineage() {
		if path == top {
			break
		}
		q := d.in.Queues.Queue(path)
		if q == nil || q.Guarantee == nil {
			continue
		}
		holds, _ := d.limits.held(structs.UseRow{Path: path})
		holds = holds.Sub(d.pre.gone[path]).Sub(h.Amount())
		left := contested(holds, ask)
		for i, g := range contested(*q.Guarantee, ask) {
			if left[i] < g {
				return false
			}
		}
	}
	return true
}

// guaranteed reports whether an amount, of which ask is what is asked for, lies within a guarantee. A guarantee of
// nothing that the ask is about gives no claim.
func guaranteed(after, guarantee, ask structs.Amount) bool {
	some := false
	for i, g := range contested(guarantee, ask) {
		if g == 0 || contested(ask, ask)[i] == 0 {
			continue
		}
		if contested(after, ask)[i] > g {
			return false
		}
		some = true
	}
	return some
}

// contested are the components that a claim is about: those of GPUs for an ask for GPUs, else processor and memory.
func contested(a, ask structs.Amount) [2]int64 {
	if ask.GPUMilli > 0 || ask.GPUMemoryMiB > 0 {
		return [2]int64{a.GPUMilli, a.GPUMemoryMiB}
	}
	return [2]int64{a.CPU, a.MemoryMiB}
}

// commonQueue is the lowest queue that contains both.
func commonQueue(a, b structs.QueuePath) structs.QueuePath {
	for !a.Contains(b) {
		a = a.Parent()
	}
	return a
}

// lost is what preempting one allocation costs, in GPU-seconds (of work without GPUs: seconds): what it has done since its
// last checkpoint, or since it started, and for work that saves its state what saving and loading it costs. Work that is
// told to save, and of which no checkpoint was ever seen, is believed to do so.
func (d *decision) lost(h *model.Held) int64 {
	gpus := h.Amount().GPUMilli
	if gpus == 0 {
		gpus = 1000
	}
	lost := max(0, d.in.Now.Sub(max(h.Work.Began, h.Work.Saved)))
	if g := h.Work.Job.Group(h.Work.Group); g != nil && g.Checkpoint != nil {
		c := g.Checkpoint
		if h.Work.Saved == 0 && c.Notified() {
			lost = 0
		}
		lost += cmp.Or(c.Cost, 2*cmp.Or(c.Grace, graceUnknown))
	}
	return max(1, gpus*int64(lost/time.Second)/1000)
}

// members lists the live members of the gang or elastic group that work belongs to, by name index; nil for neither.
func (p *preemption) members(d *decision, h *model.Held) []*model.Held {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || g.Gang == nil && g.Elastic == nil {
		return nil
	}
	if p.gangs == nil {
		p.gangs = make(map[gangKey][]*model.Held)
		for _, c := range d.w.View.Chunks {
			for i := range c.IDs {
				for x := range c.Hold[i].All() {
					if x.Work.Job == nil || x.Work.Ending {
						continue
					}
					if g := x.Work.Job.Group(x.Work.Group); g != nil && (g.Gang != nil || g.Elastic != nil) && !g.IsStandby(x.Work.Index) {
						k := gangKey{x.Work.Job.Key(), x.Work.Group}
						p.gangs[k] = append(p.gangs[k], x)
					}
				}
			}
		}
		for _, list := range p.gangs { // the order of the keys does not matter
			slices.SortFunc(list, func(a, b *model.Held) int {
				return cmp.Or(cmp.Compare(a.Work.Index, b.Work.Index), model.CompareID(a.ID, b.ID))
			})
		}
	}
	var out []*model.Held
	for _, x := range p.gangs[gangKey{h.Work.Job.Key(), h.Work.Group}] {
		if !p.taken[x.ID] {
			out = append(out, x)
		}
	}
	return out
}

// shrinks reports whether work is what an elastic group has beyond its fewest, counted from the highest index: beyond
// its count it goes for anybody, below for who has a higher priority.
func (p *preemption) shrinks(d *decision, h *model.Held) bool {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || g.Elastic == nil {
		return false
	}
	ms := p.members(d, h)
	at := slices.IndexFunc(ms, func(x *model.Held) bool { return x.ID == h.ID })
	return at >= 0 && at >= g.Fewest() && (at >= g.Count || h.Work.Job.Priority < d.load.Job.Priority)
}

// above lists the members of a group with a higher index, which go first.
func (p *preemption) above(d *decision, h *model.Held) []*model.Held {
	ms := p.members(d, h)
	at := slices.IndexFunc(ms, func(x *model.Held) bool { return x.ID == h.ID })
	return ms[at+1:]
}

// fellows lists who goes with work when it is evicted: nobody, or the rest of a gang that would be below its minimum.
func (p *preemption) fellows(d *decision, h *model.Held) (out []*model.Held) {
	g := h.Work.Job.Group(h.Work.Group)
	if g == nil || g.Gang == nil {
		return nil
	}
	ms := p.members(d, h)
	if len(ms)-1 >= g.Least() {
		return nil
	}
	for _, x := range ms {
		if x.ID != h.ID {
			out = append(out, x)
		}
	}
	return out // its standbys are given back when the gang is decided about
}

// take notes that work is told to go.
func (p *preemption) take(h *model.Held) {
	p.taken[h.ID] = true
	p.credit(h, 1)
}

func (p *preemption) release(h *model.Held) { p.credit(h, -1) }

func (p *preemption) credit(h *model.Held, n int64) {
	for path := range h.Work.Job.QueueName().Lineage() {
		p.gone[path] = p.gone[path].Add(h.Amount().Times(n))
	}
}
