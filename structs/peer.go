package structs

import "strings"

// Peer says where allocations should be relative to those of other jobs (Job.Near and Away, Group.Near and Away). It
// selects one job of the same namespace, or every job of it with a label.
type Peer struct {
	JobID    string // of that namespace; "" with Label
	Label    string // "KEY=VALUE" of the other job's meta, or "KEY" for any value; "" with JobID
	Level    string // how near: "node" (also ""), "datacenter", or a key of the nodes' meta or attributes, such as "rack"
	Required bool   // other nodes are infeasible; otherwise it counts in the score
	Weight   int64  // relative to the other peers that are not required, 1..100
}

// Defaults of a Peer.
const (
	PeerLevelNode     = "node"
	PeerWeightDefault = 50
)

// Means reports whether p, declared by a job of namespace, selects other.
func (p *Peer) Means(namespace string, other *Job) bool {
	if other == nil || other.Namespace != namespace {
		return false
	}
	if p.JobID != "" {
		return p.JobID == other.ID
	}
	key, value, sub := strings.Cut(p.Label, "=")
	have, ok := other.Meta[key]
	return ok && (!sub || have == value)
}

// Who describes the selected jobs for people.
func (p *Peer) Who() string {
	if p.JobID != "" {
		return "job " + p.JobID
	}
	return "jobs with " + p.Label
}

// ScoreWeights overrides the policy's weights of the named terms of a node's score. 0 keeps a weight; WeightOff leaves
// a term out.
type ScoreWeights struct {
	Fit      int64 // how well the work fits, according to the policy
	Affinity int64 // preferences for nodes, devices and other jobs
	Load     int64 // few allocations of the same group on one node
	Spread   int64 // how even a spread remains
	Locality int64 // data that is already on the node (Job.Datasets)
	Cost     int64 // cheap nodes (CostKey)
	// Reliability is little work that is expected to be lost with the node (MeanTimeToLoss).
	Reliability int64 `since:"2"`
}

// Limits of a ScoreWeights field.
const (
	WeightOff = -1
	WeightMax = 100 // all terms together remain below the weight of a taint or an alternative
)

// Over returns w with the weights that m sets replaced.
func (w ScoreWeights) Over(m ScoreWeights) ScoreWeights {
	at, by := w.Terms(), m.Terms()
	for i := range by {
		if *by[i].Value != 0 {
			*at[i].Value = *by[i].Value
		}
	}
	return w
}

// ScoreTermWeight is one field of a ScoreWeights.
type ScoreTermWeight struct {
	Name  string
	Value *int64
}

// Terms lists the fields by name, in display order.
func (w *ScoreWeights) Terms() []ScoreTermWeight {
	return []ScoreTermWeight{{"fit", &w.Fit}, {"affinity", &w.Affinity}, {"load", &w.Load}, {"spread", &w.Spread}, {"locality", &w.Locality}, {"cost", &w.Cost}, {"reliability", &w.Reliability}}
}

// Check returns an error for weights that are out of range.
func (w ScoreWeights) Check() *Error {
	for _, t := range w.Terms() {
		if *t.Value < WeightOff || *t.Value > WeightMax {
			return Errorf(CodeInvalid, "the weight of %s is %d; want 0 to %d", t.Name, *t.Value, WeightMax)
		}
	}
	return nil
}

// Keys of a node's meta (or attributes) that score terms use.
const (
	DatasetsKey = "datasets"      // data sets and caches that the node holds, separated by commas
	CostKey     = "cost_per_hour" // the cost of an hour of the node, in a unit that is the same for all
)
