package search

import (
	"cmp"
	"slices"
	"strings"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// judge checks an ask against a class, by one of its nodes.
func (s *Search) judge(v *Verdict, n *structs.Node) {
	a := s.Ask
	v.class, v.dc, v.node = n.Class, n.Datacenter, n
	v.gpus, v.reserve, v.rent = model.HasGPUs(n), n.GPUReserveMiB(), -1
	v.Outside, v.Far = !match.InPool(a.Job, n), !match.InDatacenter(a.Job, n)
	if v.Outside || v.Far {
		return
	}
	if r, bad := a.Refuses(n); bad {
		v.Refused = 1 + s.refusalOf(r)
		return
	}
	v.shunned = slices.ContainsFunc(n.Taints(), func(t structs.Taint) bool {
		return t.Effect == structs.TaintPreferNoSchedule && !t.Tolerated(a.Job.Tolerations)
	})
	for i := range a.Wishes {
		v.wishes += a.Wishes[i].Fulfilled(a.Wishes[i].Cond.Holds(n))
	}
	v.local, v.cheap = s.local(n), s.cheap(n)
	for i := range a.Devices {
		d := &a.Devices[i]
		c := d.Choices(n)
		if x := a.ClosedOn(i, n); len(c) == 0 && x != nil {
			r := match.Refused(structs.ReasonQuota, x.By, structs.EventQueueUsage)
			r.Short, r.Unit = structs.GPUsShort(x.Short)
			v.Refused = 1 + s.refusalOf(r)
			return
		}
		if len(c) == 0 {
			v.Refused = 1 + s.refusalOf(match.Refused(structs.ReasonConstraint, cmp.Or(d.Unlimitable(n), d.Alts[0].Missing()), structs.EventNodeJoined))
			return
		}
		v.liked += c[0].Micro / int64(len(a.Devices))
		v.Choices = append(v.Choices, c)
	}
	if r, bad := a.RefusesDrivers(n); bad {
		v.Refused = 1 + s.refusalOf(r)
		return
	}
	for i := range a.Spreads {
		at := int32(-1)
		if !a.Spreads[i].PerNode {
			at = s.spreads[i].value(match.Resolve(a.Spreads[i].Target, n))
		}
		v.spread = append(v.spread, at)
	}
	for i := range a.Distinct {
		at := int32(-1)
		if !a.Distinct[i].PerNode {
			at = s.props[i].value(match.Resolve(a.Distinct[i].Target, n))
		}
		v.props = append(v.props, at)
	}
	if v.cell = 0; len(a.Spreads) > 0 {
		if v.cell = -1; !slices.Contains(v.spread, -1) {
			v.cell = s.cellOf(v.spread)
		}
	}
}

// refusalOf finds or adds the counter of a refusal.
func (s *Search) refusalOf(r match.Refusal) int {
	for i := range s.refusals {
		if s.refusals[i].Code == r.Code && s.refusals[i].Obstacle == r.Obstacle {
			return i
		}
	}
	r.Free = 0 // refuse adds it up
	s.refusals = append(s.refusals, r)
	return len(s.refusals) - 1
}

// refuse counts one more node for a reason.
func (s *Search) refuse(r match.Refusal) {
	s.refusals[s.refusalOf(r)].Add(r.Short, r.Largest, r.Free, r.Asked)
}

// exhausted counts one more node for a shortage.
func (s *Search) exhausted(v *Verdict, x match.ShortageOf) {
	v.exhausted++
	if x.By == nil {
		t := &s.amounts[x.Dim]
		t.nodes++
		if t.short == 0 || x.Short < t.short {
			t.short = x.Short
		}
		return
	}
	if l := &s.lastShort; s.lastRefusal > 0 && x.Dim == l.Dim && x.SameBy(l) && x.Reserved == l.Reserved && x.Unhealthy == l.Unhealthy &&
		x.TooSmall == l.TooSmall && x.Apart == l.Apart && x.Dim != structs.DimensionPorts { // nodes are often refused for the same
		s.refusals[s.lastRefusal-1].Add(x.Short, x.Largest, x.Free, x.Asked)
		return
	}
	r := match.Refused(structs.ReasonResources, *x.By, structs.EventAllocStopped)
	r.Short, r.Unit, r.Largest = x.Short, model.UnitOf[x.Dim], x.Largest
	if x.Reserved { // an end, another job's placement or time alone may cure it
		r.Code, r.CuredBy = structs.ReasonReservation, structs.EventNone
	}
	if x.Unhealthy {
		r.Code, r.CuredBy = structs.ReasonDeviceUnhealthy, structs.EventDeviceHealthy
	}
	if x.TooSmall {
		r.CuredBy = structs.EventNodeJoined
	}
	if x.Apart {
		r.Code = structs.ReasonTopology
	}
	r.Free, r.Asked = x.Free, x.Asked
	if x.Dim == structs.DimensionPorts {
		r.Short, r.Unit = 0, structs.UnitNone
	}
	s.refuse(r)
	s.lastShort, s.lastRefusal = x, 1+s.refusalOf(r)
}

// exhaustedAll counts n nodes of a class for the same shortage.
func (s *Search) exhaustedAll(v *Verdict, x match.ShortageOf, n int64) {
	s.exhausted(v, x)
	v.exhausted += n - 1
	if x.By == nil {
		s.amounts[x.Dim].nodes += n - 1
		return
	}
	r := &s.refusals[s.lastRefusal-1]
	r.Nodes, r.Free = r.Nodes+n-1, r.Free+(n-1)*x.Free
}

// otherMIG returns what there is instead of instances of a MIG profile: the profiles that nodes of the job's pool have,
// and how many GPUs an operator could partition that way. It looks at every node, so only reports of waiting jobs call
// it.
func (s *Search) otherMIG(profile string) (profiles string, divisible int64) {
	var have []string
	for _, c := range s.w.View.Chunks {
		for _, n := range c.Nodes {
			if !match.InPool(s.Ask.Job, n) || !match.InDatacenter(s.Ask.Job, n) {
				continue
			}
			for i := range n.Resources.Devices {
				if p := n.Resources.Devices[i].MIGProfile(); p != "" && !slices.Contains(have, p) {
					have = append(have, p)
				}
			}
			for i := range n.Resources.MIG {
				if slices.ContainsFunc(n.Resources.MIG[i].Profiles, func(p structs.MIGProfile) bool { return p.Name == profile }) {
					divisible++
				}
			}
		}
	}
	slices.Sort(have)
	return strings.Join(have, ", "), divisible
}

// peersRefuse is refuses after a refresh.
func (s *Search) peersRefuse(row int) (match.Refusal, bool) {
	if s.peers == nil {
		return match.Refusal{}, false
	}
	s.peers.refresh(s.Ask, s.w)
	return s.peers.refuses(row)
}

func (s *Search) verdict(row int) *Verdict {
	c, i := s.w.View.At(row)
	return s.ClassVerdict(&c.Classes[c.Class[i]])
}

// ClassVerdict returns the verdict on a class of nodes.
func (s *Search) ClassVerdict(nc *model.NodeClass) *Verdict {
	v := s.verdicts[nc.Num]
	if v == nil {
		if len(s.slab) == 0 {
			s.slab = make([]Verdict, min(64, max(1, len(s.verdicts)-len(s.list))))
		}
		v, s.slab = &s.slab[0], s.slab[1:]
		v.hash = nc.Hash
		s.judge(v, nc.Node)
		s.verdicts[nc.Num] = v
		s.list = append(s.list, v)
	}
	return v
}
