package scheduler

import (
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Prepare does ahead what the next decisions on a view would compute first: it fills the caches for work like the work that
// runs there. Decisions are the same without it. policyOf returns the policy of a node pool. It is for the time between
// passes: it returns false if a pass kept it from being complete.
func Prepare(v *model.View, config *structs.SchedulerConfig, policyOf func(structs.PoolName) search.Policy) bool {
	in := &Input{View: v, Config: *config}
	return search.Prepare(v, func(h *model.HeldWork) (*match.Ask, search.Policy) {
		if h.Job == nil {
			return nil, nil
		}
		tg := h.Job.Group(h.Group)
		if tg == nil {
			return nil, nil
		}
		p := policyOf(h.Job.NodePool)
		if forJob := p.Capabilities().ForJob; forJob != nil {
			p = forJob(h.Job)
		}
		if _, rates := p.(search.GPUPolicy); !rates {
			return nil, nil
		}
		a := match.CompileAsk(h.Job, tg, config.GPUFit)
		a.Weights = weightsFor(in, h.Job)
		if !a.Simple() {
			return nil, nil
		}
		return a, p
	})
}
