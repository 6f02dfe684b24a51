package match

import (
	"slices"
	"strconv"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// pickIsland chooses count of the open instances of a group: from the smallest island that has enough, else from
// several. most is the largest number from one island, at most count; an instance without island counts as an island.
func pickIsland(g *structs.DeviceGroup, open []int, count int, inside string) (out []int, most int64) {
	bestSize, best := 0, ""
	most = int64(min(1, count))
	for _, k := range open {
		island := islandOf(&g.Instances[k], inside)
		if island == "" || island == best {
			continue
		}
		size := 0
		for _, o := range open {
			if islandOf(&g.Instances[o], inside) == island {
				size++
			}
		}
		most = max(most, int64(min(size, count)))
		if size >= count && (bestSize == 0 || size < bestSize) {
			bestSize, best = size, island
		}
	}
	for _, k := range open {
		if len(out) < count && (bestSize == 0 || islandOf(&g.Instances[k], inside) == best) {
			out = append(out, k)
		}
	}
	return out, most
}

// pickSound picks devices as pickIsland does, without degraded ones if there are enough others that are as close to each
// other. Else it takes as few of them as possible.
func pickSound(g *structs.DeviceGroup, open []int, count int, inside string) (out []int, most int64) {
	degraded := func(j int) bool { return g.Instances[j].Degraded() }
	if !slices.ContainsFunc(open, degraded) {
		return pickIsland(g, open, count, inside)
	}
	sound := slices.DeleteFunc(slices.Clone(open), degraded)
	if out, most = pickIsland(g, sound, count, inside); len(out) == count && most >= int64(count) {
		return out, most
	}
	for _, j := range open {
		if degraded(j) {
			sound = append(sound, j)
		}
	}
	out, most = pickIsland(g, sound, count, inside)
	slices.Sort(out)
	return out, most
}

// islandOf names the island, or other part of a node at the given level, that a device belongs to; "" when unknown.
func islandOf(in *structs.DeviceInstance, level string) string {
	if level == model.InsideNUMA {
		if in.NUMANode < 0 {
			return ""
		}
		return "numa " + strconv.Itoa(int(in.NUMANode))
	}
	return in.Island
}

// fellows adds the devices of a node that other members of the ask's gang share.
func (a *Ask) fellows(n *structs.Node, hold *model.Holding, to model.Bitset) model.Bitset {
	for h := range hold.All() {
		if h.Rare == nil || !h.Work.Of(a.Job, a.Tg.Name) {
			continue
		}
		for i := range h.Rare.Grants {
			if g := &h.Rare.Grants[i]; g.MemoryMiB > 0 {
				if pos := model.InstancePos(n, g.Device, g.Instance); pos >= 0 {
					to.Set(pos)
				}
			}
		}
	}
	return to
}
