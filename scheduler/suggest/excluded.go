package suggest

import (
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// ExcludedMax bounds the nodes of an answer.
const ExcludedMax = 10_000

// Excluded is a node that cannot take an allocation of a group now, and why.
type Excluded struct {
	Group structs.GroupName
	Node  *structs.Node
	Why   structs.Refusal
}

// Nodes lists, for each group of a job, the nodes that cannot take one of its allocations now, in the order of the view.
// A node that could take one, but not a whole gang, is not listed.
func Nodes(in scheduler.Input, p search.Policy, job *structs.Job) (out []Excluded) {
	if job == nil || !job.Placeable() {
		return nil
	}
	if forJob := p.Capabilities().ForJob; forJob != nil {
		p = forJob(job)
	}
	w := in.NewPass()
	defer w.Release()
	for _, tg := range job.Groups {
		ask := match.CompileAsk(job, tg, in.Config.GPUFit)
		for row := range in.View.Rows {
			if len(out) == ExcludedMax {
				return out
			}
			if why, bad := search.WhyNot(ask, w, p, row); bad {
				c, i := in.View.At(row)
				out = append(out, Excluded{Group: tg.Name, Node: c.Nodes[i], Why: why})
			}
		}
	}
	return out
}
