package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// random takes any node on which the group fits, and for a share any GPU, with equal probability. Lots are drawn from
// the seed of the decision and the job, so that the same input gives the same plan.
type random struct{ published }

func (random) Name() string { return "random" }
func (random) Capabilities() search.Capabilities {
	return search.Capabilities{SeesGPUs: true, DrawsLots: true}
}

func (random) Fit(u *search.Use) int64 {
	return int64(u.GPU.Draw % (model.Micro + 1))
}
