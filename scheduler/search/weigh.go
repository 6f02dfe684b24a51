package search

import (
	"math/big"
	"slices"
	"strings"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// Weights of terms that no policy has. Who names data sets wants to be where they are; what nodes cost counts only where
// somebody says that it should.
const localityWeight = 20

// reweigh puts configured weights in place of the policy's.
func (s *Search) reweigh() {
	if s.Ask.Job != nil && len(s.Ask.Job.Datasets) > 0 {
		s.extra.locality = localityWeight
	}
	w := &s.Ask.Weights
	if *w == (structs.ScoreWeights{}) {
		return
	}
	for _, x := range []struct {
		said int64
		to   *int64
	}{{w.Fit, &s.weights.Fit}, {w.Affinity, &s.weights.Affinity}, {w.Load, &s.weights.Load}, {w.Spread, &s.weights.Spread}, {w.Cost, &s.extra.cost}} {
		if x.said != 0 {
			*x.to = max(x.said, 0)
		}
	}
	if w.Locality != 0 && s.extra.locality > 0 {
		s.extra.locality = max(w.Locality, 0)
	}
}

// local is the share of the job's data sets that a node holds.
func (s *Search) local(n *structs.Node) int64 {
	if s.extra.locality == 0 {
		return 0
	}
	have := strings.FieldsFunc(model.LevelOf(n, structs.DatasetsKey), func(r rune) bool { return r == ',' || r == ' ' })
	got := int64(0)
	for _, d := range s.Ask.Job.Datasets {
		if slices.Contains(have, d) {
			got++
		}
	}
	return got * model.Micro / int64(len(s.Ask.Job.Datasets))
}

// cheap is how far below the dearest node of the cluster one costs. A node that does not say what it costs, costs nothing.
func (s *Search) cheap(n *structs.Node) int64 {
	if s.extra.cost == 0 {
		return 0
	}
	most := s.w.dearest()
	if most == 0 {
		return model.Micro
	}
	return model.Micro - costOf(n)*model.Micro/most
}

// costMax bounds what a node may cost, in millionths; a million times it is still a number.
const costMax = 1_000_000 * model.Micro

var bigMicro = big.NewInt(model.Micro)

// costOf is what a node costs, in millionths of the unit that it is said in; at most costMax.
func costOf(n *structs.Node) int64 {
	r, ok := match.ParseDecimal(strings.TrimSpace(model.LevelOf(n, structs.CostKey)))
	if !ok || r.Sign() <= 0 {
		return 0
	}
	x := r.Num()
	x.Mul(x, bigMicro).Quo(x, r.Denom())
	if !x.IsInt64() {
		return costMax
	}
	return min(x.Int64(), costMax)
}
