package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Limits of one plan entry (D9): an entry that would be larger is split between parts; a part that would be larger is
// refused.
const (
	entryBytesMax = 768 << 10 // estimate of the encoding; the log's own limit is 1 MiB
	entryStopsMax = 4000

	// Estimated sizes of a placement, of its row in a roster, of a granted device and of a port.
	placeBytes  = 140
	evictBytes  = 220 // with the reason
	rosterBytes = 140
	grantBytes  = 60
	portBytes   = 60
)

// NewPass begins the searches of a pass: one what-if, of the view and what is in flight already.
func (in *Input) NewPass() *search.Pass {
	w := search.NewPass(in.View, in.Flight)
	w.Mix, w.Seed, w.Past = in.Mix, in.Seed, in.History
	w.Doubt(in.Now, in.Typical)
	return w
}

// Schedule decides about the pending workloads in order. It never fails: the Report says what could not be decided.
func Schedule(in Input, p search.Policy) (Plan, Report) {
	plan := Plan{Cursor: in.Cursor}
	rep := Report{}
	// 1. One what-if for the pass: the view and what is in flight already.
	w := in.NewPass()
	defer w.Release()
	if in.Power {
		w.CountPower()
	}
	line := in.Line
	if line == nil {
		line = contend.InOrder(len(in.Pending))
	}
	// What contention depends on.
	with := in.contention(w)
	shared := env{in: &in, w: w, noFit: &search.NoFit{}, reservations: contend.NewReservations(&with),
		limits: contend.NewLimits(in.Queues, in.View, in.Flight, in.Now), setAside: contend.NewSetAside(in.Reserved, &w.WhatIf, in.Now)}
	shared.pre = contend.NewPreemption(&with, shared.limits)
	shared.contests = contend.NewContests(&with, shared.pre, shared.limits, shared.setAside)
	kept, contests := shared.reservations, shared.contests
	quick := contend.NewQuickReject(&with, kept, shared.pre)
	if contests != nil {
		rep.Wake = contests.Wake
		line = contests.Line(line)
	}
	if at := shared.limits.Wake(); at > 0 && (rep.Wake == 0 || at < rep.Wake) {
		rep.Wake = at
	}
	var growing []*decision
	starved, places := in.Waits, 0
	finish := func(d *decision) {
		d.assemble()
		d.done()
		plan.Entries = append(plan.Entries, d.entries...)
		plan.Cursor = d.cursor
		rep.Workloads = append(rep.Workloads, d.report)
		rep.Steps += d.steps + 1
	}
	prune := func() {
		if p, ok := line.(contend.Pruner); ok {
			p.Prune(func(i int) bool { return quick.Refuses(&in.Pending[i]) })
		}
	}
	for i := line.Next(); i >= 0; i = line.Next() {
		load := &in.Pending[i]
		// 2. The budget ends the pass between workloads; a job with a plan in flight waits for its outcome.
		if in.Steps > 0 && rep.Steps >= in.Steps || in.Places > 0 && places >= in.Places || in.Flight.HasJob(load.Key) || contests.Bars(i) {
			plan.Deferred = append(plan.Deferred, load.Key)
			continue
		}
		// A workload that was refused before and asks for more than any node has free is refused without a decision.
		if contests.Front(i) == nil && quick.Refuses(load) {
			contend.NoteBlocked(line, i)
			starved = true
			prune()
			continue
		}
		full := kept.Full(load)
		w.Accept()
		d := newDecision(shared, load, p, plan.Cursor)
		if d.eval == nil {
			rep.Workloads = append(rep.Workloads, WorkloadReport{Key: load.Key, Refused: "there is no evaluation to answer"})
			continue
		}
		// 3. What has to change, from what the job wants and has.
		d.reconcile()
		// 4. What no node can change: on hold, too early, a dependency, the limits of its queue.
		if !d.gated() {
			// 5. Places for the wants, group by group; with all_at_once, all or none.
			d.place()
			d.takeover(contests.Front(i))
			// 6. For wants without a place: places that others give up, by the preemption rule of the queue.
			d.preempt()
			if len(d.misses) > 0 {
				d.note(contests.Declined(i))
			}
			d.report.Passed = len(d.placed) > 0 && kept.Any()
			// 7. For wants that still wait: capacity reserved in time, which later workloads must not take.
			if !contests.Served(i) || kept.Late(load) {
				d.reserve()
			}
		}
		places += len(d.placed)
		starved = starved || d.starves()
		switch {
		case !d.growing():
		case d.evicts(): // its entry comes before those that count on what it stops, which says who stops it and what that costs
			d.grow(true)
		default: // it is finished when all others have been decided
			line.Placed(i, d.placedAmount())
			d.settle()
			growing = append(growing, d)
			d.comesLater(true)
			plan.Cursor = d.cursor
			continue
		}
		// 8. Parts, evaluations and the queue entry.
		finish(d)
		if d.report.Failed {
			contend.NoteBlocked(line, i)
			if !full && kept.Full(load) { // the last reservation of its queue: other workloads without room need no decision
				prune()
			}
		}
		line.Placed(i, d.placedAmount())
		d.settle()
	}
	starved = starved || contests != nil && contests.Skipped
	// 9. Growth beyond minimums comes after all others, and only if no minimum waits.
	for _, d := range growing {
		w.Accept()
		d.cursor = plan.Cursor
		d.comesLater(false)
		d.grow(starved)
		finish(d)
		d.settle()
	}
	if at := shared.pre.Wake; at > 0 && (rep.Wake == 0 || at < rep.Wake) {
		rep.Wake = at
	}
	return plan, rep
}

