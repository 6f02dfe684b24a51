package search

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Search finds places for one group: it looks at every node once and then takes places from a heap.
type Search struct {
	Ask   *match.Ask
	w     *Pass
	first int32  // row from which ties are taken
	peers *peers // nil: nothing depends on where other jobs are

	built    bool
	surveyed bool // the nodes were counted without being rated

	classes
	tally
	rating
	spreading
	spacing
	deviceChoice
	Keeping
	Gang
}

// classes are what is known of the classes of nodes.
type classes struct {
	verdicts []*Verdict // by class number; nil: not judged yet
	slab     []Verdict  // room for them
	list     []*Verdict // in the order they were made
}

// tally counts the nodes that were refused, for the report.
type tally struct {
	refusals    []match.Refusal
	amounts     [structs.NodeDimensions]struct{ nodes, short int64 }
	Looked      int64
	NoPower     bool // a row was refused because of its pool's power budget
	GivenBack   bool // places were found and given back, because the job is all_at_once and not all of it fits
	scores      []structs.NodeScore
	unplaced    int64
	why         match.ShortageOf // of the last rate that returned rateShort
	lastShort   match.ShortageOf // the last shortage that exhausted counted
	lastRefusal int              // 1 + the place of its counter; 0: none yet
}

// rating is what the policy needs and how its answers are weighted.
type rating struct {
	p         Policy
	weights   Weights
	extra     struct{ locality, cost int64 } // weights of terms that no policy has; 0: not counted
	weightSum int64
	use       Use // the argument of the last Fit
	useScore  int64
	useKnown  bool
	counts    bool   // the policy wants Use.Allocs and Use.GPUs
	sees      bool   // the policy wants Use.GPU
	learns    bool   // the policy wants Use.Past
	lots      bool   // the policy draws lots for GPUs
	lot       uint64 // the lots of this decision
	offGPUs   bool   // nodes without GPUs are better for this ask
}

// spreading is the candidates, by cells of equal spread values.
type spreading struct {
	spreads      []*spreadState
	spreadWeight int64
	cells        []cell
	cellIndex    map[[16]byte][]int32
	turn         []int32 // cells with candidates, a heap by their best
}

// spacing is where the group and its job run already.
type spacing struct {
	onRow  []int32 // allocations of this group per row; nil while there are none
	jobRow []int32 // allocations of the whole job per row, for distinct_hosts; nil unless needed
	props  []*propState
	parked []candidate // refused for distinctness only; may come back when an allocation leaves
}

// deviceChoice is the choice of devices on a node.
type deviceChoice struct {
	Picker   match.Picker
	choosing choosing // see choose
	gpus     gpuSearch
}

// Keeping is what a search keeps free for others.
type Keeping struct {
	Reserved *Reservations   // nil: nothing is reserved
	Until    structs.LogTime // when an allocation placed now is expected to hold no more
	Work     model.HeldWork  // of what is placed
}

// Gang is what limits a search for the members of a gang, and what it found.
type Gang struct {
	Places  *model.Level         // with Within: only nodes of these places are looked at; nil: all
	Within  []int32              // places of the level
	Ban     []structs.NodeID     // nodes that must not be used
	Found   int64                // members that found a place before one did not
	Short   string               // the level at which no place has room for all, though the cluster has
	ShortAt string               // its place with the most room
	GaveUp  bool                 // the search is over: the report no longer changes
	told    *structs.GroupReport // the last report
}

// propState counts allocations by the value of a distinct property.
type propState struct {
	*valueTable
	have map[int32]int64
}

