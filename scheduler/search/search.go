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

	twins *twinIndex // nil: every row is rated
	apart []int32    // rows that differ from their twins in this search
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
	NoPower     bool   // a row was refused because of its pool's power budget
	GivenBack   string // places were found for all of the group and given back, because these groups of its all_at_once job do not fit
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
	extra     extraTerms
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

// extraTerms are the weights of terms that no policy has; 0: not counted.
type extraTerms struct {
	locality, cost, reliability int64
	costs                       int64 // see costsOf; 0: not computed yet
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
	second   match.Picker // of Search.takesWorn, which must not change what Picker chose
	choosing choosing     // see choose
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
	Places     *model.Level         // with Within: only nodes of these places are looked at; nil: all
	Within     []bool               // by place of the level
	Ban        []structs.NodeID     // nodes that must not be used
	Found      int64                // members that found a place before one did not
	Short      string               // the level at which no place has room for all, though the cluster has
	ShortAt    string               // its place with the most room
	GaveUp     bool                 // the search is over: the report no longer changes
	lastReport *structs.GroupReport // the last report
}

// propState counts allocations by the value of a distinct property.
type propState struct {
	*valueTable
	have map[int32]int64
}

func (s *Search) likes() bool {
	return slices.ContainsFunc(s.Ask.Devices, func(d match.DeviceAsk) bool {
		return slices.ContainsFunc(d.Alts, func(a match.DeviceAlt) bool { return a.WishTotal > 0 })
	})
}

func (s *Search) node(row int) *structs.Node {
	c, i := s.w.View.At(row)
	return c.Nodes[i]
}

// Banned reports whether this work must not use a node.
func (s *Search) Banned(id structs.NodeID) bool { return len(s.Ban) > 0 && slices.Contains(s.Ban, id) }

// Elsewhere reports whether a row is outside the places that the search is limited to.
func (s *Search) Elsewhere(row int) bool {
	if s.Places == nil {
		return false
	}
	at := s.Places.Of[row]
	return at < 0 || !s.Within[at]
}

// Verdict is what an ask can expect of a class of equal nodes, and how many of its nodes were counted for what.
type Verdict struct {
	Outside bool  // in another pool: not even counted
	Far     bool  // in another datacenter: counted as part of the pool only
	Refused int   // 1 + place in the refusals; 0: feasible
	wishes  int64 // weight of the wishes that the class fulfils
	Choices [][]match.DeviceChoice
	spread  []int32 // per spread: value number; -1: depends on the node
	props   []int32 // per distinct property: value number; -1: depends on the node
	cell    int32   // -1: depends on the node
	suits   []bool  // see Search.suits
	gpus    bool    // the class has GPUs
	reserve int64   // MiB of each GPU that shares cannot use
	rent    int64   // what a thousandth of a GPU pays at the current prices; -1: not looked up yet
	shunned bool    // it has a taint that the job prefers to avoid
	hash    [16]byte
	node    *structs.Node // one of the class
	liked   int64         // how well the best device choices are liked, millionths, averaged
	local   int64         // share of the job's data that is on the node, millionths
	cheap   int64         // how much less than the dearest node it costs, millionths

	class, dc           string
	inPool, available   int64
	filtered, exhausted int64
}

// choosing is the node on which a policy chooses among GPUs; s is nil if the ask's own rule chooses.
type choosing struct {
	s *Search
	c *model.Chunk
	i int
	v *Verdict
	o model.Occupancy
}

// gpuSearch is the state of a search with a policy that looks into GPUs. Its findings are kept in the policy's ledger.
type gpuSearch struct {
	policy GPUPolicy
	l      *ledger // nil until a node with GPUs is met
	asked  *asked  // nil when the ask is not simple
	prices Prices
	pays   bool // some resource has a price now
	wide   bool // blocks of idle GPUs have a price
	state  struct{ before, after model.GPUState }
}
