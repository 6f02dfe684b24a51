package match

import (
	"cmp"
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// coreSets is the search for a NUMA node for each run that needs one.
type coreSets struct {
	nodes     []model.NUMANode // with their free cores
	left      []int            // free cores left in each
	runs      []*coreRun       // the largest first
	taken     []int            // into nodes, by run
	tries     int
	short     int // the fewest cores missing from one NUMA node; 0: never too few
	shortfall *coreRun
}

// coreTries limits how many assignments of runs to NUMA nodes are tried with the devices.
const coreTries = 64

func newCoreSets(nodes []model.NUMANode, runs []coreRun, which func(r *coreRun) bool) *coreSets {
	s := &coreSets{nodes: nodes, left: make([]int, len(nodes))}
	for i := range nodes {
		s.left[i] = len(nodes[i].Cores)
	}
	for i := range runs {
		if which(&runs[i]) {
			s.runs = append(s.runs, &runs[i])
		}
	}
	slices.SortStableFunc(s.runs, func(x, y *coreRun) int { return len(y.at) - len(x.at) })
	s.taken = make([]int, len(s.runs))
	return s
}

// place assigns NUMA nodes to the runs from k on, until try accepts an assignment.
func (s *coreSets) place(k int, try func() bool) bool {
	if k == len(s.runs) {
		s.tries++
		return try()
	}
	r := s.runs[k]
	fits := order(s.nodes, s.left, r)
	if len(fits) == 0 {
		most := 0
		for i := range s.nodes {
			if s.nodes[i].ID != model.NoNUMA {
				most = max(most, s.left[i])
			}
		}
		if d := len(r.at) - most; s.short == 0 || d < s.short {
			s.short, s.shortfall = d, r
		}
		return false
	}
	for _, i := range fits {
		s.left[i] -= len(r.at)
		s.taken[k] = i
		if s.place(k+1, try) {
			return true
		}
		s.left[i] += len(r.at)
		if s.tries >= coreTries {
			return false
		}
	}
	return false
}

// order lists the NUMA nodes that have room for a run: those with its devices first, then the fullest.
func order(nodes []model.NUMANode, left []int, r *coreRun) []int {
	var out []int
	for i := range nodes {
		if nodes[i].ID != model.NoNUMA && left[i] >= len(r.at) {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(x, y int) int {
		if len(r.near) > 0 && nodes[x].Pull != nodes[y].Pull {
			return cmp.Compare(nodes[y].Pull, nodes[x].Pull)
		}
		return left[x] - left[y]
	})
	return out
}

// pickCores chooses the cores and devices of an allocation, together where one depends on the other.
func (a *Ask) pickCores(n *structs.Node, free *model.Holding, choices [][]DeviceChoice, h *model.Held, k *Picker) ShortageOf {
	defer func() { k.numa = nil }() // the picker is used for other nodes, too
	if len(a.Devices) > 0 {
		if x := k.PickDevices(a, n, free, choices); x.Dim != structs.DimensionNone {
			return x
		}
	}
	if len(a.Cores) == 0 {
		return ShortageOf{}
	}
	nodes := model.NUMANodes(n)
	largest, have := model.LargestNUMA(nodes), int64(0)
	for i := range nodes {
		nodes[i].Cores = slices.DeleteFunc(nodes[i].Cores, func(c int64) bool { return free.Cores.Has(int(c)) })
		have += int64(len(nodes[i].Cores))
	}
	if d := a.Need.Cores - have; d > 0 {
		return ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionCores, Short: d}, By: &structs.Obstacle{Dimension: structs.DimensionCores}}
	}
	for _, p := range k.Picks {
		at := n.Resources.Devices[p.Group].Instances[p.Index].NUMANode
		if i := slices.IndexFunc(nodes, func(x model.NUMANode) bool { return x.ID == at && at >= 0 }); i >= 0 {
			nodes[i].Pull++
		}
	}
	var why ShortageOf
	try := func(s *coreSets) func() bool {
		return func() bool {
			if k.numa = tiesOf(a, s); k.numa == nil {
				return true
			}
			x := k.PickDevices(a, n, free, choices)
			if x.Dim != structs.DimensionNone && (why.Dim == structs.DimensionNone || x.Dim == why.Dim && x.Short < why.Short) {
				why = x
			}
			return x.Dim == structs.DimensionNone
		}
	}
	s := newCoreSets(nodes, a.runs, (*coreRun).hard)
	if !s.place(0, try(s)) {
		s = newCoreSets(nodes, a.runs, func(r *coreRun) bool { return r.must })
		why = ShortageOf{}
		if !s.place(0, try(s)) {
			return s.refusal(a, why, largest)
		}
		if k.numa == nil && len(a.Devices) > 0 { // pick again without ties: the last try was for fewer devices
			k.PickDevices(a, n, free, choices)
		}
	}
	h.Rare.Cores = s.give(a)
	return ShortageOf{}
}