// place looks for a place for every want.
func (d *decision) place() {
	mark, cursor := d.w.Mark(), d.cursor
	for _, g := range d.groups {
		if g.Nowhere {
			g.search = search.New(g.Ask, d.w, d.policy, 0)
			g.search.Survey()
			d.misses[g.Name] = 1
			continue
		}
		if g.Gang {
			d.placeGang(g, d.firstRow())
			continue
		}
		if len(g.Wants) == 0 {
			continue
		}
		d.placeGroup(g, d.firstRow())
	}
	d.improve()
	if d.load.Job == nil || !d.load.Job.AllAtOnce || len(d.misses) == 0 {
		return
	}
	// All or nothing: roll everything back, but keep the stops that must happen.
	d.w.Rollback(mark)
	var missing []string
	for _, g := range d.groups {
		if d.misses[g.Name] > 0 {
			missing = append(missing, string(g.Name))
		}
	}
	for _, pl := range d.placed {
		if !slices.Contains(missing, string(pl.g.Name)) {
			pl.g.search.GivenBack = strings.Join(missing, ", ")
		}
	}
	for _, pl := range d.placed {
		d.misses[pl.g.Name]++
		d.keepStop(pl.g, pl.want)
	}
	d.placed, d.cursor = nil, cursor
}

// firstRow returns the row from which ties are taken.
func (d *decision) firstRow() int {
	if !d.policy.Rotates() {
		return 0
	}
	first := d.w.View.RowAfter(d.cursor)
	if d.policy.Capabilities().Advances && d.w.View.Node(d.cursor) != nil {
		first = (first + 1) % d.w.View.Rows
	}
	return first
}

// keepStop keeps the stop of a want that found no place, if it must happen anyway.
func (d *decision) keepStop(g *groupWork, w *reconcile.Want) {
	if w.Stop != nil && w.StopAnyway {
		g.Stops = append(g.Stops, *w.Stop)
	}
}

func (d *decision) placeGroup(g *groupWork, first int) {
	key := ""
	if !d.noFit.Empty(d.w) {
		if key = d.noFitKey(g); key != "" {
			if s := d.noFit.Find(d.w, key); s != nil {
				g.search = s
				for i := range g.Wants {
					d.keepStop(g, &g.Wants[i])
				}
				d.misses[g.Name] += int64(len(g.Wants))
				return
			}
		}
	}
	pinned := len(g.Wants) > 0 && !g.Wants[0].Pinned.IsZero()
	if x := d.requires(g); x != nil && !pinned {
		d.placeTogether(g, first, x)
	} else {
		d.placeWants(g, d.gangSearch(g, first, region{}))
	}
	if d.misses[g.Name] == int64(len(g.Wants)) && !pinned && g.over == nil {
		if key == "" {
			key = d.noFitKey(g)
		}
		if key != "" {
			d.noFit.Note(d.w, key, g.search)
		}
	}
	if limit := d.load.Job.RunLimit(g.Tg); limit > 0 && d.misses[g.Name] < int64(len(g.Wants)) {
		// No event says when the new allocations will have started; look again when the first may have run for too
		// long.
		d.work.Later = append(d.work.Later, reconcile.Later{At: d.in.Now.Add(limit), Trigger: structs.TriggerMaxRun, Desc: "an allocation may reach its wall-clock limit", Group: g.Name})
	}
}

