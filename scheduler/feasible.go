package scheduler

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// refusal counts nodes refused for one reason.
type refusal struct {
	structs.Refusal
	free  int64 // GPU memory free on all GPUs that are too full for the ask, over all nodes counted
	asked int64 // GPU memory that one allocation asks for
}

func refused(code structs.ReasonCode, by structs.Obstacle, cure structs.EventKind) refusal {
	return refusal{Refusal: structs.Refusal{Code: code, Obstacle: by, CuredBy: cure}}
}

func inPool(j *structs.Job, n *structs.Node) bool {
	return j.NodePool == structs.NodePoolAll || j.NodePool == n.Pool || j.NodePool == "" && n.Pool == structs.NodePoolDefault
}

func inDatacenter(j *structs.Job, n *structs.Node) bool {
	return len(j.Datacenters) == 0 || slices.ContainsFunc(j.Datacenters, func(p string) bool { return p == n.Datacenter || glob(p, n.Datacenter) })
}

// Refuses tells whether what nodes of a class have in common rules the ask out.
func (a *ask) refuses(n *structs.Node) (refusal, bool) {
	for _, d := range a.drivers {
		info, known := n.Drivers[d]
		switch {
		case !known || !info.Detected:
			return refused(structs.ReasonDriver, structs.Obstacle{Dimension: structs.DimensionMissingDriver, Subject: d}, structs.EventNodeJoined), true
		case !info.Healthy:
			return refused(structs.ReasonDriver, structs.Obstacle{Dimension: structs.DimensionUnhealthyDriver, Subject: d}, structs.EventDriverHealthy), true
		}
	}
	for i := range a.checks {
		if !a.checks[i].holds(n) {
			return a.checks[i].refusal(structs.EventNodeJoined), true
		}
	}
	for _, t := range n.Taints() {
		if t.Effect != structs.TaintPreferNoSchedule && !a.stays && !t.Tolerated(a.job.Tolerations) {
			return cannot(structs.DimensionTaint, t.Key, t.Value, structs.EventNodeJoined), true
		}
	}
	if a.badVolume != "" {
		return cannot(structs.DimensionVolumeType, a.badVolume, "", structs.EventJobChanged), true
	}
	for _, v := range a.volumes {
		have, known := n.HostVolumes[v.source]
		if !known || have.ReadOnly && !v.readOnly {
			return cannot(structs.DimensionMissingVolume, v.source, "", structs.EventNodeJoined), true
		}
	}
	for _, alias := range a.networks {
		if networkByAlias(n, alias) < 0 {
			return cannot(structs.DimensionMissingHostNetwork, alias, "", structs.EventNodeJoined), true
		}
	}
	if why, bad := lacksNetwork(n, a.network); bad {
		return cannot(structs.DimensionMissingNetwork, a.network, why, structs.EventNodeJoined), true
	}
	return refusal{}, false
}

// cannot is the refusal of nodes that do not meet a condition of the job.
func cannot(what structs.Dimension, subject, detail string, cure structs.EventKind) refusal {
	return refused(structs.ReasonConstraint, structs.Obstacle{Dimension: what, Subject: subject, Detail: detail}, cure)
}

// lacksNetwork reports whether allocations cannot have a network of that mode on a node, and why, where the node says so.
func lacksNetwork(n *structs.Node, mode string) (why string, bad bool) {
	attribute := structs.BridgeAttribute
	switch mode {
	case "":
		return "", false
	case structs.NetworkNone:
		attribute = structs.NoneAttribute
	}
	if n.Attributes[attribute] != "" {
		return "", false
	}
	return n.Attributes[attribute+structs.LacksSuffix], true
}

// feasibleOn tells whether a node satisfies everything but amounts; used where a single node is in question.
func (a *ask) feasibleOn(n *structs.Node) bool { return a.suits(n) && a.suitsNode(n) }

// mayStay is feasibleOn for what runs there already. Taints keep new work off; what no-execute moves, the servers tell to.
func (a *ask) mayStay(n *structs.Node) bool {
	b := *a
	b.stays = true
	return b.feasibleOn(n)
}

