package wire

import (
	"fmt"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Peer says where allocations should be relative to those of another job, or of jobs with a label.
type Peer struct {
	Job    string `hcl:"job"`
	Label  string `hcl:"label"`
	Level  string `hcl:"level"`
	Mode   string `hcl:"mode"`
	Weight *int   `hcl:"weight" json:",omitempty"`
}

// ScoreWeights are weights of the terms of a node's score. An absent weight is left to the pool, the cluster and the
// policy; 0 leaves a term out.
type ScoreWeights struct {
	Fit         *int `hcl:"fit" json:",omitempty"`
	Affinity    *int `hcl:"affinity" json:",omitempty"`
	Load        *int `hcl:"load" json:",omitempty"`
	Spread      *int `hcl:"spread" json:",omitempty"`
	Locality    *int `hcl:"locality" json:",omitempty"`
	Cost        *int `hcl:"cost" json:",omitempty"`
	Reliability *int `hcl:"reliability" json:",omitempty"`
}

func peersTo(in []*Peer) (out []structs.Peer) {
	for _, p := range in {
		if p != nil {
			x := structs.Peer{JobID: p.Job, Label: p.Label, Level: p.Level, Required: p.Mode == structs.TopologyRequired, Weight: structs.PeerWeightDefault}
			if p.Weight != nil {
				x.Weight = int64(*p.Weight)
			}
			out = append(out, x)
		}
	}
	return out
}

func peersFrom(in []structs.Peer) (out []*Peer) {
	for _, p := range in {
		x := &Peer{Job: p.JobID, Label: p.Label, Level: p.Level, Mode: structs.TopologyPreferred, Weight: ptr(int(p.Weight))}
		if p.Required {
			x.Mode = structs.TopologyRequired
		}
		out = append(out, x)
	}
	return out
}

func (w *ScoreWeights) terms() []**int {
	return []**int{&w.Fit, &w.Affinity, &w.Load, &w.Spread, &w.Locality, &w.Cost, &w.Reliability}
}

func (w *ScoreWeights) toStructs() (out structs.ScoreWeights) {
	if w == nil {
		return out
	}
	set := make([]int64, len(w.terms()))
	for i, t := range w.terms() {
		if *t == nil {
			continue
		}
		if set[i] = int64(**t); set[i] == 0 {
			set[i] = structs.WeightOff
		} else if set[i] == structs.WeightOff {
			set[i] = structs.WeightMax + 1 // out of range, as all that is negative
		}
	}
	return structs.ScoreWeights{Fit: set[0], Affinity: set[1], Load: set[2], Spread: set[3], Locality: set[4], Cost: set[5], Reliability: set[6]}
}

func weightsFrom(in structs.ScoreWeights) *ScoreWeights {
	if in == (structs.ScoreWeights{}) {
		return nil
	}
	out := &ScoreWeights{}
	at := out.terms()
	for i, t := range in.Terms() {
		if *t.Value != 0 {
			*at[i] = ptr(int(max(*t.Value, 0)))
		}
	}
	return out
}

// peers checks near and away blocks.
func (v *validator) peers(where string, near, away []*Peer) {
	for _, set := range []struct {
		name  string
		peers []*Peer
	}{{"near", near}, {"away", away}} {
		v.count(prefix(where, set.name), len(set.peers))
		for i, p := range set.peers {
			if p == nil {
				continue
			}
			w := prefix(where, fmt.Sprintf("%s %d", set.name, i+1))
			switch key, _, _ := strings.Cut(p.Label, "="); {
			case p.Job == "" && p.Label == "":
				v.errorf(w, "says neither job nor label; want job = \"ID\", or label = \"KEY=VALUE\" of other jobs' meta")
			case p.Job != "" && p.Label != "":
				v.errorf(w, "names a job and a label; make two blocks of it")
			case p.Job == "" && (key == "" || hasControl(p.Label)):
				v.errorf(w+".label", "%.64q; want \"KEY=VALUE\" or \"KEY\"", p.Label)
			case hasControl(p.Job):
				v.errorf(w+".job", "%.64q holds a control character", p.Job)
			}
			if p.Level != "" && !wordRE.MatchString(p.Level) {
				v.errorf(w+".level", "%.64q is not a level: want node, datacenter, rack, or another key of the nodes' meta", p.Level)
			}
			v.oneOfOrNone(w+".mode", p.Mode, "Topology.Mode")
			if p.Weight != nil && (*p.Weight < 1 || *p.Weight > 100) {
				v.errorf(w+".weight", "%d is out of range: want 1 to 100", *p.Weight)
			}
			if p.Weight != nil && p.Mode == structs.TopologyRequired && *p.Weight != structs.PeerWeightDefault {
				v.errorf(w+".weight", "what is required has no weight; leave it out")
			}
		}
	}
}

// placing checks the job's data sets and weights.
func (v *validator) placing() {
	j := v.job
	v.peers("", j.Near, j.Away)
	v.count("datasets", len(j.Datasets))
	for _, d := range j.Datasets {
		if d == "" || strings.ContainsAny(d, ", ") || hasControl(d) {
			v.errorf("datasets", "%.64q is not a name of data: want one word without commas", d)
		}
	}
	if j.Weights != nil {
		var names structs.ScoreWeights
		at := j.Weights.terms()
		for i, t := range names.Terms() {
			if w := *at[i]; w != nil && (*w < 0 || *w > structs.WeightMax) {
				v.errorf("score_weights."+t.Name, "%d is out of range: want 0 to %d", *w, structs.WeightMax)
			}
		}
	}
}
