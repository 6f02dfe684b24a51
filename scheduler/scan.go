package scheduler

import (
	"math/bits"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// scan is the search for places of one group: one look at every node, then a heap from which places are taken.
type scan struct {
	ask     *ask
	w       *whatIf
	p       Policy
	weights Weights
	first   int32 // row from which ties are taken

	verdicts []*verdict // by class number; nil: not judged yet
	slab     []verdict  // room for them
	list     []*verdict // in the order they were made
	refusals []refusal
	amounts  [dims]struct{ nodes, short int64 }
	looked   int64

	spreads      []*spreadState
	spreadWeight int64
	cells        []cell
	cellIndex    map[[16]byte][]int32
	turn         []int32 // cells with candidates, a heap by their best

	props     []*propState
	onRow     []int32     // allocations of this group per row; nil while there are none
	jobRow    []int32     // allocations of the whole job per row, for distinct_hosts; nil unless asked for
	parked    []candidate // refused for distinctness only; may come back when an allocation leaves
	scores    []structs.NodeScore
	use       Use // what fit was asked about last
	useScore  int64
	useKnown  bool
	why       shortageOf // of the last rate that gave rateShort
	built     bool
	surveyed  bool // the nodes were counted without being rated
	counts    bool // the policy wants Use.Allocs and Use.GPUs
	unplaced  int64
	weightSum int64
	picker    picker
	gpus      gpuScan
	sees      bool           // the policy wants Use.GPU
	learns    bool           // the policy wants Use.Past
	lots      bool           // the policy draws lots for GPUs
	lot       uint64         // of this decision
	offGPUs   bool           // nodes without GPUs are better for this ask
	penalties map[int32]bool // rows where this very allocation failed before

	books *books          // promises to keep; nil: none
	whose *Workload       // whose group it is, for the books
	until structs.LogTime // when an allocation placed now is expected to hold no more
	work  heldWork        // of what is placed

	// Of gangs: see gang.go.
	places  *level               // with within: only nodes of these places are looked at; nil: all
	within  []int32              // places of the level
	ban     []structs.NodeID     // nodes that are out of the question
	found   int64                // members that found a place before one did not
	lacks   string               // the level of which no place has room for all, though the cluster has
	vain    bool                 // nothing more is looked for: the report stays as it is
	told    *structs.GroupReport // the last one
	lacksAt string               // its place with the most room
}

// propState counts allocations by the value of a distinct property.
type propState struct {
	*valueTable
	have map[int32]int64
}

func newScan(a *ask, w *whatIf, p Policy, first int) *scan {
	s := &scan{ask: a, w: w, p: p, weights: p.Weights(), first: int32(first), verdicts: make([]*verdict, len(w.v.classes.num))}
	if len(a.spreads) > 0 {
		s.cellIndex = make(map[[16]byte][]int32)
	}
	for i := range a.spreads {
		s.spreads = append(s.spreads, newSpreadState(&a.spreads[i]))
		s.spreadWeight += a.spreads[i].weight
	}
	for range a.distinct {
		s.props = append(s.props, &propState{valueTable: newValueTable(), have: make(map[int32]int64)})
	}
	if a.distinctHostsJob || a.distinctHostsGroup {
		s.jobRow = make([]int32, w.v.rows)
	}
	if len(a.spreads) == 0 {
		s.cells = []cell{{pos: -1}}
	}
	if r, ok := p.(GPUPolicy); ok {
		s.gpus.policy = r
		if len(a.devices) > 0 && a.job.Type != structs.JobService {
			s.weights.Load = 0 // work is packed; services keep away from their like
		}
		if len(a.devices) > 0 {
			s.weights.GPU = 0
		}
	}
	s.wishesOf(p)
	if s.sees || s.lots {
		s.lot = lotOf(w.seed, a.job.Key())
	}
	if c, ok := p.(interface{ CountsAllocs() bool }); ok {
		s.counts = c.CountsAllocs()
	}
	s.weightSum = s.weights.Fit + s.weights.Load
	if s.offGPUs {
		s.weightSum += s.weights.GPU
	}
	if a.shares && a.gpuFit != structs.GPUFitFirst && a.gpuFit != structs.GPUFitNext {
		s.weightSum += s.weights.GPU
	}
	if a.wishTotal > 0 {
		s.weightSum += s.weights.Affinity
	}
	if s.likes() {
		s.weightSum += s.weights.Affinity
	}
	if a.inside != "" {
		s.weightSum += s.weights.Affinity
	}
	if s.spreadWeight > 0 {
		s.weightSum += s.weights.Spread
	}
	return s
}

func (s *scan) likes() bool {
	return slices.ContainsFunc(s.ask.devices, func(d deviceAsk) bool {
		return slices.ContainsFunc(d.alts, func(a deviceAlt) bool { return a.wishTotal > 0 })
	})
}

// count tells the scan of an allocation of the job that stays (n = 1) or goes (n = -1). group: it is of this group.
func (s *scan) count(row int, group bool, n int32) {
	node := s.node(row)
	if group {
		if s.onRow == nil {
			s.onRow = make([]int32, s.w.v.rows)
		}
		s.onRow[row] += n
		if len(s.spreads) > 0 {
			values := s.spreadValues(s.verdict(row), node)
			s.spreadTook(values, int64(n))
		}
	}
	if s.jobRow != nil && (group || s.ask.distinctHostsJob) {
		s.jobRow[row] += n
	}
	for i := range s.ask.distinct {
		if d := &s.ask.distinct[i]; group || d.job {
			s.props[i].have[s.props[i].value(resolve(d.target, node))] += int64(n)
		}
	}
	if n < 0 && len(s.parked) > 0 {
		again := s.parked
		s.parked = nil
		for _, c := range again {
			s.offer(int(c.row), false)
		}
	}
}

func (s *scan) node(row int) *structs.Node {
	c, i := s.w.v.at(row)
	return c.nodes[i]
}

func (s *scan) verdict(row int) *verdict {
	c, i := s.w.v.at(row)
	return s.classVerdict(&c.classes[c.class[i]])
}

func (s *scan) classVerdict(nc *nodeClass) *verdict {
	v := s.verdicts[nc.num]
	if v == nil {
		if len(s.slab) == 0 {
			s.slab = make([]verdict, min(64, max(1, len(s.verdicts)-len(s.list))))
		}
		v, s.slab = &s.slab[0], s.slab[1:]
		v.hash = nc.hash
		s.judge(v, nc.node)
		s.verdicts[nc.num] = v
		s.list = append(s.list, v)
	}
	return v
}

func (s *scan) spreadValues(v *verdict, n *structs.Node) []int32 {
	out := make([]int32, len(s.spreads))
	for i, sp := range s.spreads {
		if i < len(v.spread) && v.spread[i] >= 0 {
			out[i] = v.spread[i]
		} else {
			out[i] = sp.value(resolve(s.ask.spreads[i].target, n))
		}
		sp.grow()
	}
	return out
}

// build looks at every node once.
func (s *scan) build() {
	s.built = true
	view := s.w.v
	if len(s.cells) == 1 {
		s.cells[0].heap = make([]candidate, 0, view.rows)
	}
	table := make([]*verdict, 0, 8)
	for ci, c := range view.chunks {
		table = table[:0]
		for k := range c.classes {
			table = append(table, s.classVerdict(&c.classes[k]))
		}
		for i := range c.ids {
			v := table[c.class[i]]
			if v.outside {
				continue
			}
			v.inPool++
			if v.far {
				continue
			}
			if !c.ready[i] {
				s.notReady(c.nodes[i])
				continue
			}
			v.available++
			s.looked++
			if v.refused > 0 {
				v.filtered++
				s.refusals[v.refused-1].nodes++
				continue
			}
			row := view.starts[ci] + i
			if s.elsewhere(row) {
				continue
			}
			if s.banned(c.nodes[i].ID) {
				s.refuse(refusal{code: structs.ReasonNodeIneligible, what: dimBarred, cure: structs.EventNodeJoined})
				continue
			}
			o := occupancy{c.used[i], c.hold[i]}
			if t := s.w.touched[row]; t != 0 {
				o = s.w.states[t-1]
			}
			base := s.rate(c, i, row, v, &o, true)
			if base < 0 {
				if base == rateShort {
					s.exhausted(v, s.why)
				}
				continue
			}
			at := v.cell
			if at < 0 {
				at = s.cellOf(s.spreadValues(v, c.nodes[i]))
			}
			x := &s.cells[at]
			x.heap = append(x.heap, candidate{base, int32(row)})
		}
	}
	for i := range s.cells {
		x := &s.cells[i]
		if len(x.heap) == 0 {
			continue
		}
		s.heapify(x.heap)
		x.pos = int32(len(s.turn))
		s.turn = append(s.turn, int32(i))
		for k, v := range x.values {
			s.spreads[k].open[v]++
		}
	}
	for _, sp := range s.spreads {
		sp.grow()
		sp.lowest()
	}
	s.rebonus()
}

// banned reports whether a node is out of the question for this very work.
func (s *scan) banned(id structs.NodeID) bool { return len(s.ban) > 0 && slices.Contains(s.ban, id) }

// elsewhere reports whether a row lies outside the places that the search is limited to.
func (s *scan) elsewhere(row int) bool {
	return s.places != nil && !slices.Contains(s.within, s.places.of[row])
}

// What rate answers instead of a sum.
const (
	rateShort   = -1 // something is short: see scan.why
	rateRefused = -2 // a condition unique to the node refused it, and was counted
)

// rate tells whether the group fits on a node by amounts, static ports and devices, and the weighted sum of the terms
// other than spread.
func (s *scan) rate(c *chunk, i, row int, v *verdict, o *occupancy, count bool) int64 {
	a := s.ask
	after := o.used.Add(a.need)
	total := &c.total[i]
	mhz := c.mhz[i]
	if after.CPU+after.Cores*mhz > total.CPU || after.MemoryMiB > total.MemoryMiB || after.DiskMiB > total.DiskMiB || after.Cores > total.Cores {
		if x := fitsAmounts(*total, o.used, after, mhz); x.dim != dimNone {
			s.why = shortageOf{shortage: x}
			return rateShort
		}
	}
	seen := o // with what is promised, for what is chosen by its number and not by its amount
	if s.books.keeps() {
		merged, x := s.kept(c, i, row, o)
		if x.dim != dimNone {
			s.why = x
			return rateShort
		}
		if merged != nil {
			seen = &occupancy{o.used, merged}
		}
	}
	wishes := v.wishes
	if len(a.perNode)+len(a.wishPerNode) > 0 {
		for k := range a.perNode {
			if !a.perNode[k].holds(c.nodes[i]) {
				if count {
					v.filtered++
					s.refuse(refusal{code: structs.ReasonConstraint, what: a.perNode[k].String(), cure: structs.EventNodeJoined})
				}
				return rateRefused
			}
		}
		for k := range a.wishPerNode {
			wishes += a.wishPerNode[k].fulfilled(a.wishPerNode[k].cond.holds(c.nodes[i]))
		}
	}
	for k := range a.static {
		n := c.nodes[i]
		p := &a.static[k]
		if net := networkByAlias(n, p.HostNetwork); !p.IgnoreCollision && (portTaken(n, seen.hold, net, p.Value) || slices.Contains(n.Reserved.Ports, p.Value)) {
			s.why = shortageOf{shortage: shortage{dimPorts, 1}, what: "port " + itoa(p.Value)}
			if !portTaken(n, o.hold, net, p.Value) && !slices.Contains(n.Reserved.Ports, p.Value) {
				s.why.promisedTo(s.books.promisee(row))
			}
			return rateShort
		}
	}
	var devices, inUse int64
	base := int64(-1)
	if s.gpus.policy != nil && v.gpus && a.isSimple {
		score, ok := s.rateSimple(c, i, row, v, seen)
		if !ok {
			s.blame(c, i, row, v, o, seen)
			return rateShort
		}
		base = s.weights.Fit * score
	} else if len(a.devices) > 0 {
		var x shortageOf
		if devices, inUse, x = s.devices(c, i, seen, v); x.dim != dimNone {
			s.why = x
			s.blame(c, i, row, v, o, seen)
			return rateShort
		}
	}
	after.CPU += after.Cores * mhz
	switch {
	case base >= 0:
	case s.gpus.policy != nil && v.gpus:
		base = s.weights.Fit * s.rateGPUs(c, i, v, seen)
	default:
		if s.sees {
			s.use.GPU, s.use.Ask, s.useKnown = s.gpuUse(c, i, v, seen), a.need, false
		}
		base = s.weights.Fit * s.fit(total, &after, devices, inUse, c.nodes[i], o)
	}
	if !v.shunned {
		base += shunStep // nodes with a taint come after all others, save for alternatives
	}
	if s.offGPUs && !v.gpus {
		base += s.weights.GPU * Micro
	}
	if s.weights.Load > 0 {
		base += s.weights.Load * s.load(row)
	}
	if a.wishTotal > 0 {
		base += s.weights.Affinity * (wishes * Micro / a.wishTotal)
	}
	if v.liked > 0 {
		base += s.weights.Affinity * v.liked
	}
	if len(a.devices) > 0 && !a.plainDevices && (s.weights.GPU > 0 || a.altsMax > 0) {
		base += s.weights.GPU*s.gpuFull() + (a.altsMax-s.picker.rank)*altStep
		if a.inside != "" {
			base += s.weights.Affinity * s.close()
		}
	}
	return base
}

// close is whether the devices chosen last lie as close to each other as the group wishes.
func (s *scan) close() int64 {
	if s.picker.split {
		return 0
	}
	return Micro
}

// shunStep is what a node is ahead by that has no taint the job should keep away from: more than all terms, so that such a
// node is taken only when there is no other.
const shunStep = 1_000 * Micro

// altStep is what one step towards the alternatives liked best is worth: more than all terms together, so that a later
// alternative is taken only where no node can give an earlier one.
const altStep = 10_000 * Micro

// gpuFull is how well the shares chosen last fit into their GPUs: full ones are best, or empty ones with worst fit.
func (s *scan) gpuFull() int64 {
	switch {
	case s.picker.parts == 0 || s.ask.gpuFit == structs.GPUFitFirst || s.ask.gpuFit == structs.GPUFitNext:
		return 0
	case s.ask.gpuFit == structs.GPUFitWorst:
		return Micro - min(s.picker.full, Micro)
	}
	return min(s.picker.full, Micro)
}

// fit asks the policy, and remembers the last answer: nodes that lie side by side are often in equal use.
func (s *scan) fit(total, used *structs.Vector, devices, inUse int64, n *structs.Node, o *occupancy) int64 {
	u := &s.use
	var allocs, gpus int64
	if s.counts {
		allocs, gpus = int64(len(o.hold.list())), countGPUs(n)
	}
	past := Past{}
	if s.learns {
		past = s.w.past[n.ID]
	}
	if s.useKnown && u.Past == past && u.Used.MemoryMiB == used.MemoryMiB && u.Used.CPU == used.CPU && u.Total == *total && u.Used == *used &&
		u.Devices == devices && u.DevicesInUse == inUse && u.Allocs == allocs && u.GPUs == gpus {
		return s.useScore
	}
	u.Total, u.Used, u.Devices, u.DevicesInUse, u.Allocs, u.GPUs = *total, *used, devices, inUse, allocs, gpus
	u.Past = past
	s.useScore, s.useKnown = s.p.Fit(u), true
	return s.useScore
}

func countGPUs(n *structs.Node) int64 {
	total := 0
	for i := range n.Resources.Devices {
		if n.Resources.Devices[i].Type == "gpu" {
			total += len(n.Resources.Devices[i].Instances)
		}
	}
	return int64(total)
}

// load is 1 less the share of the group's allocations that the node has already.
func (s *scan) load(row int) int64 {
	if s.onRow == nil || s.onRow[row] == 0 {
		return Micro
	}
	return Micro - min(Micro, int64(s.onRow[row])*Micro/int64(max(s.ask.tg.Count, 1)))
}

// devices counts the instances that may serve the ask and tells whether enough are free. When shares are asked for it
// counts MiB of GPU memory instead.
func (s *scan) devices(c *chunk, i int, o *occupancy, v *verdict) (total, used int64, _ shortageOf) {
	a, n := s.ask, c.nodes[i]
	hold := o.hold
	if a.plainDevices && len(c.sick[i]) == 0 {
		if total, used, short, ok := s.plainDevices(n, hold, v); ok {
			return total, used, short
		}
	}
	if !a.plainDevices {
		s.choose(c, i, v, o)
		free := hold
		if free == nil {
			free = &emptyHolding
		}
		if x := s.picker.pickDevices(a, n, free, v.choices); x.dim != dimNone {
			return 0, 0, x
		}
		if a.shares {
			total, used = s.gpuMemory(n, free, v)
			return total, min(used, total), shortageOf{}
		}
	}
	var busy bitset
	if hold != nil {
		busy = hold.devs
	}
	var seen bitset
	var open, sick, best, bestSick int64
	d := &a.devices[0]
	for k := range a.devices {
		for _, c := range v.choices[k] {
			g := &n.Resources.Devices[c.group]
			open, sick = 0, 0
			for j := range g.Instances {
				pos := c.first + j
				inUse := pos>>6 < len(busy) && busy[pos>>6]&(1<<(pos&63)) != 0
				if k == 0 {
					switch {
					case inUse:
					case g.Instances[j].Healthy:
						open++
					default:
						sick++
					}
				}
				if !a.plainDevices {
					if seen.has(pos) {
						continue
					}
					seen.set(pos)
				}
				total++
				if inUse {
					used++
				}
			}
			if k == 0 {
				if open >= best {
					best, bestSick = open, sick
				}
			}
		}
		if a.plainDevices {
			used += d.alts[0].count
		}
	}
	if !a.plainDevices {
		used += int64(len(s.picker.picks))
	} else if alt := &d.alts[0]; best < alt.count {
		return 0, 0, shortageOf{shortage: shortage{dimDevices, alt.count - best}, what: alt.label(), unhealthy: best+bestSick >= alt.count}
	}
	return total, min(used, total), shortageOf{}
}

// plainDevices is devices for one request for whole devices on a node whose devices are all healthy, counted by words of
// 64; ok is false for a node with more.
func (s *scan) plainDevices(n *structs.Node, hold *holding, v *verdict) (total, used int64, _ shortageOf, ok bool) {
	var busy uint64
	if hold != nil && len(hold.devs) > 0 {
		busy = hold.devs[0]
	}
	best := int64(0)
	alt := &s.ask.devices[0].alts[0]
	for _, c := range v.choices[0] {
		k := len(n.Resources.Devices[c.group].Instances)
		if c.first+k > 64 {
			return 0, 0, shortageOf{}, false
		}
		inUse := bits.OnesCount64(busy >> c.first & (1<<k - 1))
		best = max(best, int64(k-inUse))
		total, used = total+int64(k), used+int64(inUse)
	}
	if best < alt.count {
		return 0, 0, shortageOf{shortage: shortage{dimDevices, alt.count - best}, what: s.ask.label}, true
	}
	return total, min(used+alt.count, total), shortageOf{}, true
}

var emptyHolding holding

// gpuMemory is how much memory the GPUs that may serve the ask have, and how much of it is in use after the picks.
func (s *scan) gpuMemory(n *structs.Node, free *holding, v *verdict) (total, used int64) {
	var seen bitset
	reserve := n.GPUReserveMiB()
	for k := range s.ask.devices {
		list := v.choices[k]
		for _, c := range list {
			g := &n.Resources.Devices[c.group]
			for j := range g.Instances {
				pos := c.first + j
				capacity := g.Instances[j].MemoryMiB - reserve
				if capacity <= 0 || seen.has(pos) {
					continue
				}
				seen.set(pos)
				total += capacity
				if x := s.picker.busy(free, pos); x.whole { // what was picked counts as in use
					used += capacity
				} else {
					used += x.mem
				}
			}
		}
	}
	return total, used
}

// offer puts a node (again) among the candidates, if the group fits there.
func (s *scan) offer(row int, count bool) {
	if !s.built {
		return
	}
	c, i := s.w.v.at(row)
	v := s.classVerdict(&c.classes[c.class[i]])
	if v.outside || v.far || v.refused > 0 || !c.ready[i] || s.elsewhere(row) || s.banned(c.nodes[i].ID) {
		return
	}
	o := s.w.get(row)
	base := s.rate(c, i, row, v, &o, count)
	if base < 0 {
		return
	}
	at := v.cell
	if at < 0 {
		at = s.cellOf(s.spreadValues(v, c.nodes[i]))
	}
	s.push(at, candidate{base, int32(row)})
}

// spot is a place found.
type spot struct {
	row  int
	node *structs.Node
	held *held
}

// place finds the best node for one more allocation and debits it there. avoid are rows that should be taken only when
// nothing as good is left; prefer is a row to take if at all possible, or -1.
func (s *scan) place(id structs.AllocID, avoid []int, prefer int) (spot, bool) {
	if !s.built {
		s.build()
	}
	if prefer >= 0 {
		if sp, ok := s.placeOn(prefer, id, nil); ok {
			return sp, true
		}
	}
	var aside []candidate // of avoided rows
	var asideCells []int32
	defer func() {
		for i, c := range aside {
			s.push(asideCells[i], c)
		}
	}()
	penalty := max(s.weights.Load, DefaultWeights.Load) * Micro
	for {
		// The best of the avoided ones competes with its penalty.
		bestAside := -1
		for i := range aside {
			if bestAside < 0 || s.better(aside[i], aside[bestAside]) {
				bestAside = i
			}
		}
		if len(s.turn) == 0 {
			if bestAside < 0 {
				s.unplaced++
				return spot{}, false
			}
			c, at := aside[bestAside], asideCells[bestAside]
			aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
			if sp, ok := s.placeOn(int(c.row), id, nil); ok {
				return sp, true
			}
			_ = at
			continue
		}
		at := s.turn[0]
		x := &s.cells[at]
		c := x.heap[0]
		if slices.Contains(avoid, int(c.row)) && !slices.ContainsFunc(aside, func(o candidate) bool { return o.row == c.row }) {
			aside, asideCells = append(aside, s.pop(at)), append(asideCells, at)
			continue
		}
		if bestAside >= 0 && aside[bestAside].base+s.cells[asideCells[bestAside]].bonus-penalty > c.base+x.bonus {
			if sp, ok := s.placeOn(int(aside[bestAside].row), id, nil); ok {
				aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
				return sp, true
			}
			aside, asideCells = slices.Delete(aside, bestAside, bestAside+1), slices.Delete(asideCells, bestAside, bestAside+1)
			continue
		}
		row := int(c.row)
		ch, i := s.w.v.at(row)
		n := ch.nodes[i]
		v := s.classVerdict(&ch.classes[ch.class[i]])
		if why, bad := s.indistinct(row, v, n); bad {
			s.parked = append(s.parked, s.pop(at))
			if !slices.ContainsFunc(s.parked[:len(s.parked)-1], func(o candidate) bool { return o.row == c.row }) {
				v.filtered++
				s.refuse(why)
			}
			continue
		}
		o := s.w.get(row)
		base := s.rate(ch, i, row, v, &o, false)
		if base >= 0 && base != c.base {
			x.heap[0].base = base // the node changed since it was rated
			s.siftDown(x.heap, 0)
			s.fixTurn(int(x.pos))
			continue
		}
		if base == rateRefused {
			s.pop(at)
			continue
		}
		h, after, short := s.equip(ch, i, row, v, o, id, base)
		if short.dim != dimNone {
			s.pop(at)
			s.exhausted(v, short)
			continue
		}
		if s.scores == nil {
			s.remember(at)
		}
		s.w.set(row, after)
		s.took(row, v, n)
		// Only the node just used is rated again.
		base = s.rate(ch, i, row, v, &after, false)
		x = &s.cells[at]
		if base < 0 {
			s.pop(at)
			s.exhausted(v, s.why)
		} else {
			x.heap[0].base = base
			s.siftDown(x.heap, 0)
			s.fixTurn(int(x.pos))
		}
		return spot{row, n, h}, true
	}
}

// took books a placement of this group on a row in everything but the heap.
func (s *scan) took(row int, v *verdict, n *structs.Node) {
	if s.onRow == nil {
		s.onRow = make([]int32, s.w.v.rows)
	}
	s.onRow[row]++
	if s.jobRow != nil {
		s.jobRow[row]++
	}
	for i := range s.ask.distinct {
		s.props[i].have[s.propValue(i, v, n)]++
	}
	if len(s.spreads) > 0 {
		s.spreadTook(s.spreadValues(v, n), 1)
	}
}

func (s *scan) propValue(i int, v *verdict, n *structs.Node) int32 {
	if i < len(v.props) && v.props[i] >= 0 {
		return v.props[i]
	}
	return s.props[i].value(resolve(s.ask.distinct[i].target, n))
}

// indistinct tells whether a distinct_hosts or distinct_property constraint forbids one more allocation on a node.
func (s *scan) indistinct(row int, v *verdict, n *structs.Node) (refusal, bool) {
	if s.jobRow != nil && s.jobRow[row] > 0 {
		return refusal{code: structs.ReasonConstraint, what: structs.OperandDistinctHosts, cure: structs.EventAllocStopped}, true
	}
	for i := range s.ask.distinct {
		val := s.propValue(i, v, n)
		if val == 0 || s.props[i].have[val] >= s.ask.distinct[i].limit {
			return refusal{code: structs.ReasonConstraint, what: s.ask.distinct[i].cond.String(), cure: structs.EventAllocStopped}, true
		}
	}
	return refusal{}, false
}

// placeOn places on one given node; yields are allocations there that the new one will wait for.
func (s *scan) placeOn(row int, id structs.AllocID, yields []structs.AllocID) (spot, bool) {
	c, i := s.w.v.at(row)
	n := c.nodes[i]
	v := s.classVerdict(&c.classes[c.class[i]])
	if v.outside || v.far || v.refused > 0 || !c.ready[i] || s.elsewhere(row) || s.banned(n.ID) {
		return spot{}, false
	}
	for k := range s.ask.perNode {
		if !s.ask.perNode[k].holds(n) {
			return spot{}, false
		}
	}
	if _, bad := s.indistinct(row, v, n); bad {
		return spot{}, false
	}
	o := s.w.get(row)
	seen := o
	if len(yields) == 0 { // what takes over another's place takes nothing that is promised
		var short shortageOf
		if seen, short = s.beside(c, i, row, o); short.dim != dimNone {
			return spot{}, false
		}
	}
	s.choose(c, i, v, &seen)
	h, short := s.ask.equip(n, seen, v.choices, id, yields, &s.picker)
	if short.dim != dimNone {
		return spot{}, false
	}
	h.work = s.work
	after, x := fits(n, c.total[i], c.mhz[i], o, h)
	if x.dim != dimNone {
		return spot{}, false
	}
	s.w.set(row, after)
	s.took(row, v, n)
	s.offer(row, false)
	return spot{row, n, h}, true
}

// equip gives an allocation what it asks for on a node that was rated, and checks that all of it fits.
func (s *scan) equip(c *chunk, i, row int, v *verdict, o occupancy, id structs.AllocID, base int64) (*held, occupancy, shortageOf) {
	if base == rateShort {
		return nil, o, s.why
	}
	n := c.nodes[i]
	seen, short := s.beside(c, i, row, o)
	if short.dim != dimNone {
		return nil, o, short
	}
	s.choose(c, i, v, &seen)
	h, short := s.ask.equip(n, seen, v.choices, id, nil, &s.picker)
	if short.dim != dimNone {
		if seen.hold != o.hold {
			s.choose(c, i, v, &o)
			if _, alone := s.ask.equip(n, o, v.choices, id, nil, &s.picker); alone.dim == dimNone {
				short.promisedTo(s.books.promisee(row))
			}
		}
		return nil, o, short
	}
	h.work = s.work
	after, x := fits(n, c.total[i], c.mhz[i], o, h)
	return h, after, shortageOf{shortage: x}
}

// exhaustedAll reports whether no candidate is left.
func (s *scan) exhaustedAll() bool { return s.built && len(s.turn) == 0 && len(s.parked) == 0 }
