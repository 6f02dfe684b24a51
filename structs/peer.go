package structs

import "strings"

// Peer says where allocations should lie beside those of other jobs (Job.Near and Away, Group.Near and Away). Who is meant
// is a job of the same namespace, or every job of it with a label.
type Peer struct {
	JobID    string // of that namespace; "" with Label
	Label    string // "KEY=VALUE" of the other job's meta, or "KEY" for any value; "" with JobID
	Level    string // how near: "node" (also ""), "datacenter", or a key of the nodes' meta or attributes, such as "rack"
	Required bool   // nodes that do not fulfil it are out of the question; otherwise it counts in the score
	Weight   int64  // beside the others that are not required, 1..100
}

// Of a Peer: the level that is meant when none is named, and the weight.
const (
	PeerLevelNode     = "node"
	PeerWeightDefault = 50
)

// Means reports whether a job is one that p speaks of, as said by a job of a namespace.
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

// Who names those that p speaks of, for people.
func (p *Peer) Who() string {
	if p.JobID != "" {
		return "job " + p.JobID
	}
	return "jobs with " + p.Label
}

// ScoreWeights are the weights of the named terms of a node's score, where they are not to be the policy's own. 0 says
// nothing; WeightOff leaves a term out.
type ScoreWeights struct {
	Fit      int64 // how well the work fits, by the policy
	Affinity int64 // wishes about nodes, devices and other jobs
	Load     int64 // few of the same group on one node
	Spread   int64 // how even a spread stays
	Locality int64 // data that is there already (Job.Datasets)
	Cost     int64 // cheap nodes (CostKey)
}

// Bounds of a ScoreWeights field.
const (
	WeightOff = -1
	WeightMax = 100 // all terms together stay below what a taint or an alternative counts
)

// Over gives w with what is said in more specific weights.
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

// Terms lists the fields by name, in the order in which they are shown.
func (w *ScoreWeights) Terms() []ScoreTermWeight {
	return []ScoreTermWeight{{"fit", &w.Fit}, {"affinity", &w.Affinity}, {"load", &w.Load}, {"spread", &w.Spread}, {"locality", &w.Locality}, {"cost", &w.Cost}}
}

// Check refuses weights that are out of range.
func (w ScoreWeights) Check() *Error {
	for _, t := range w.Terms() {
		if *t.Value < WeightOff || *t.Value > WeightMax {
			return Errorf(CodeInvalid, "the weight of %s is %d; want 0 to %d", t.Name, *t.Value, WeightMax)
		}
	}
	return nil
}

// Keys of a node's meta (or attributes) that score terms look at.
const (
	DatasetsKey = "datasets"      // data sets and caches that the node holds, separated by commas
	CostKey     = "cost_per_hour" // what an hour of the node costs, in any unit that is the same for all
)
