package search

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Use is a node as it would be after a placement, as policies see it.
type Use struct {
	Total, Used           structs.Vector
	Ask                   structs.Vector // what the placement takes of it; only with Capabilities.SeesGPUs
	Devices, DevicesInUse int64          // of the kinds that the group asks for, or their MiB when it asks for shares; 0 when it asks for none
	Allocs, GPUs          int64          // held on the node before the placement, and its GPUs; only with Capabilities.CountsAllocs
	Past                  Past           // of the node; only with Capabilities.UsesHistory
	GPU                   GPUUse         // only with Capabilities.SeesGPUs
}

// GPUUse is how a placement changes the GPUs of a node, for policies that need no more than sums.
type GPUUse struct {
	Count     int64  // healthy GPUs
	Free      int64  // thousandths of all GPUs that are free before the placement
	Milli     int64  // thousandths that the placement takes in total
	Taken     int64  // GPUs that it takes a part of
	TakenIdle int64  // of these, the idle ones
	TakenFree int64  // thousandths free before the placement on those of Taken that are in use already
	Same      bool   // the node runs work of the same class: shared, or of as many whole GPUs
	Other     bool   // it runs work of another class, with GPUs
	Draw      uint64 // random lot of this workload and node, from Input.Seed
}

// Policy rates nodes. A policy is pure and cheap: Fit is called for every feasible node. The built-in ones are in
// scheduler/policy.
type Policy interface {
	// Name as written in configuration.
	Name() string
	// Fit rates a node in millionths, 0 to 1,000,000; the highest wins. It must not keep or change u.
	Fit(u *Use) int64
	// Weights of the terms of a node's score.
	Weights() Weights
	// Rotates: ties are taken starting with the last node used, instead of with the first.
	Rotates() bool
	// Capabilities says what else the policy needs or does; most need nothing.
	Capabilities() Capabilities
}

// Capabilities are what a policy needs beyond Fit. What it does not need is not computed.
type Capabilities struct {
	SeesGPUs       bool   // Use.GPU and Use.Ask are filled in
	AvoidsGPUNodes bool   // work without GPUs goes to nodes without GPUs where it can
	UsesHistory    bool   // Use.Past is filled in
	DrawsLots      bool   // GPUUse.Draw is filled in, and GPUs of shares are drawn by lot
	CountsAllocs   bool   // Use.Allocs and Use.GPUs are filled in
	Advances       bool   // with Rotates: ties are taken starting with the node after the last one used
	FitName        string // what reports call the term of Fit; "" for the policy's name
	Moves          int    // how many of its own placements a decision may move to make room for what finds no place

	ForJob func(j *structs.Job) Policy // the policy of one job (nil: the policy no longer exists); nil: this one for all
}

// GPUPolicy is a Policy that looks into the GPUs of a node. Nodes with GPUs are rated by its rater instead of Fit. The
// rater also decides which GPU of a node a share is placed on: the first one that it rates highest.
type GPUPolicy interface {
	Policy
	// Rater returns the rater for one mix. It is kept as long as the mix is in use.
	Rater(mix *model.Mix) GPURater
}

// GPURater values what is free on nodes. It is immutable, because passes share it, and pure, because values are cached
// per node until something changes there.
type GPURater interface {
	// Value returns what the free GPUs of a node are worth, or what is lost of them, in the rater's own unit. It must
	// not keep or change g.
	Value(g *model.GPUState) int64
	// Score rates a placement in millionths by the node's value before and after it. What a placement costs elsewhere
	// (see PricedRater) is added to the value after.
	Score(before, after int64) int64
}

// PricedRater is a GPURater that charges placements for what is scarce in the whole cluster.
type PricedRater interface {
	GPURater
	// Prices is called once a decision. It must not keep or change m.
	Prices(m *Market) Prices
}

// Weights of the named terms of a score. A term that does not apply to a group (no affinity, no spread) is left out.
type Weights struct {
	Fit      int64 // how well the group fits on the node, by the policy
	Affinity int64 // wishes of the job that the node fulfils
	Load     int64 // few allocations of the same group on the node already, and no failed attempt of this one
	Spread   int64 // how even the spread stays
	GPU      int64 // how well shares fit into their GPUs
}

// DefaultWeights are those of the built-in policies. Spread is above fit, so that one allocation too many on a value
// outweighs any difference in fit.
var DefaultWeights = Weights{Fit: 30, Affinity: 20, Load: 20, Spread: 80, GPU: 30}