// Suits is the part of feasibleOn that nodes of a class share.
func (a *ask) suits(n *structs.Node) bool {
	if !inPool(a.job, n) || !inDatacenter(a.job, n) {
		return false
	}
	if _, bad := a.refuses(n); bad {
		return false
	}
	for i := range a.devices {
		if !a.devices[i].perNode && len(a.devices[i].choices(n)) == 0 {
			return false
		}
	}
	return true
}

// suitsNode is the part of feasibleOn that is unique to a node.
func (a *ask) suitsNode(n *structs.Node) bool {
	for i := range a.perNode {
		if !a.perNode[i].holds(n) {
			return false
		}
	}
	for i := range a.devices {
		if a.devices[i].perNode && len(a.devices[i].choices(n)) == 0 {
			return false
		}
	}
	return true
}

// networkByAlias is the position of a node's network by host_network name, or -1. "" and "default" are the first one
// when none is called so.
func networkByAlias(n *structs.Node, alias string) int {
	if alias == "" {
		alias = "default"
	}
	for i := range n.Resources.Networks {
		if n.Resources.Networks[i].Alias == alias {
			return i
		}
	}
	if alias == "default" {
		return 0
	}
	return -1
}

func networkIP(n *structs.Node, at int) string {
	if at < len(n.Resources.Networks) {
		return n.Resources.Networks[at].IP
	}
	return ""
}

// equip picks ports, cores and devices for one allocation on a node. It only picks what is free in o, less what the
// allocations in yields hold (the placement will wait for those).
func (a *ask) equip(n *structs.Node, o model.Occupancy, choices [][]deviceChoice, id structs.AllocID, yields []structs.AllocID,
	k *picker) (*model.Held, shortageOf) {
	h := &model.Held{ID: id, Need: a.need, Work: model.HeldWork{Job: a.job, Group: a.tg.Name}}
	if len(a.static)+len(a.dynamic)+len(a.devices)+len(a.cores)+len(yields) == 0 {
		return h, shortageOf{}
	}
	h.Rare = &model.HeldRare{Waits: yields}
	free := o.Hold
	if len(yields) > 0 {
		var rest []*model.Held
		for e := range o.Hold.All() {
			if !slices.Contains(yields, e.ID) {
				rest = append(rest, e)
			}
		}
		free = model.Occupied(n, rest).Hold
	}
	if free == nil {
		free = &model.Holding{}
	}
	if s := a.pickPorts(n, free, h); s.Dim != structs.DimensionNone {
		return nil, s
	}
	if s := a.pickCores(n, free, choices, h, k); s.Dim != structs.DimensionNone {
		return nil, s
	}
	if len(a.devices) > 0 {
		h.Rare.Grants = k.grants(a, n)
	}
	return h, shortageOf{}
}

// shortageOf is a shortage with what exactly is short.
type shortageOf struct {
	model.Shortage
	by        structs.Obstacle // the zero value: the resource as a whole
	reserved  bool             // it is free, but promised to others
	unhealthy bool             // there would be enough if all devices were healthy
	tooSmall  bool             // no device of the node is large enough, even unused
	largest   int64            // of GPU memory or compute: the most that is free on one GPU
	free      int64            // GPU memory free on all GPUs that are too full, MiB
	asked     int64            // GPU memory asked for in all, MiB
	apart     bool             // there are enough, but not close enough to each other
}

// portTakenBy is the obstacle of a port that is not free.
func portTakenBy(port int) structs.Obstacle {
	return structs.Obstacle{Dimension: structs.DimensionPort, Count: int64(port)}
}

