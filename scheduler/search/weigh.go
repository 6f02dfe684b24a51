package search

import (
	"slices"
	"strings"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// localityWeight is the weight of the locality term, which no policy has: a job that names data sets should run where
// they are. The cost term has no default weight; it counts only where one is configured. The term reliability counts only
// while some node was lost in the last 30 days.
const localityWeight = 20

// reweigh replaces the policy's weights by the configured ones.
func (s *Search) reweigh() {
	if s.Ask.Job != nil && len(s.Ask.Job.Datasets) > 0 {
		s.extra.locality = localityWeight
	}
	if len(s.w.doubts.list) > 0 {
		s.extra.reliability = reliabilityWeight
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
	if w.Reliability != 0 && s.extra.reliability > 0 {
		s.extra.reliability = max(w.Reliability, 0)
	}
}

// local returns the share of the job's data sets that a node holds.
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

// cheap returns how much less a node costs than the dearest node of the cluster. A node without a cost costs nothing.
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
