package policy

import "github.com/muster-sched/muster/scheduler/search"

// packing takes GPUs in use before idle ones, and idle ones of nodes in use before idle nodes (Weng et al., ATC'23,
// "GPU Packing"). Work without GPUs goes to the first node. Shares go to the tightest GPU.
type packing struct{ published }

func (packing) Name() string { return "packing" }

func (packing) Fit(u *search.Use) int64 {
	g := &u.GPU
	score := int64(0)
	switch {
	case g.Milli == 0:
	case g.Free == 1000*g.Count: // an idle node
		score = max(33-g.Count, g.Count)
	case g.TakenIdle > 0:
		score = max(50-g.TakenIdle, 33)
	default:
		score = max(100-g.TakenFree/100, 50)
	}
	return cut(score, 1)
}