// New begins a search for places of an ask; ties are taken from row first on.
func New(a *match.Ask, w *Pass, p Policy, first int) *Search {
	s := &Search{Ask: a, w: w, first: int32(first)}
	s.p, s.weights, s.verdicts = p, p.Weights(), make([]*Verdict, len(w.View.Classes.Num))
	if len(a.Spreads) > 0 {
		s.cellIndex = make(map[[16]byte][]int32)
	}
	for i := range a.Spreads {
		s.spreads = append(s.spreads, newSpreadState(&a.Spreads[i]))
		s.spreadWeight += a.Spreads[i].Weight
	}
	for range a.Distinct {
		s.props = append(s.props, &propState{valueTable: newValueTable(), have: make(map[int32]int64)})
	}
	if a.DistinctHostsJob || a.DistinctHostsGroup {
		s.jobRow = w.Column()
	}
	if len(a.Spreads) == 0 {
		s.cells = []cell{{pos: -1}}
	}
	if r, ok := p.(GPUPolicy); ok {
		s.gpus.policy = r
		if len(a.Devices) > 0 && a.Job.Type != structs.JobService {
			s.weights.Load = 0 // batch work is packed; services avoid nodes with their own group
		}
		if len(a.Devices) > 0 {
			s.weights.GPU = 0
		}
	}
	s.wishesOf(p)
	if s.sees || s.lots {
		s.lot = lotOf(w.Seed, a.Job.Key())
	}
	s.peers = newPeers(a, w)
	s.reweigh()
	s.weightSum = s.weights.Fit + s.weights.Load
	if s.offGPUs {
		s.weightSum += s.weights.GPU
	}
	if a.Shares && a.GpuFit != structs.GPUFitFirst && a.GpuFit != structs.GPUFitNext {
		s.weightSum += s.weights.GPU
	}
	if a.WishTotal > 0 {
		s.weightSum += s.weights.Affinity
	}
	if s.likes() {
		s.weightSum += s.weights.Affinity
	}
	if a.Inside != "" {
		s.weightSum += s.weights.Affinity
	}
	if a.NumaWish {
		s.weightSum += s.weights.Affinity
	}
	if s.spreadWeight > 0 {
		s.weightSum += s.weights.Spread
	}
	if s.peers != nil && s.peers.weight > 0 {
		s.weightSum += s.weights.Affinity
	}
	s.weightSum += s.extra.locality + s.extra.cost
	return s
}

func (s *Search) likes() bool {
	return slices.ContainsFunc(s.Ask.Devices, func(d match.DeviceAsk) bool {
		return slices.ContainsFunc(d.Alts, func(a match.DeviceAlt) bool { return a.WishTotal > 0 })
	})
}

// Count adds an allocation of the job that stays (n = 1) or goes (n = -1). group: it is of this group.
func (s *Search) Count(row int, group bool, n int32) {
	node := s.node(row)
	if group {
		if s.onRow == nil {
			s.onRow = s.w.Column()
		}
		s.onRow[row] += n
		if len(s.spreads) > 0 {
			values := s.spreadValues(s.verdict(row), node)
			s.spreadTook(values, int64(n))
		}
	}
	if s.peers != nil {
		s.peers.took(row, int64(n))
	}
	if s.jobRow != nil && (group || s.Ask.DistinctHostsJob) {
		s.jobRow[row] += n
	}
	for i := range s.Ask.Distinct {
		if d := &s.Ask.Distinct[i]; group || d.Job {
			s.props[i].have[s.props[i].value(match.Resolve(d.Target, node))] += int64(n)
		}
	}
	if n < 0 && len(s.parked) > 0 {
		again := s.parked
		s.parked = nil
		for _, c := range again {
			s.PushRow(int(c.row))
		}
	}
}

func (s *Search) node(row int) *structs.Node {
	c, i := s.w.View.At(row)
	return c.Nodes[i]
}

func (s *Search) verdict(row int) *Verdict {
	c, i := s.w.View.At(row)
	return s.ClassVerdict(&c.Classes[c.Class[i]])
}

// ClassVerdict returns the verdict on a class of nodes.
func (s *Search) ClassVerdict(nc *model.NodeClass) *Verdict {
	v := s.verdicts[nc.Num]
	if v == nil {
		if len(s.slab) == 0 {
			s.slab = make([]Verdict, min(64, max(1, len(s.verdicts)-len(s.list))))
		}
		v, s.slab = &s.slab[0], s.slab[1:]
		v.hash = nc.Hash
		s.judge(v, nc.Node)
		s.verdicts[nc.Num] = v
		s.list = append(s.list, v)
	}
	return v
}

