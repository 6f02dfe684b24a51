package suggest

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// nodes tries nodes that come back, and nodes that join.
func (a *adviser) nodes(rep scheduler.WorkloadReport) {
	job := a.load.Job
	var away, sick, kinds []*structs.Node
	seen := map[[16]byte]bool{}
	a.in.View.EachNode(func(n *structs.Node) bool {
		if !match.InPool(job, n) || !match.InDatacenter(job, n) {
			return true
		}
		switch r := restored(n); {
		case !n.Ready():
			away = append(away, r)
		case !sameHealth(n, r):
			sick = append(sick, r)
		}
		if h := model.ClassHash(n); !seen[h] {
			seen[h] = true
			kinds = append(kinds, n)
		}
		return true
	})
	back := func(list []*structs.Node, cost int64, text func(n *structs.Node) string) {
		for _, n := range list[:min(len(list), suggestNodes)] {
			if a.with([]*structs.Node{n}) {
				a.found(Change{Kind: ChangeNode, Text: text(n), Cost: cost, Nodes: []*structs.Node{n}})
				return
			}
		}
		if len(list) > 1 && a.with(list) {
			a.found(Change{Kind: ChangeNode, Text: fmt.Sprintf("%d nodes that are not ready come back", len(list)), Cost: cost * int64(len(list)), Nodes: list})
		}
	}
	back(away, 300, func(n *structs.Node) string {
		was := a.in.View.Node(n.ID)
		switch {
		case was.Status != structs.NodeReady:
			return fmt.Sprintf("node %s, which is %s, comes back", nodeText(n), was.Status)
		case was.Drain != nil:
			return fmt.Sprintf("node %s, which drains, takes work again", nodeText(n))
		}
		return fmt.Sprintf("node %s becomes eligible", nodeText(n))
	})
	back(sick, 350, func(n *structs.Node) string { return fmt.Sprintf("node %s gets well", nodeText(n)) })
	a.joins(rep, kinds)
}

func nodeText(n *structs.Node) string {
	if n.Name != "" {
		return n.Name
	}
	return n.ID.Short()
}

func sameHealth(a, b *structs.Node) bool {
	for i := range a.Resources.Devices {
		if !slices.Equal(a.Resources.Devices[i].Instances, b.Resources.Devices[i].Instances) {
			return false
		}
	}
	for name, d := range a.Drivers { // the result does not depend on the order
		if d.Healthy != b.Drivers[name].Healthy {
			return false
		}
	}
	return true
}

// with tries the view with new or changed nodes.
func (a *adviser) with(nodes []*structs.Node) bool {
	if a.spent() {
		return false
	}
	in := a.in
	in.View = withNodes(in.View, nodes)
	_, ok := a.decide(&in, a.load)
	return ok
}

func withNodes(v *model.View, nodes []*structs.Node) *model.View {
	d := structs.Delta{Index: v.Index()}
	for _, n := range nodes {
		d.Nodes = append(d.Nodes, structs.Changed[structs.Node]{Before: v.Node(n.ID), After: n})
	}
	return v.Advance(d)
}

// joins tries more nodes of the existing kinds, those with the most GPUs and memory first.
func (a *adviser) joins(rep scheduler.WorkloadReport, kinds []*structs.Node) {
	slices.SortStableFunc(kinds, func(x, y *structs.Node) int {
		if gx, gy := search.CountGPUs(x), search.CountGPUs(y); gx != gy {
			return int(gy - gx)
		}
		if x.Resources.MemoryMiB != y.Resources.MemoryMiB {
			return int(min(max(y.Resources.MemoryMiB-x.Resources.MemoryMiB, -1), 1))
		}
		return slices.Compare(x.ID[:], y.ID[:])
	})
	missing := int64(0)
	for _, g := range rep.Groups {
		missing += g.Wanted - g.Placed
	}
	for _, like := range kinds[:min(len(kinds), suggestNodes)] {
		most := min(missing, nodesAddedMax)
		if most < 1 || a.spent() || !a.with(a.copies(like, most)) {
			continue
		}
		lo, hi := int64(0), most // lo nodes are too few
		for hi-lo > 1 && !a.spent() {
			if mid := lo + (hi-lo)/2; a.with(a.copies(like, mid)) {
				hi = mid
			} else {
				lo = mid
			}
		}
		text := fmt.Sprintf("one more node like %s", nodeText(like))
		if hi > 1 {
			text = fmt.Sprintf("%d more nodes like %s", hi, nodeText(like))
		}
		a.found(Change{Kind: ChangeNode, Text: text, Cost: 1000 * hi, Nodes: a.copies(like, hi)})
		return
	}
}

// copies returns new nodes like an existing one, ready and healthy.
func (a *adviser) copies(like *structs.Node, n int64) []*structs.Node {
	var out []*structs.Node
	for i := range n {
		c := restored(like)
		c.ID = structs.DeriveID[structs.NodeID](structs.Seed(like.ID), "suggest", "", uint64(i))
		c.Name = fmt.Sprintf("new-%d", i+1)
		c.Resources.Devices = slices.Clone(c.Resources.Devices)
		for k := range c.Resources.Devices { // a job that asks for a particular device finds it on no other node
			g := &c.Resources.Devices[k]
			g.Instances = slices.Clone(g.Instances)
			for j := range g.Instances {
				g.Instances[j].ID = c.Name + "/" + g.Instances[j].ID
			}
		}
		out = append(out, c)
	}
	return out
}