// placeWants places the wants of a group one by one, as many as find a place.
func (d *decision) placeWants(g *groupWork, s *search.Search) {
	g.search = s
	pinned := len(g.Wants) > 0 && !g.Wants[0].Pinned.IsZero()
	if pinned {
		s.Survey()
	}
	for i := range g.Wants {
		w := &g.Wants[i]
		id := structs.DeriveAllocID(d.eval.ID, d.in.View.Index(), g.Name, w.Index)
		if sp, ok := d.find(s, w, id); ok {
			d.add(newPlacement(g, w, sp))
			continue
		}
		d.misses[g.Name]++
		d.keepStop(g, w)
		if !pinned && g.over == nil && s.ExhaustedAll() && !d.mayYield(g.Wants[i+1:]) {
			// The other wants would find no place either.
			for k := i + 1; k < len(g.Wants); k++ {
				d.misses[g.Name]++
				d.keepStop(g, &g.Wants[k])
			}
			break
		}
	}
	d.steps += int(s.Looked)
}

// mayYield reports whether some want could still be placed by waiting for the allocation it replaces.
func (d *decision) mayYield(ws []reconcile.Want) bool {
	return slices.ContainsFunc(ws, func(w reconcile.Want) bool { return w.MayWait || !w.Pinned.IsZero() })
}

// find looks for a place for one want: on its node if it is pinned, else the best one, else the place of the allocation
// that it replaces, once that one has ended (D19).
func (d *decision) find(s *search.Search, w *reconcile.Want, id structs.AllocID) (search.Placement, bool) {
	if !d.withinLimits(s, w) || !d.respectsSetAside(s.Ask.Tg) {
		return search.Placement{}, false
	}
	old := -1
	if w.MayWait {
		old = d.w.View.Row(w.Prev.NodeID)
	}
	if old >= 0 && w.Stays {
		s.Count(old, true, -1) // for distinctness and spread it makes room, though not on its node yet
	}
	if w.MustWait {
		// Only the place of the allocation that it replaces keeps its queue within its limit.
	} else if !w.Pinned.IsZero() {
		row := d.w.View.Row(w.Pinned)
		if sp, ok := s.PlacePinned(row, id); ok {
			return sp, true
		}
	} else {
		var avoid []int
		for _, n := range w.Avoid {
			if row := d.w.View.Row(n); row >= 0 {
				avoid = append(avoid, row)
			}
		}
		prefer := -1
		if !w.Prefer.IsZero() {
			prefer = d.w.View.Row(w.Prefer)
		}
		if sp, ok := s.Place(id, avoid, prefer); ok {
			return sp, true
		}
	}
	if old < 0 {
		return search.Placement{}, false
	}
	if d.overLimit(s, w.Prev) != nil {
		return search.Placement{}, false
	}
	if sp, ok := s.PlaceOn(old, id, []structs.AllocID{w.Prev.ID}); ok {
		return sp, true
	}
	if w.Stays {
		s.Count(old, true, 1)
	}
	return search.Placement{}, false
}

