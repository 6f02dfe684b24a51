package fsm

import (
	"bytes"
	"maps"
	"path"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// editNode edits a copy of a node and stores it. Its epoch moves only if something changed that a plan's verification
// depends on.
func (x *tx) editNode(old *structs.Node, edit func(*structs.Node)) *structs.Node {
	n := *old
	edit(&n)
	n.ModifyIndex = x.index
	n.ComputedClass = structs.ComputeClass(&n)
	if !bytes.Equal(verified(&n), verified(old)) {
		n.Epoch = x.index
	}
	state.Nodes.Put(x, &n)
	return &n
}

// verified returns the fields of a node that Verify depends on (D6), as bytes. Heartbeats, events and addresses are not
// among them.
func verified(n *structs.Node) []byte {
	c := structs.Node{
		Datacenter: n.Datacenter, Pool: n.Pool, Class: n.Class, Attributes: n.Attributes, Meta: n.Meta,
		Resources: n.Resources, Reserved: n.Reserved, HostVolumes: n.HostVolumes, Overcommit: n.Overcommit, PowerBudgetW: n.PowerBudgetW,
		Status: n.Status, Eligibility: n.Eligibility, Drain: n.Drain, Tainted: n.Tainted,
	}
	c.Drivers = make(map[string]*structs.DriverInfo, len(n.Drivers))
	for name, d := range n.Drivers {
		c.Drivers[name] = &structs.DriverInfo{Detected: d.Detected, Healthy: d.Healthy, Attributes: d.Attributes}
	}
	return pack.Append(nil, &c)
}

func hasNil(m map[string]*structs.DriverInfo) bool {
	for _, d := range m {
		if d == nil {
			return true
		}
	}
	return false
}

// addEvent adds an event to a node. An agent that did not hear the answer sends its events again: an event that is
// there already, with the same time, is not added twice.
func (x *tx) addEvent(n *structs.Node, e *structs.NodeEvent) {
	if e == nil || e.Time != 0 && slices.ContainsFunc(n.Events, func(had structs.NodeEvent) bool { return sameEvent(&had, e) }) {
		return
	}
	c := *e
	c.CreateIndex = x.index
	if c.Time == 0 {
		c.Time = x.time
	}
	from := max(0, len(n.Events)+1-structs.NodeEventsKept)
	n.Events = append(slices.Clone(n.Events[from:]), c)
}

func sameEvent(a, b *structs.NodeEvent) bool {
	return a.Time == b.Time && a.Subsystem == b.Subsystem && a.Message == b.Message && maps.Equal(a.Details, b.Details)
}

func nodeNotFound(id structs.NodeID) *structs.Error {
	return structs.Errorf(structs.CodeNotFound, "node %s does not exist", id)
}

func applyNodeRegister(x *tx, c *structs.NodeRegisterCommand) *structs.Error {
	if c.Node == nil || c.Node.ID.IsZero() || c.Node.SecretID.IsZero() {
		return structs.Errorf(structs.CodeInvalid, "a node registers with an id and a secret")
	}
	if hasNil(c.Node.Drivers) {
		return structs.Errorf(structs.CodeInvalid, "node %s registers a driver without saying how it is", c.Node.ID)
	}
	old := state.Nodes.Get(x, c.Node.ID)
	if old != nil && old.SecretID != c.Node.SecretID {
		return structs.Errorf(structs.CodeDenied, "node %s is registered with another secret", c.Node.ID)
	}
	if c.Unregister {
		if old == nil {
			return nodeNotFound(c.Node.ID)
		}
		return x.purgeNode(old)
	}
	n := *c.Node
	if n.Pool == "" {
		n.Pool = structs.NodePoolDefault
	}
	if n.Datacenter == "" {
		n.Datacenter = structs.DatacenterDefault
	}
	if n.Pool == structs.NodePoolAll {
		return structs.Errorf(structs.CodeInvalid, "node %s cannot be in the built-in pool %q, which has every node", n.ID, n.Pool)
	}
	if state.Pools.Get(x, n.Pool) == nil {
		state.Pools.Put(x, &structs.NodePool{Name: n.Pool, CreateIndex: x.index, ModifyIndex: x.index})
	}
	if old == nil && c.Introduction != "" {
		intro := state.Introductions.Get(x, c.Introduction)
		if intro == nil {
			return structs.ErrIntroductionUnknown
		}
		if err := intro.Admits(&n, x.time); err != nil {
			return err
		}
		state.Introductions.Delete(x, c.Introduction)
	}
	// The server's fields are kept; the agent's values of them are ignored.
	pool := state.Pools.Get(x, n.Pool)
	n.Overcommit, n.PowerBudgetW = pool.Overcommit, pool.PowerBudgetW
	if old == nil {
		n.Status, n.Eligibility, n.StatusAt = structs.NodeInit, structs.NodeEligible, x.time
		n.StatusDesc, n.SilentAt, n.Drain, n.LastDrain, n.Tainted, n.Events, n.Periods, n.GPUFaults = "", 0, nil, nil, nil, nil, nil, nil
		n.CreateIndex, n.ModifyIndex, n.Epoch = x.index, x.index, x.index
		x.addEvent(&n, &structs.NodeEvent{Message: "Node registered", Subsystem: "Cluster"})
		n.ComputedClass = structs.ComputeClass(&n)
		state.Nodes.Put(x, &n)
		return nil
	}
	n.Status, n.StatusDesc, n.StatusAt, n.SilentAt = old.Status, old.StatusDesc, old.StatusAt, old.SilentAt
	n.Eligibility, n.Drain, n.LastDrain, n.Tainted, n.Events, n.Periods, n.GPUFaults = old.Eligibility, old.Drain, old.LastDrain, old.Tainted, old.Events, old.Periods, old.GPUFaults
	n.CreateIndex, n.ModifyIndex, n.Epoch, n.ComputedClass = old.CreateIndex, old.ModifyIndex, old.Epoch, old.ComputedClass
	if bytes.Equal(pack.Append(nil, &n), pack.Append(nil, old)) {
		return nil // the agent repeats itself
	}
	now := x.editNode(old, func(to *structs.Node) {
		*to = n
		x.addEvent(to, &structs.NodeEvent{Message: "Node re-registered", Subsystem: "Cluster"})
		if x.Has(feature.GPUFaults) {
			if d := to.Broke(old, x.time); d != nil {
				x.addEvent(to, &structs.NodeEvent{Message: "A GPU failed; it counts as a loss of the node", Subsystem: "Cluster", Details: map[string]string{"gpu": d.ID, "reason": d.HealthDesc}})
			}
		}
	})
	if now.Epoch == x.index && now.Ready() {
		x.systemEvals(now)
	}
	return nil
}

// introductionsMax limits the introductions that were neither used nor have expired.
const introductionsMax = 10_000

func applyIntroduce(x *tx, c *structs.IntroduceCommand) *structs.Error {
	if c.Introduction == nil || c.Introduction.Hash == "" || c.Introduction.ExpiresAt == 0 {
		return structs.Errorf(structs.CodeInvalid, "an introduction has a hash and an expiry")
	}
	live := 0
	var expired []string
	for i := range state.Introductions.All(x) {
		if x.time >= i.ExpiresAt {
			expired = append(expired, i.Hash)
		} else {
			live++
		}
	}
	for _, hash := range expired {
		state.Introductions.Delete(x, hash)
	}
	if live >= introductionsMax {
		return structs.Errorf(structs.CodeBusy, "%d introduction tokens wait to be used; use them, or wait until some have expired", live)
	}
	n := *c.Introduction
	n.CreateIndex = x.index
	state.Introductions.Put(x, &n)
	return nil
}

func applyNodeStatus(x *tx, c *structs.NodeStatusCommand) *structs.Error {
	old := state.Nodes.Get(x, c.ID)
	if old == nil {
		return nodeNotFound(c.ID)
	}
	switch c.Status {
	case structs.NodeInit, structs.NodeReady, structs.NodeDown, structs.NodeDisconnected:
	default:
		return structs.Errorf(structs.CodeInvalid, "node status %q; want initializing, ready, down or disconnected", c.Status)
	}
	if old.Status == c.Status && old.StatusDesc == c.Desc && c.Event == nil {
		return nil
	}
	now := x.editNode(old, func(n *structs.Node) {
		n.Status, n.StatusDesc = c.Status, c.Desc
		if old.Status != c.Status {
			if x.Has(feature.ReadyPeriods) {
				n.Turned(old.Status, x.time, c.Silent)
			}
			n.StatusAt = x.time
		}
		switch {
		case !c.Silent:
			n.SilentAt = 0
		case n.SilentAt == 0: // otherwise it has been silent since it was disconnected
			n.SilentAt = x.time
		}
		x.addEvent(n, c.Event)
	})
	if old.Status == now.Status {
		return nil
	}
	if now.Status != structs.NodeInit {
		x.nodeEvals(now, structs.TriggerNodeUpdate)
	}
	if now.Ready() {
		x.systemEvals(now)
	}
	return nil
}

// nodeEvals creates the evaluations of every job that holds something on a node.
func (x *tx) nodeEvals(n *structs.Node, trigger structs.Trigger) {
	for _, a := range x.AllocsByNode(n.ID) {
		if structs.Holds(a) || (a.Desired == structs.DesiredRun && a.Client == structs.ClientLost) {
			x.evalOf(a, trigger, func(e *structs.Evaluation) { e.NodeID, e.NodeIndex = n.ID, x.index })
		}
	}
}

// systemEvals creates the evaluations of the system jobs that belong on a node that has become ready.
func (x *tx) systemEvals(n *structs.Node) {
	for _, j := range x.SystemJobs() {
		if j.Status == structs.JobDead || j.NodePool != structs.NodePoolAll && j.NodePool != n.Pool {
			continue // an ended sysbatch job does not start again on a new node
		}
		if !slices.ContainsFunc(j.Datacenters, func(pattern string) bool {
			ok, err := path.Match(pattern, n.Datacenter)
			return err == nil && ok
		}) {
			continue
		}
		x.newEval(j, structs.TriggerNodeUpdate, func(e *structs.Evaluation) { e.NodeID, e.NodeIndex = n.ID, x.index })
	}
}

func applyNodeEligibility(x *tx, c *structs.NodeEligibilityCommand) *structs.Error {
	old := state.Nodes.Get(x, c.ID)
	switch {
	case old == nil:
		return nodeNotFound(c.ID)
	case c.Eligibility != structs.NodeEligible && c.Eligibility != structs.NodeIneligible:
		return structs.Errorf(structs.CodeInvalid, "eligibility %q; want eligible or ineligible", c.Eligibility)
	case c.Eligibility == structs.NodeEligible && old.Drain != nil:
		return structs.Errorf(structs.CodeConflict, "node %s is draining and cannot be eligible; cancel the drain first", c.ID)
	case old.Eligibility == c.Eligibility && c.Event == nil:
		return nil
	}
	now := x.editNode(old, func(n *structs.Node) {
		n.Eligibility = c.Eligibility
		x.addEvent(n, c.Event)
	})
	if !old.Ready() && now.Ready() {
		x.systemEvals(now)
		x.nodeEvals(now, structs.TriggerNodeUpdate)
	}
	return nil
}

// applyNodeDrain starts, changes or ends a drain.
//
//	not draining --Strategy--> draining --nil, Complete--> not draining ("complete")
//	                                    \--nil-----------> not draining ("canceled")
func applyNodeDrain(x *tx, c *structs.NodeDrainCommand) *structs.Error {
	old := state.Nodes.Get(x, c.ID)
	if old == nil {
		return nodeNotFound(c.ID)
	}
	now := x.editNode(old, func(n *structs.Node) {
		var rec structs.DrainRecord
		if n.LastDrain != nil {
			rec = *n.LastDrain
		}
		rec.UpdatedAt, rec.Accessor = x.time, x.cmd.By.Accessor
		if x.Has(feature.DecisionActors) && !c.Complete {
			rec.By = actor(&x.cmd.By)
		}
		if c.Meta != nil {
			rec.Meta = c.Meta
		}
		switch {
		case c.Strategy != nil:
			s := *c.Strategy
			s.StartedAt = x.time
			if old.Drain != nil {
				s.StartedAt = old.Drain.StartedAt
			} else {
				rec.StartedAt, rec.Meta = x.time, c.Meta
			}
			switch {
			case s.Deadline > 0:
				s.ForceAt = x.time.Add(s.Deadline)
			case s.Deadline < 0:
				s.ForceAt = x.time
			default:
				s.ForceAt = 0
			}
			n.Drain, n.Eligibility, rec.Status = &s, structs.NodeIneligible, "draining"
			n.LastDrain = &rec
		default:
			if old.Drain != nil {
				rec.Status = "canceled"
				if c.Complete {
					rec.Status = "complete"
				}
				n.LastDrain = &rec
			}
			n.Drain = nil
			if c.MarkEligible {
				n.Eligibility = structs.NodeEligible
			}
		}
		x.addEvent(n, c.Event)
	})
	if c.Strategy != nil && old.Drain == nil {
		x.nodeEvals(now, structs.TriggerNodeDrain)
	}
	if !old.Ready() && now.Ready() {
		x.systemEvals(now)
		x.nodeEvals(now, structs.TriggerNodeUpdate)
	}
	return nil
}

// applyNodeTaint sets and removes taints. A leader service stops work that has to leave the node.
func applyNodeTaint(x *tx, c *structs.NodeTaintCommand) *structs.Error {
	old := state.Nodes.Get(x, c.ID)
	if old == nil {
		return nodeNotFound(c.ID)
	}
	taints, err := old.Retaint(c.Add, c.Remove, x.time)
	if err != nil {
		return err
	}
	if slices.Equal(taints, old.Tainted) {
		return nil
	}
	now := x.editNode(old, func(n *structs.Node) {
		n.Tainted = taints
		x.addEvent(n, c.Event)
	})
	if now.Ready() {
		x.systemEvals(now)
	}
	return nil
}

func applyNodeEvent(x *tx, c *structs.NodeEventCommand) *structs.Error {
	if len(c.Events) == 0 {
		return structs.Errorf(structs.CodeInvalid, "the command carries no node event")
	}
	for _, id := range c.IDs {
		old := state.Nodes.Get(x, id)
		if old == nil {
			continue // purged meanwhile; the others still get their events
		}
		x.editNode(old, func(n *structs.Node) {
			for i := range c.Events {
				x.addEvent(n, &c.Events[i])
			}
		})
	}
	return nil
}

func applyNodePurge(x *tx, c *structs.NodePurgeCommand) *structs.Error {
	for _, id := range c.IDs {
		n := state.Nodes.Get(x, id)
		if n == nil {
			return nodeNotFound(id)
		}
		if err := x.purgeNode(n); err != nil {
			return err
		}
	}
	return nil
}

// purgeNode deletes a node and marks its remaining allocations lost.
func (x *tx) purgeNode(n *structs.Node) *structs.Error {
	for _, a := range x.AllocsByNode(n.ID) {
		if !structs.Holds(a) {
			continue
		}
		c := *a
		c.Client, c.ClientDesc = structs.ClientLost, "node was purged"
		if c.Desired == structs.DesiredRun {
			c.Desired, c.DesiredDesc = structs.DesiredStop, "node was purged"
		}
		if c.FinishedAt == 0 {
			c.FinishedAt = x.time
		}
		x.lostWithNode(&c)
		x.loses(&c, a.Desired == structs.DesiredRun)
		x.serverWrote(&c)
		x.evalOf(a, structs.TriggerNodeUpdate, func(e *structs.Evaluation) { e.NodeID, e.NodeIndex = n.ID, x.index })
	}
	state.Nodes.Delete(x, n.ID)
	return nil
}
