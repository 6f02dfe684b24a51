package match

import (
	"slices"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// InPool reports whether a node is in the pool of a job.
func InPool(j *structs.Job, n *structs.Node) bool {
	return j.NodePool == structs.NodePoolAll || j.NodePool == n.Pool || j.NodePool == "" && n.Pool == structs.NodePoolDefault
}

// InDatacenter reports whether a node is in one of the datacenters of a job.
func InDatacenter(j *structs.Job, n *structs.Node) bool {
	return len(j.Datacenters) == 0 || slices.ContainsFunc(j.Datacenters, func(p string) bool { return p == n.Datacenter || glob(p, n.Datacenter) })
}

// Refuses returns a refusal if a property that all nodes of a class share rules the ask out.
func (a *Ask) Refuses(n *structs.Node) (Refusal, bool) {
	for i := range a.checks {
		if !a.checks[i].Holds(n) {
			return a.checks[i].Refusal(structs.EventNodeJoined), true
		}
	}
	for _, t := range n.Taints() {
		if t.Effect != structs.TaintPreferNoSchedule && !a.stays && !t.Tolerated(a.Job.Tolerations) {
			return Cannot(structs.DimensionTaint, t.Key, t.Value, structs.EventNodeJoined), true
		}
	}
	if a.badVolume != "" {
		return Cannot(structs.DimensionVolumeType, a.badVolume, "", structs.EventJobChanged), true
	}
	for _, v := range a.volumes {
		have, known := n.HostVolumes[v.Source]
		if !known || have.ReadOnly && !v.ReadOnly {
			return Cannot(structs.DimensionMissingVolume, v.Source, "", structs.EventNodeJoined), true
		}
	}
	for _, alias := range a.networks {
		if NetworkByAlias(n, alias) < 0 {
			return Cannot(structs.DimensionMissingHostNetwork, alias, "", structs.EventNodeJoined), true
		}
	}
	if why, bad := missingNetwork(n, a.network); bad {
		return Cannot(structs.DimensionMissingNetwork, a.network, why, structs.EventNodeJoined), true
	}
	return Refusal{}, false
}

// RefusesDrivers returns a refusal if a node lacks a driver. It is asked last, after the devices: a driver can be turned
// on or get well, so it is what is in the way only where a node has everything else.
func (a *Ask) RefusesDrivers(n *structs.Node) (Refusal, bool) {
	for _, d := range a.drivers {
		info, known := n.Drivers[d]
		switch {
		case !known || !info.Detected:
			return Refused(structs.ReasonDriver, structs.Obstacle{Dimension: structs.DimensionMissingDriver, Subject: d}, structs.EventNodeJoined), true
		case !info.Healthy:
			return Refused(structs.ReasonDriver, structs.Obstacle{Dimension: structs.DimensionUnhealthyDriver, Subject: d}, structs.EventDriverHealthy), true
		}
	}
	return Refusal{}, false
}

// missingNetwork reports whether a node cannot provide a network of that mode, and why, if the node says so.
func missingNetwork(n *structs.Node, mode string) (why string, bad bool) {
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

// feasibleOn reports whether a node satisfies everything but amounts; for callers that look at a single node.
func (a *Ask) feasibleOn(n *structs.Node) bool { return a.Suits(n) && a.SuitsNode(n) }

// MayStay is feasibleOn for an allocation that runs on the node already. Only new work is kept off by taints; a
// no-execute taint moves running work by another path.
func (a *Ask) MayStay(n *structs.Node) bool {
	b := *a
	b.stays = true
	return b.feasibleOn(n)
}

// Suits is the part of feasibleOn that depends only on the node's class.
func (a *Ask) Suits(n *structs.Node) bool {
	if !InPool(a.Job, n) || !InDatacenter(a.Job, n) {
		return false
	}
	if _, bad := a.Refuses(n); bad {
		return false
	}
	for i := range a.Devices {
		if len(a.Devices[i].Choices(n)) == 0 {
			return false
		}
	}
	_, bad := a.RefusesDrivers(n)
	return !bad
}

// SuitsNode is the part of feasibleOn that is unique to a node.
func (a *Ask) SuitsNode(n *structs.Node) bool {
	for i := range a.PerNode {
		if !a.PerNode[i].Holds(n) {
			return false
		}
	}
	_, without := a.WithoutDevices(n)
	return !without
}

// NetworkByAlias returns the position of a node's network by host_network name, or -1. If no network has that name, ""
// and "default" stand for the first one.
func NetworkByAlias(n *structs.Node, alias string) int {
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

// NetworkIP returns the address of one of a node's networks.
func NetworkIP(n *structs.Node, at int) string {
	if at < len(n.Resources.Networks) {
		return n.Resources.Networks[at].IP
	}
	return ""
}

// Equip picks ports, cores and devices for one allocation on a node. It only picks what is free in o or held by an
// allocation in yields; the placement will wait for those.
func (a *Ask) Equip(n *structs.Node, o model.Occupancy, choices [][]DeviceChoice, id structs.AllocID, yields []structs.AllocID,
	k *Picker) (*model.Held, ShortageOf) {
	h := &model.Held{ID: id, Need: a.Need, Work: model.HeldWork{Job: a.Job, Group: a.Tg.Name}}
	if len(a.Static)+len(a.dynamic)+len(a.Devices)+len(a.Cores)+len(yields) == 0 {
		return h, ShortageOf{}
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
	if len(a.Devices) > 0 {
		h.Rare.Grants = k.grants(a, n)
	}
	return h, ShortageOf{}
}

func (a *Ask) pickPorts(n *structs.Node, free *model.Holding, h *model.Held) ShortageOf {
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
		h.Rare.Ports = append(h.Rare.Ports, structs.PortGrant{Label: p.Label, Value: value, To: to, HostIP: NetworkIP(n, net)})
	}
	for i := range a.Static {
		p := &a.Static[i]
		net := NetworkByAlias(n, p.HostNetwork)
		if net < 0 || busy(net, p.Value) && !p.IgnoreCollision {
			return ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionPorts, Short: 1}, By: PortTakenBy(p.Value)}
		}
		give(p, net, p.Value)
	}
	lo, hi := n.Resources.DynamicPortMin, n.Resources.DynamicPortMax
	if lo <= 0 || hi < lo || hi > 65535 {
		lo, hi = structs.DynamicPortMin, structs.DynamicPortMax
	}
	// The search starts at a place derived from the allocation's ID, so that a port that was just released is not taken
	// again at once.
	at := 0
	for _, b := range h.ID[10:16] {
		at = (at<<8 | int(b)) & 0xffffffff
	}
	span := hi - lo + 1
	at %= span
	for i := range a.dynamic {
		p := &a.dynamic[i]
		net := NetworkByAlias(n, p.HostNetwork)
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
			return ShortageOf{Shortage: model.Shortage{Dim: structs.DimensionPorts, Short: 1}, By: &structs.Obstacle{Dimension: structs.DimensionDynamicPorts}}
		}
	}
	return ShortageOf{}
}