// tiesOf returns, by device request, the NUMA node that its devices must be on; nil if none is tied.
func tiesOf(a *Ask, s *coreSets) []int64 {
	var out []int64
	for k, r := range s.runs {
		id := s.nodes[s.taken[k]].ID
		if len(r.tied) == 0 || id == model.AnyNUMA {
			continue
		}
		if out == nil {
			out = slices.Repeat([]int64{model.AnyNUMA}, len(a.Devices))
		}
		for _, i := range r.tied {
			out[i] = id
		}
	}
	return out
}

// inNUMANode is the detail of a refusal: the cores, and the devices tied to them, must be in one NUMA node.
const inNUMANode = "NUMA node"

// refusal explains why no NUMA node is suitable: too few cores on each, or enough cores and too few devices.
func (s *coreSets) refusal(a *Ask, why ShortageOf, largest int) ShortageOf {
	if why.Dim != structs.DimensionNone {
		by := a.Devices[0].Alts[0].Obstacle
		for _, r := range s.runs {
			if len(r.tied) > 0 {
				by = a.Devices[r.tied[0]].Alts[0].Obstacle
				by.Count = int64(len(r.at))
				break
			}
		}
		by.Detail = inNUMANode
		return ShortageOf{Shortage: why.Shortage, By: &by, Apart: true}
	}
	return ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionCores, Short: int64(max(s.short, 1))}, By: &structs.Obstacle{Dimension: structs.DimensionCores, Detail: inNUMANode}, Apart: true,
		TooSmall: s.shortfall != nil && len(s.shortfall.at) > largest}
}

// give takes the cores: first those of the assigned runs, then the others, each from one NUMA node if possible, else
// from as few as possible.
func (s *coreSets) give(a *Ask) []int64 {
	out := make([]int64, a.Need.Cores)
	take := func(i int, places []int) {
		x := &s.nodes[i]
		for k, p := range places {
			out[p] = x.Cores[k]
		}
		x.Cores = x.Cores[len(places):]
	}
	for k, r := range s.runs {
		take(s.taken[k], r.at)
	}
	for i := range s.nodes {
		s.left[i] = len(s.nodes[i].Cores)
	}
	for i := range a.runs {
		r := &a.runs[i]
		if slices.Contains(s.runs, r) {
			continue
		}
		places := r.at
		if fit := order(s.nodes, s.left, r); len(fit) > 0 {
			take(fit[0], places)
			s.left[fit[0]] -= len(places)
			continue
		}
		for len(places) > 0 {
			most := -1
			for i := range s.nodes {
				if s.left[i] > 0 && (most < 0 || s.left[i] > s.left[most]) {
					most = i
				}
			}
			part := places[:min(len(places), s.left[most])]
			take(most, part)
			s.left[most] -= len(part)
			places = places[len(part):]
		}
	}
	return out
}

// Together returns 1,000,000 if each task that requires or prefers one NUMA node can get its cores from one, else 0.
func (a *Ask) Together(n *structs.Node, hold *model.Holding) int64 {
	nodes := model.NUMANodes(n)
	if hold != nil {
		for i := range nodes {
			nodes[i].Cores = slices.DeleteFunc(nodes[i].Cores, func(c int64) bool { return hold.Cores.Has(int(c)) })
		}
	}
	s := newCoreSets(nodes, a.runs, (*coreRun).hard)
	if s.place(0, func() bool { return true }) {
		return model.Micro
	}
	return 0
}
