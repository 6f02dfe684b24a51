// Package events turns applied changes into events and keeps the newest ones for readers.
package events

import (
	"slices"
	"sync"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Limits of the event ring and its readers.
const (
	ringEvents  = 16384 // events kept; a reader that asks for older ones gets a gap
	ringBatches = 8192
)

// Ring keeps the newest events for event streams.
type Ring struct {
	mu      sync.Mutex
	batches []methods.EventBatch // ascending by index
	events  int
	floor   structs.Index // events at or below this index are gone
	changed chan struct{} // closed and replaced by Feed
}

// NewRing returns an empty ring.
func NewRing() *Ring { return &Ring{changed: make(chan struct{})} }

// Feed adds the events of an applied batch.
func (r *Ring) Feed(a replica.Applied) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.Lost || a.Delta.Restored {
		r.batches, r.events, r.floor = nil, 0, a.Index
	} else if evs := append(append(Of(a.Delta), Missed(a)...), configured(a)...); len(evs) > 0 {
		r.batches = append(r.batches, methods.EventBatch{Index: a.Index, Events: evs})
		r.events += len(evs)
		drop := 0
		for (r.events > ringEvents || len(r.batches)-drop > ringBatches) && drop < len(r.batches)-1 {
			r.events -= len(r.batches[drop].Events)
			r.floor = r.batches[drop].Index
			drop++
		}
		// Dropped batches are cleared. The array still reaches them, and their events keep old versions of rows alive.
		clear(r.batches[:drop])
		r.batches = r.batches[drop:]
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// Oldest returns the index after which no event is missing.
func (r *Ring) Oldest() structs.Index {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.floor
}

// After returns the batches after an index, whether some of them are gone, and a channel that is closed when there may
// be more.
func (r *Ring) After(index structs.Index) (list []methods.EventBatch, gap bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gap = index < r.floor
	lo, hi := 0, len(r.batches)
	for lo < hi {
		mid := (lo + hi) / 2
		if r.batches[mid].Index <= index {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return slices.Clone(r.batches[lo:]), gap, r.changed
}

// Missed returns an event for each job that missed its deadline: when the miss is written, or, for a job that ended
// late before that, with its accounting record.
func Missed(a replica.Applied) (out []methods.Event) {
	for i := range a.Delta.Workloads {
		c := &a.Delta.Workloads[i]
		w := c.Either()
		k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		missed := w.Missed != 0
		if c.After == nil {
			missed = slices.ContainsFunc(a.Delta.Acct, func(r structs.Changed[structs.AcctRecord]) bool {
				return r.After != nil && r.After.Missed && r.After.Key() == k
			})
		}
		if missed && (c.Before == nil || c.Before.Missed == 0) {
			out = append(out, methods.Event{Topic: "Job", Type: "JobDeadlineMissed", Key: w.JobID, Namespace: w.Namespace, Index: a.Index, Job: a.Snapshot.JobByKey(k)})
		}
	}
	return out
}

// Of returns the events of a delta.
func Of(d structs.Delta) []methods.Event {
	out := make([]methods.Event, 0, len(d.Jobs)+len(d.Evals)+len(d.Allocs)+len(d.Nodes)) // nearly all of them; the ring keeps the slice
	typeOf := func(i structs.Index) structs.CommandType { return d.Causes[i].Type }
	for _, c := range d.Jobs {
		x := c.Either()
		ev := methods.Event{Topic: "Job", Type: "JobRegistered", Key: x.ID, Namespace: x.Namespace, Index: d.Index, Job: x}
		if c.After == nil {
			ev.Type = "JobDeregistered"
		} else {
			ev.Index = x.ModifyIndex
			switch t := typeOf(x.ModifyIndex); {
			case c.After.Stop && (c.Before == nil || !c.Before.Stop):
				ev.Type = "JobDeregistered"
			case t == fsm.TypeOf[*structs.ScaleCommand]():
				ev.Type = "JobRegistered"
			case t == fsm.TypeOf[*structs.JobPriorityCommand]():
				ev.Type = "JobPriorityChanged"
			case isPlan(t):
				ev.Type = "PlanResult"
			case t == fsm.TypeOf[*structs.AllocObservedCommand]():
				ev.Type = "AllocationUpdated"
			case t == fsm.TypeOf[*structs.EvalUpsertCommand]():
				ev.Type = "EvaluationUpdated"
			}
		}
		if x.ParentID != "" {
			ev.FilterKeys = []string{x.ParentID}
		}
		out = append(out, ev)
	}
	for _, c := range d.Evals {
		if c.After == nil {
			continue
		}
		x := c.After
		ev := methods.Event{Topic: "Evaluation", Type: "EvaluationUpdated", Key: x.ID.String(), Namespace: x.Namespace, Index: x.ModifyIndex, Eval: x, FilterKeys: []string{x.JobID}}
		if isPlan(typeOf(x.ModifyIndex)) {
			ev.Type = "PlanResult"
		}
		out = append(out, ev)
	}
	for _, c := range d.Allocs {
		if c.After == nil {
			continue
		}
		x := c.After
		ev := methods.Event{Topic: "Allocation", Type: "AllocationUpdated", Key: x.ID.String(), Namespace: x.Namespace, Index: x.ModifyIndex, Alloc: x, FilterKeys: []string{x.JobID}}
		switch t := typeOf(x.ModifyIndex); {
		case isPlan(t):
			ev.Type = "PlanResult"
		case t == fsm.TypeOf[*structs.AllocTransitionCommand](), t == fsm.TypeOf[*structs.SuspendCommand]():
			ev.Type = "AllocationUpdateDesiredStatus"
		}
		if !x.Lineage().DeploymentID.IsZero() {
			ev.FilterKeys = append(ev.FilterKeys, x.Lineage().DeploymentID.String())
		}
		out = append(out, ev)
	}
	for _, c := range d.Nodes {
		x := c.Either()
		ev := methods.Event{Topic: "Node", Type: "NodeRegistration", Key: x.ID.String(), Index: d.Index, Node: x}
		if c.After == nil {
			ev.Type = "NodeDeregistration"
		} else {
			ev.Index = x.ModifyIndex
			switch {
			case c.Before != nil && drainChanged(c.Before, c.After):
				ev.Type = "NodeDrain"
			case c.Before != nil && c.Before.Eligibility != c.After.Eligibility:
				ev.Type = "NodeEligibility"
			case typeOf(x.ModifyIndex) == fsm.TypeOf[*structs.NodeStatusCommand]() || typeOf(x.ModifyIndex) == fsm.TypeOf[*structs.NodeEventCommand]():
				ev.Type = "NodeEvent"
			}
		}
		out = append(out, ev)
	}
	for _, c := range d.Pools {
		x := c.Either()
		ev := methods.Event{Topic: "NodePool", Type: "NodePoolUpserted", Key: string(x.Name), Index: x.ModifyIndex, Pool: x}
		if c.After == nil {
			ev.Type, ev.Index = "NodePoolDeleted", deletedAt[*structs.PoolDeleteCommand](d)
		}
		out = append(out, ev)
	}
	for _, c := range d.Namespaces {
		x := c.Either()
		ev := methods.Event{Topic: "Namespace", Type: "NamespaceUpserted", Key: x.Name, Namespace: x.Name, Index: x.ModifyIndex, NamespaceObject: x}
		if c.After == nil {
			ev.Type, ev.Index = "NamespaceDeleted", deletedAt[*structs.NamespaceDeleteCommand](d)
		}
		out = append(out, ev)
	}
	for _, c := range d.Tokens {
		x := *c.Either()
		x.Secret = structs.SecretID{}
		ev := methods.Event{Topic: "ACLToken", Type: "ACLTokenUpserted", Key: x.Accessor.String(), Index: d.Index, Token: &x}
		if c.After == nil {
			ev.Type = "ACLTokenDeleted"
		}
		out = append(out, ev)
	}
	for _, c := range d.Services {
		x := c.Either()
		ev := methods.Event{Topic: "Service", Type: "ServiceRegistration", Key: x.ID, Namespace: x.Namespace, Index: d.Index, Service: x, FilterKeys: []string{x.JobID, x.Service}}
		if c.After == nil {
			ev.Type = "ServiceDeregistration"
		} else {
			ev.Index = x.ModifyIndex
		}
		out = append(out, ev)
	}
	for _, c := range d.Policies {
		x := c.Either()
		ev := methods.Event{Topic: "ACLPolicy", Type: "ACLPolicyUpserted", Key: x.Name, Index: d.Index, Policy: x}
		if c.After == nil {
			ev.Type = "ACLPolicyDeleted"
		}
		out = append(out, ev)
	}
	for _, c := range d.Roles {
		x := c.Either()
		ev := methods.Event{Topic: "ACLRole", Type: "ACLRoleUpserted", Key: x.ID.String(), Index: d.Index, Role: x}
		if c.After == nil {
			ev.Type = "ACLRoleDeleted"
		}
		out = append(out, ev)
	}
	out = append(out, ofQueues(d)...)
	for i := range out {
		if out[i].Node != nil {
			out[i].Node = out[i].Node.WithoutSecret()
		}
		if by := d.Causes[out[i].Index].By; by != (structs.Submitter{}) {
			out[i].By = &by
		}
	}
	return out
}

// ofQueues returns the events of queues, quotas and the reservations of operators. The scheduler's own reservations raise
// none: they change with every pass.
func ofQueues(d structs.Delta) (out []methods.Event) {
	for _, c := range d.Queues {
		x := c.Either()
		ev := methods.Event{Topic: "Queue", Type: "QueueUpserted", Key: string(x.Path), Index: x.ModifyIndex, Queue: x}
		if c.After == nil {
			ev.Type, ev.Index = "QueueDeleted", deletedAt[*structs.QueueDeleteCommand](d)
		}
		out = append(out, ev)
	}
	for _, c := range d.Quotas {
		x := c.Either()
		ev := methods.Event{Topic: "Quota", Type: "QuotaUpserted", Key: x.Name, Index: x.ModifyIndex, Quota: x}
		if c.After == nil {
			ev.Type, ev.Index = "QuotaDeleted", deletedAt[*structs.QuotaDeleteCommand](d)
		}
		out = append(out, ev)
	}
	for _, c := range d.Reserved {
		x := c.Either()
		if x.JobID != "" {
			continue
		}
		ev := methods.Event{Topic: "Reservation", Type: "ReservationUpserted", Key: x.ID, Index: x.ModifyIndex, Reservation: x}
		if c.After == nil {
			ev.Type, ev.Index = "ReservationDeleted", deletedAt[*structs.UnreserveCommand](d)
		}
		out = append(out, ev)
	}
	return out
}

// deletedAt returns the index of the newest command of a type in a batch, or that of the batch. A deleted row does not
// say which entry deleted it.
func deletedAt[C structs.CommandBody](d structs.Delta) (at structs.Index) {
	for i, c := range d.Causes {
		if c.Type == fsm.TypeOf[C]() {
			at = max(at, i)
		}
	}
	if at == 0 {
		return d.Index
	}
	return at
}

// configured returns an event for each change of the scheduler configuration.
func configured(a replica.Applied) (out []methods.Event) {
	if !a.Delta.Config || a.Snapshot == nil {
		return nil
	}
	c := a.Snapshot.SchedulerConfig()
	if a.Delta.Causes[c.ModifyIndex].Type != fsm.TypeOf[*structs.SchedulerConfigCommand]() {
		return nil
	}
	by := a.Delta.Causes[c.ModifyIndex].By
	return []methods.Event{{Topic: "Operator", Type: "SchedulerConfigUpserted", Key: "scheduler-configuration", Index: c.ModifyIndex, SchedulerConfig: c, By: &by}}
}

func isPlan(t structs.CommandType) bool {
	return t == fsm.TypeOf[*structs.PlanEntry]() || t == fsm.TypeOf[*structs.PlansCommand]()
}

func drainChanged(a, b *structs.Node) bool { return (a.Drain == nil) != (b.Drain == nil) }