// assemble makes the plan entries of the decision.
func (d *decision) assemble() {
	b := &builder{d: d, entry: d.newEntry(), nodes: make(map[structs.NodeID]int), groups: make(map[structs.GroupName]int)}
	d.continueStarts()
	evals := d.laterEvals()
	// Stops alone, then updates in place, then one part per placement with what it replaces.
	var stops []structs.PlanStop
	var updates []structs.PlanUpdate
	for _, g := range d.groups {
		stops = append(stops, g.Stops...)
		updates = append(updates, g.Updates...)
	}
	for i := range d.work.Later {
		stops = append(stops, d.work.Later[i].Stops...)
	}
	for chunk := range slices.Chunk(stops, entryStopsMax) {
		b.add(structs.PlanPart{Stops: chunk}, nil)
	}
	for chunk := range slices.Chunk(updates, entryStopsMax) {
		b.add(structs.PlanPart{Updates: chunk}, nil)
	}
	if d.load.Job != nil && d.load.Job.AllAtOnce && len(d.placed) > 0 {
		if !b.add(structs.PlanPart{}, d.placed) {
			d.report.Refused = fmt.Sprintf("all_at_once: %d placements do not fit into one log entry of %d bytes", len(d.placed), entryBytesMax)
			for _, pl := range d.placed {
				d.misses[pl.g.Name]++
			}
			d.placed = nil
		}
	} else {
		d.addParts(b)
	}
	d.groupReports()
	evals = append(d.answers(evals), evals...)
	rosters := d.rosters()
	b.entry.Evals = evals
	b.entry.Workload = d.queueEntry()
	b.entry.Reservation = d.reservations.Change(d.load.Key, d.reserved)
	b.flush()
	if len(rosters) > 0 {
		for _, e := range b.done {
			if slices.ContainsFunc(e.Parts, func(p structs.PlanPart) bool { return len(p.Places) > 0 }) {
				e.Rosters = rosters
			}
		}
	}
	if len(b.done) == 1 && len(b.done[0].Parts) == 0 && len(b.done[0].Evals) == 0 && b.done[0].Workload == nil && b.done[0].Reservation == nil {
		return // unblocked in vain: nothing to write
	}
	d.entries = b.done
}

// addParts adds one part for each placement with what it replaces; the minimum of a gang is one part.
func (d *decision) addParts(b *builder) {
	for i := 0; i < len(d.placed); {
		g, n := d.placed[i].g, 1
		if g.Gang && !d.placed[i].alone && !g.single() {
			for i+n < len(d.placed) && d.placed[i+n].g == g && !d.placed[i+n].alone {
				n++
			}
		}
		if !b.add(structs.PlanPart{}, d.placed[i:i+n]) {
			d.report.Refused = fmt.Sprintf("gang %q: %d members do not fit into one log entry of %d bytes", g.Name, n, entryBytesMax)
			d.misses[g.Name] += int64(n)
			d.placed = slices.Delete(d.placed, i, i+n)
			continue
		}
		i += n
	}
}

// single reports whether each placement of a gang is a separate part: the gang continues while some members move.
// Members that are missing for its minimum are always placed together.
func (g *groupWork) single() bool {
	missing := slices.ContainsFunc(g.Wants, func(w reconcile.Want) bool { return !w.Stays })
	return !missing && g.Tg.Continues() && slices.ContainsFunc(g.Staying, func(a *structs.Allocation) bool {
		return !slices.ContainsFunc(g.Wants, func(w reconcile.Want) bool { return w.Prev == a })
	})
}

func (d *decision) newEntry() *structs.PlanEntry {
	e := &structs.PlanEntry{Namespace: d.load.Key.Namespace, JobID: d.load.Key.ID, EvalID: d.eval.ID, SnapshotIndex: d.in.View.Index(), LinkNext: true,
		Job: d.load.Job, Decided: d.in.Now}
	if d.load.Job != nil {
		e.JobVersion, e.JobCreate = d.load.Job.Version, d.load.Job.CreateIndex
		if q := d.in.Queues.Queue(d.load.Job.QueueName()); q != nil {
			e.QueueEpoch = q.Epoch
		}
	}
	return e
}

// builder fills entries with parts, and starts another entry when one is full.
type builder struct {
	d      *decision
	entry  *structs.PlanEntry
	nodes  map[structs.NodeID]int
	groups map[structs.GroupName]int
	bytes  int
	done   []*structs.PlanEntry
}

// add appends a part with the given placements. It refuses a part that is too large for any entry.
func (b *builder) add(p structs.PlanPart, placed []placement) bool {
	size := 100*len(p.Stops) + 20*len(p.Updates)
	for i := range placed {
		size += placeBytes + evictBytes*len(placed[i].Evict)
		if w := placed[i].want; w.Stop != nil {
			size += 100
		}
		if placed[i].g.Gang {
			size += rosterBytes
		}
		size += 60 * len(placed[i].want.Resched)
		if r := placed[i].At.Held.Rare; r != nil {
			size += grantBytes*len(r.Grants) + portBytes*len(r.Ports) + 4*len(r.Cores) + 20*len(r.Waits)
		}
	}
	if size > entryBytesMax {
		return false
	}
	if b.bytes+size > entryBytesMax {
		b.flush()
		b.entry = b.d.newEntry()
		clear(b.nodes)
		clear(b.groups)
		b.bytes = 0
	}
	b.bytes += size
	for i := range placed {
		p.Places = append(p.Places, b.placeOf(&placed[i]))
		if st := placed[i].want.Stop; st != nil {
			p.Stops = append(p.Stops, *st)
		}
		for _, st := range placed[i].Evict {
			if !slices.ContainsFunc(p.Stops, func(o structs.PlanStop) bool { return o.ID == st.ID }) {
				p.Stops = append(p.Stops, st)
			}
		}
	}
	b.entry.Parts = append(b.entry.Parts, p)
	return true
}