func (a *ask) pickPorts(n *structs.Node, free *model.Holding, h *model.Held) shortageOf {
	var taken []uint32
	busy := func(net, port int) bool {
		return slices.Contains(taken, model.PortKey(net, port)) || model.PortTaken(free, net, port) || slices.Contains(n.Reserved.Ports, port)
	}
	give := func(p *structs.Port, net, value int) {
		taken = append(taken, model.PortKey(net, value))
		to := p.To
		if to == -1 {
			to = value
		}
		h.Rare.Ports = append(h.Rare.Ports, structs.PortGrant{Label: p.Label, Value: value, To: to, HostIP: networkIP(n, net)})
	}
	for i := range a.static {
		p := &a.static[i]
		net := networkByAlias(n, p.HostNetwork)
		if net < 0 || busy(net, p.Value) && !p.IgnoreCollision {
			return shortageOf{Shortage: model.Shortage{Dim: structs.DimensionPorts, Short: 1}, by: portTakenBy(p.Value)}
		}
		give(p, net, p.Value)
	}
	lo, hi := n.Resources.DynamicPortMin, n.Resources.DynamicPortMax
	if lo <= 0 || hi < lo || hi > 65535 {
		lo, hi = structs.DynamicPortMin, structs.DynamicPortMax
	}
	// Where the search starts depends on the allocation's id, so that a port just left is not taken again at once.
	at := 0
	for _, b := range h.ID[10:16] {
		at = (at<<8 | int(b)) & 0xffffffff
	}
	span := hi - lo + 1
	at %= span
	for i := range a.dynamic {
		p := &a.dynamic[i]
		net := networkByAlias(n, p.HostNetwork)
		found := false
		for tries := 0; tries < span && net >= 0; tries++ {
			port := lo + at
			at = (at + 1) % span
			if !busy(net, port) {
				give(p, net, port)
				found = true
				break
			}
		}
		if !found {
			return shortageOf{Shortage: model.Shortage{Dim: structs.DimensionPorts, Short: 1}, by: structs.Obstacle{Dimension: structs.DimensionDynamicPorts}}
		}
	}
	return shortageOf{}
}

// pickIsland chooses count of the open instances of a group, of one island if one has enough: the smallest such island.
// most is how many of one island there are, at most count; what has no island counts as one of its own.
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

// fellows adds the devices of a node that members of the ask's own gang share.
func (a *ask) fellows(n *structs.Node, hold *model.Holding, to model.Bitset) model.Bitset {
	for h := range hold.All() {
		if h.Rare == nil || !h.Work.Of(a.job, a.tg.Name) {
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

// add counts one more node.
func (t *refusal) add(short, largest, free, asked int64) {
	t.Nodes++
	if short > 0 && (t.Short == 0 || short < t.Short) {
		t.Short = short
	}
	t.Largest, t.free, t.asked = max(t.Largest, largest), t.free+free, max(t.asked, asked)
}

// unlimitable is the obstacle on a node that has the GPUs of a request, but none whose power limit can be set as it wants; the zero
// value otherwise.
func (d *deviceAsk) unlimitable(n *structs.Node) structs.Obstacle {
	for i := range d.alts {
		alt := &d.alts[i]
		if alt.watts == 0 {
			continue
		}
		all := deviceAsk{alts: []deviceAlt{*alt}}
		all.alts[0].checks = alt.checks[:len(alt.checks)-len(powerRange(alt.watts))]
		have := all.choices(n)
		if len(have) == 0 {
			continue
		}
		g := &n.Resources.Devices[have[0].group]
		least, most := g.Attributes["power_min"].Int, g.Attributes["power_max"].Int
		if least <= 0 || most <= 0 {
			return structs.Obstacle{Dimension: structs.DimensionPowerLimit, Subject: alt.label(), Count: alt.watts}
		}
		return structs.Obstacle{Dimension: structs.DimensionPowerLimit, Subject: g.ID(), Count: alt.watts, Detail: fmt.Sprintf("%d to %d", least, most)}
	}
	return structs.Obstacle{}
}

// islandOf names the part of a node, at a level within it, that a device belongs to; "" when it is not known.
func islandOf(in *structs.DeviceInstance, level string) string {
	if level == model.InsideNUMA {
		if in.NUMANode < 0 {
			return ""
		}
		return "numa " + strconv.Itoa(int(in.NUMANode))
	}
	return in.Island
}

// promisedTo makes of a shortage that what is short is there, and promised.
func (x *shortageOf) promisedTo(k structs.JobKey) {
	if x.by == (structs.Obstacle{}) {
		x.by.Dimension = x.Dim
	}
	x.by.Holder = structs.Holder{Kind: structs.HolderJob, Name: k.ID}
	x.reserved, x.unhealthy, x.apart, x.tooSmall = true, false, false, false
}
