package policy

import "github.com/muster-sched/muster/scheduler/search"

// clustering puts work on nodes that run only work of its class: shares, one GPU, two GPUs and so on; then on nodes
// that run its class among others; then on idle ones; then elsewhere (Weng et al., ATC'23, "GPU Clustering"). Work
// without GPUs goes to the first node. Shares go to the tightest GPU.
type clustering struct{ published }

func (clustering) Name() string { return "clustering" }

func (clustering) Fit(u *search.Use) int64 {
	g := &u.GPU
	if g.Milli == 0 {
		return 0
	}
	score := 25 * (largestGPU - g.Free) / largestGPU
	switch {
	case g.Same && !g.Other:
		score += 75
	case g.Same:
		score += 50
	case !g.Other:
		score += 25
	}
	return cut(score, 1)
}
