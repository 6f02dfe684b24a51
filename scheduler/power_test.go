package scheduler_test

import "github.com/muster-sched/muster/structs"

// powered reports whether a node has a power budget.
func (w *world) powered() bool {
	for _, n := range w.nodes {
		if n.PowerBudgetW > 0 {
			return true
		}
	}
	return false
}

// power is what the GPUs in use of a pool may draw, counted from the grants alone.
func (w *world) power(pool structs.PoolName) (sum int64) {
	used := map[[2]string]int64{} // by node and GPU
	for _, a := range w.allocs {
		n := w.nodes[a.NodeID]
		if !structs.Holds(a) || n == nil || n.Pool != pool {
			continue
		}
		for _, gr := range a.Grants {
			for i := range n.Resources.Devices {
				if g := &n.Resources.Devices[i]; g.ID() == gr.Device && g.Type == "gpu" {
					used[[2]string{string(n.ID[:]), gr.Device + gr.Instance}] = structs.GPUPowerW(g, 0)
				}
			}
		}
	}
	for _, watts := range used {
		sum += watts
	}
	return sum
}

// setPower gives the GPUs of a random node a power limit, in worlds with a budget.
func (w *world) setPower(g *structs.DeviceGroup) {
	if w.budget > 0 {
		g.Attributes[[]string{"power", "power_max"}[len(g.Instances)%2]] = structs.Attribute{Kind: "int", Int: map[string]int64{"A100": 400, "H100": 700}[g.Name], Unit: "W"}
	}
}

// checkPower counts the GPUs in use after a batch.
func (w *world) checkPower() {
	if w.budget == 0 {
		return
	}
	got := w.power(structs.NodePoolDefault)
	w.check(got <= w.budget, "the GPUs in use may draw %d W, over a budget of %d W", got, w.budget)
	w.counts["power budgets checked"]++
	if got > w.budget-700 {
		w.counts["power budgets nearly used up"]++
	}
}