// flush ends the current entry.
func (b *builder) flush() { b.done = append(b.done, b.entry) }

func (b *builder) placeOf(pl *placement) structs.PlanPlace {
	node, ok := b.nodes[pl.At.Node.ID]
	if !ok {
		node = len(b.entry.Nodes)
		b.entry.Nodes = append(b.entry.Nodes, structs.PlanNode{ID: pl.At.Node.ID, Epoch: pl.At.Node.Epoch})
		b.nodes[pl.At.Node.ID] = node
	}
	group, ok := b.groups[pl.g.Name]
	if !ok {
		group = len(b.entry.Groups)
		b.entry.Groups = append(b.entry.Groups, pl.g.Name)
		b.entry.Asks = append(b.entry.Asks, pl.g.Ask.Need)
		b.groups[pl.g.Name] = group
	}
	out := structs.PlanPlace{Group: group, Node: node, Index: pl.want.Index, Resched: pl.want.Resched, Expect: b.d.load.Expect}
	if pl.want.Prev != nil {
		out.Previous = pl.want.Prev.ID
	}
	b.d.work.Restart(&out, pl.want)
	if r := pl.At.Held.Rare; r != nil {
		out.Grants, out.Ports, out.Cores, out.WaitsOn = r.Grants, r.Ports, r.Cores, r.Waits
	}
	return out
}

// groupReports makes a report for every group that wanted places, by name.
func (d *decision) groupReports() {
	for _, g := range d.groups {
		d.report.Updates = append(d.report.Updates, g.Counts)
		if g.Refused != nil && len(g.Wants) > 0 {
			d.report.Groups = append(d.report.Groups, g.refusal())
			d.report.Failed = true
			continue
		}
		if g.search == nil && g.deferredExpansion > 0 {
			g.search = search.New(g.Ask, d.w, d.policy, 0)
		}
		if g.search == nil {
			continue
		}
		d.misses[g.Name] += g.deferredExpansion + g.unplacedExpansion + g.standbysMissing
		miss := d.misses[g.Name]
		wanted := max(int64(len(g.Wants)+len(g.Expansion))+g.Missed+g.standbysPlaced+g.standbysMissing, miss)
		if len(g.Expansion) > 0 && g.deferredExpansion+g.unplacedExpansion+g.standbysMissing == 0 && miss > 0 { // its own minimum waits: there is no growth
			wanted = max(int64(len(g.Wants)), miss)
		}
		r := g.search.Report(wanted, wanted-miss)
		r.Group = g.Name
		d.gangReport(g, r)
		if g.note != nil && r.Placed < r.Wanted {
			r.Refusals = append(r.Refusals, *g.note)
			if g.note.Code == structs.ReasonRateLimit {
				r.Code = g.note.Code // others would make room, but too many already did
			}
		}
		if g.over != nil && miss > 0 {
			r.Code, r.Refusals = g.over.Code, append([]structs.Refusal{*g.over}, r.Refusals...)
		}
		if d.report.Refused != "" {
			r.Code = structs.ReasonGang
		}
		if miss > 0 && d.reserved != nil {
			// A workload with a reservation is decided in every pass, so that later workloads know when the reservation
			// begins.
			r.Refusals = append(r.Refusals, structs.Refusal{Code: structs.ReasonReservation, Obstacle: structs.Obstacle{Dimension: structs.DimensionOwnReservation, Subject: clock(d.reserved.Start)}, CuredBy: structs.EventNone})
		}
		d.report.Groups = append(d.report.Groups, r)
		d.report.Failed = d.report.Failed || miss > 0
	}
	slices.SortFunc(d.report.Groups, func(a, b *structs.GroupReport) int { return cmp.Compare(a.Group, b.Group) })
	slices.SortFunc(d.report.Updates, func(a, b reconcile.DesiredUpdates) int { return cmp.Compare(a.Group, b.Group) })
}
