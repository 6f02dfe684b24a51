package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// verdict is what a class of equal nodes means to an ask, and what the scan has counted of its nodes.
type verdict struct {
	outside bool  // another pool: not even looked at
	far     bool  // another datacenter: counted as part of the pool only
	refused int   // 1 + place in ask's refusals list; 0: feasible
	wishes  int64 // weight fulfilled by the class
	choices [][]deviceChoice
	spread  []int32 // per spread: value number, -1 to ask per node
	props   []int32 // per distinct property: value number, -1 to ask per node
	cell    int32   // -1: depends on the node
	suits   []bool  // see scan.suits
	gpus    bool    // the class has GPUs
	shunned bool    // it has a taint that the job should rather keep away from
	hash    [16]byte
	node    *structs.Node // one of the class
	liked   int64         // of the best device choices, millionths, averaged
	local   int64         // share of the job's data that is there, millionths
	cheap   int64         // how far below the dearest node it costs, millionths

	class, dc           string
	inPool, available   int64
	filtered, exhausted int64
}

// refusal counts nodes refused for one reason.
type refusal struct {
	structs.Refusal
	free  int64 // GPU memory free on all GPUs that are too full for the ask, over all nodes counted
	asked int64 // GPU memory that one allocation asks for
}

func refused(code structs.ReasonCode, by structs.Obstacle, cure structs.EventKind) refusal {
	return refusal{Refusal: structs.Refusal{Code: code, Obstacle: by, CuredBy: cure}}
}

// judge evaluates an ask against a class, by one of its nodes.
func (s *scan) judge(v *verdict, n *structs.Node) {
	a := s.ask
	v.class, v.dc, v.node = n.Class, n.Datacenter, n
	v.gpus = model.HasGPUs(n)
	v.outside, v.far = !inPool(a.job, n), !inDatacenter(a.job, n)
	if v.outside || v.far {
		return
	}
	if r, bad := a.refuses(n); bad {
		v.refused = 1 + s.refusalOf(r)
		return
	}
	v.shunned = slices.ContainsFunc(n.Taints(), func(t structs.Taint) bool {
		return t.Effect == structs.TaintPreferNoSchedule && !t.Tolerated(a.job.Tolerations)
	})
	for i := range a.wishes {
		v.wishes += a.wishes[i].fulfilled(a.wishes[i].cond.holds(n))
	}
	v.local, v.cheap = s.local(n), s.cheap(n)
	for i := range a.devices {
		d := &a.devices[i]
		c := d.choices(n)
		if len(c) == 0 && !d.perNode {
			v.refused = 1 + s.refusalOf(refused(structs.ReasonConstraint, cmp.Or(d.unlimitable(n), d.alts[0].missing()), structs.EventNodeJoined))
			return
		}
		if len(c) > 0 {
			v.liked += c[0].micro / int64(len(a.devices))
		}
		v.choices = append(v.choices, c)
	}
	for i := range a.spreads {
		at := int32(-1)
		if !a.spreads[i].perNode {
			at = s.spreads[i].value(resolve(a.spreads[i].target, n))
		}
		v.spread = append(v.spread, at)
	}
	for i := range a.distinct {
		at := int32(-1)
		if !a.distinct[i].perNode {
			at = s.props[i].value(resolve(a.distinct[i].target, n))
		}
		v.props = append(v.props, at)
	}
	if v.cell = 0; len(a.spreads) > 0 {
		if v.cell = -1; !slices.Contains(v.spread, -1) {
			v.cell = s.cellOf(v.spread)
		}
	}
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

// refusalOf finds or makes the counter of a reason.
func (s *scan) refusalOf(r refusal) int {
	for i := range s.refusals {
		if s.refusals[i].Code == r.Code && s.refusals[i].Obstacle == r.Obstacle {
			return i
		}
	}
	r.free = 0 // refuse adds it up
	s.refusals = append(s.refusals, r)
	return len(s.refusals) - 1
}

// refuse counts one more node for a reason.
func (s *scan) refuse(r refusal) {
	s.refusals[s.refusalOf(r)].add(r.Short, r.Largest, r.free, r.asked)
}

// add counts one more node.
func (t *refusal) add(short, largest, free, asked int64) {
	t.Nodes++
	if short > 0 && (t.Short == 0 || short < t.Short) {
		t.Short = short
	}
	t.Largest, t.free, t.asked = max(t.Largest, largest), t.free+free, max(t.asked, asked)
}

// exhausted counts one more node for a shortage.
func (s *scan) exhausted(v *verdict, x shortageOf) {
	v.exhausted++
	if x.by == (structs.Obstacle{}) {
		t := &s.amounts[x.Dim]
		t.nodes++
		if t.short == 0 || x.Short < t.short {
			t.short = x.Short
		}
		return
	}
	if l := &s.lastShort; s.lastRefusal > 0 && x.Dim == l.Dim && x.by == l.by && x.reserved == l.reserved && x.unhealthy == l.unhealthy &&
		x.tooSmall == l.tooSmall && x.apart == l.apart && x.Dim != structs.DimensionPorts { // nodes are often refused for the same
		s.refusals[s.lastRefusal-1].add(x.Short, x.largest, x.free, x.asked)
		return
	}
	r := refused(structs.ReasonResources, x.by, structs.EventAllocStopped)
	r.Short, r.Unit, r.Largest = x.Short, model.UnitOf[x.Dim], x.largest
	if x.reserved { // an end, another's luck or mere time may cure it
		r.Code, r.CuredBy = structs.ReasonReservation, structs.EventNone
	}
	if x.unhealthy {
		r.Code, r.CuredBy = structs.ReasonDeviceUnhealthy, structs.EventDeviceHealthy
	}
	if x.tooSmall {
		r.CuredBy = structs.EventNodeJoined
	}
	if x.apart {
		r.Code = structs.ReasonTopology
	}
	r.free, r.asked = x.free, x.asked
	if x.Dim == structs.DimensionPorts {
		r.Short, r.Unit = 0, structs.UnitNone
	}
	s.refuse(r)
	s.lastShort, s.lastRefusal = x, 1+s.refusalOf(r)
}

func itoa(n int) string { return strconv.Itoa(n) }

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
		return "numa " + itoa(int(in.NUMANode))
	}
	return in.Island
}