func (s *Search) spreadValues(v *Verdict, n *structs.Node) []int32 {
	out := make([]int32, len(s.spreads))
	for i, sp := range s.spreads {
		if i < len(v.spread) && v.spread[i] >= 0 {
			out[i] = v.spread[i]
		} else {
			out[i] = sp.value(match.Resolve(s.Ask.Spreads[i].Target, n))
		}
		sp.grow()
	}
	return out
}

// build looks at every node once.
func (s *Search) build() {
	s.built = true
	view := s.w.View
	if len(s.cells) == 1 {
		s.cells[0].heap = s.w.heap()
	}
	table := make([]*Verdict, 0, 8)
	known := s.w.ShortfallsOf(s.plainKey(), s.Ask.Job.NodePool)
	for ci, c := range view.Chunks {
		table = table[:0]
		for k := range c.Classes {
			table = append(table, s.ClassVerdict(&c.Classes[k]))
		}
		if known != nil {
			s.buildKnown(known, table, c, view.Starts[ci])
			continue
		}
		for i := range c.IDs {
			v := table[c.Class[i]]
			row := view.Starts[ci] + i
			if !s.counted(c, i, v) || s.Elsewhere(row) {
				continue
			}
			if s.Banned(c.IDs[i]) {
				s.refuse(match.Refused(structs.ReasonNodeIneligible, structs.Obstacle{Dimension: structs.DimensionFailedNode}, structs.EventNodeJoined))
				continue
			}
			o := model.Occupancy{Used: c.Used[i], Hold: c.Hold[i]}
			if t := s.w.Touched[row]; t != 0 {
				o = s.w.States[t-1]
			}
			s.candidateAt(c, i, row, v, &o)
		}
	}
	if known != nil {
		s.countKnown(known)
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

// counted counts a node, and reports whether it is feasible apart from what is held there.
func (s *Search) counted(c *model.Chunk, i int, v *Verdict) bool {
	if !v.Outside && !v.Far && !c.Ready[i] {
		v.inPool++
		s.notReady(c.Nodes[i])
		return false
	}
	return s.countedAll(v, 1)
}

// countedAll is counted for several ready nodes of a class.
func (s *Search) countedAll(v *Verdict, n int64) bool {
	if v.Outside {
		return false
	}
	v.inPool += n
	if v.Far {
		return false
	}
	v.available += n
	s.Looked += n
	if v.Refused > 0 {
		v.filtered += n
		s.refusals[v.Refused-1].Nodes += n
		return false
	}
	return true
}

// candidateAt puts a node among the candidates, or counts its shortage. It returns the result of rate.
func (s *Search) candidateAt(c *model.Chunk, i, row int, v *Verdict, o *model.Occupancy) int64 {
	base := s.rate(c, i, row, v, o, true)
	if base < 0 {
		if base == rateShort {
			s.exhausted(v, s.why)
		}
		return base
	}
	at := v.cell
	if at < 0 {
		at = s.cellOf(s.spreadValues(v, c.Nodes[i]))
	}
	x := &s.cells[at]
	x.heap = append(x.heap, candidate{base, int32(row)})
	return base
}

// Banned reports whether this work must not use a node.
func (s *Search) Banned(id structs.NodeID) bool { return len(s.Ban) > 0 && slices.Contains(s.Ban, id) }

// Elsewhere reports whether a row is outside the places that the search is limited to.
func (s *Search) Elsewhere(row int) bool {
	return s.Places != nil && !slices.Contains(s.Within, s.Places.Of[row])
}

// Done returns the search's scratch memory. The search must not place any more; its report stays available.
func (s *Search) Done() {
	x := s.w.Scratch
	if x == nil {
		return
	}
	x.Keep(s.onRow)
	x.Keep(s.jobRow)
	s.onRow, s.jobRow = nil, nil
	if h := s.w.heaps; h != nil && len(s.cells) == 1 && cap(s.cells[0].heap) >= s.w.View.Rows && len(h.list) < heapsMax {
		h.list = append(h.list, s.cells[0].heap)
		s.cells[0].heap, s.turn = nil, nil
	}
}
