package policy

import (
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
)

// binpack prefers the node that a placement leaves fullest (best fit), so that large requests keep finding empty
// nodes. With f the free share of a resource after the placement, the score falls with the sum of 10^f; devices count
// as a third resource when the group asks for some.
type binpack struct{}

func (binpack) Name() string            { return "binpack" }
func (binpack) Weights() search.Weights { return search.DefaultWeights }
func (binpack) Rotates() bool           { return false }

func (binpack) Fit(u *search.Use) int64 {
	sum, n := emptiness(u)
	return clampMicro((10*n*model.Micro - sum) / (9 * n))
}

// emptiness returns the sum of 10^f over the resources that count, f being the free share, and the number of them.
func emptiness(u *search.Use) (sum, n int64) {
	sum = model.Pow10(u.Total.CPU-u.Used.CPU, u.Total.CPU) + model.Pow10(u.Total.MemoryMiB-u.Used.MemoryMiB, u.Total.MemoryMiB)
	if u.Devices == 0 {
		return sum, 2
	}
	return sum + model.Pow10(u.Devices-u.DevicesInUse, u.Devices), 3
}

func clampMicro(x int64) int64 { return min(max(x, 0), model.Micro) }

// Capabilities returns none.
func (binpack) Capabilities() search.Capabilities { return search.Capabilities{} }
