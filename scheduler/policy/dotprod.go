package policy

import "github.com/muster-sched/muster/scheduler/search"

// dotProd prefers the node whose free CPU and GPUs are least like the request, by the scalar product of both (Weng et
// al., ATC'23, "DotProd", after Tetris), cut to a whole percent. Shares go to the tightest GPU.
type dotProd struct{ published }

func (dotProd) Name() string { return "dotprod" }

func (dotProd) Fit(u *search.Use) int64 {
	ask := u.Ask.CPU
	free := u.Total.CPU - u.Used.CPU + ask
	const den = 2 * largestCPU * largestCPU
	// GPUs are 16 times finer than CPUs: 128,000 / 8,000.
	return cut((den-free*ask-256*u.GPU.Free*u.GPU.Milli)*100, den)
}
