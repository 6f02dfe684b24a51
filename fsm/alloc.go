package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// serverWrote stores an allocation whose server-owned fields changed, and wakes the agent that waits for it.
func (x *tx) serverWrote(a *structs.Allocation) {
	a.AllocIndex, a.ModifyIndex, a.ModifyTime = x.index, x.index, x.time
	x.PutAlloc(a)
	x.touch(a.JobKey())
}

// applyAllocObserved stores what agents reported. It writes only the agent's fields, and ignores reports of allocations
// whose end has been recorded.
func applyAllocObserved(x *tx, c *structs.AllocObservedCommand) *structs.Error {
	var saving []structs.RosterKey // groups with new checkpoints
	var ended []*structs.Allocation
	for i := range c.Updates {
		u := &c.Updates[i]
		old := state.Allocs.Get(x, u.ID)
		if old == nil || old.ClientTerminal() {
			continue
		}
		switch u.Client {
		case structs.ClientPending, structs.ClientRunning, structs.ClientComplete, structs.ClientFailed, structs.ClientUnknown:
		default:
			return structs.Errorf(structs.CodeInvalid, "allocation %s observed as %q; want pending, running, complete, failed or unknown", u.ID, u.Client)
		}
		a := *old
		a.Client, a.ClientDesc, a.TaskStates = structs.Share(u.Client), structs.Share(u.ClientDesc), u.TaskStates
		if u.NetworkIP != old.NetworkIP {
			a.NetworkIP = u.NetworkIP
			x.ShareStrings(&a)
		}
		if u.Lapsed && a.ClientTerminal() {
			a.Client = structs.ClientLost
		}
		if use := structs.GrantedGPUUse(a.Grants, u.GPUUse); use != nil {
			a.GPUUse = use
		}
		if a.Saved = a.Saved.Newer(u.Saved); a.Saved != old.Saved && x.Has(feature.GangCheckpoints) {
			saving = append(saving, structs.RosterKey{Job: a.JobKey(), Group: a.Group})
		}
		a.HealthySince, a.Frozen = u.HealthySince, u.Frozen
		if a.StartedAt == 0 {
			a.StartedAt = u.StartedAt
		}
		if a.ClientTerminal() {
			if a.FinishedAt = u.FinishedAt; a.FinishedAt == 0 {
				a.FinishedAt = x.time
			}
			x.attain(&a)
			ended = append(ended, &a)
		}
		if old.Client == structs.ClientUnknown && a.Client != structs.ClientUnknown {
			a.OwnLineage().DisconnectedAt = 0
		}
		a.ClientIndex, a.ModifyIndex, a.ModifyTime = x.index, x.index, x.time
		x.PutAlloc(&a)
		x.register(&a, u.Services)
		x.touch(a.JobKey())
		if u.GangPort != 0 {
			x.rendezvous(&a, u)
		}
		if trigger := followUp(old, &a); trigger != "" {
			x.evalOf(&a, trigger, nil)
		}
	}
	x.saving(saving)
	for _, a := range ended {
		x.loses(a, a.Desired == structs.DesiredRun)
	}
	return nil
}

// followUp returns the trigger of the evaluation that a report calls for, or "".
func followUp(before, after *structs.Allocation) structs.Trigger {
	switch {
	case before.Client == structs.ClientUnknown && after.Client == structs.ClientRunning:
		return structs.TriggerReconnect
	case !after.ClientTerminal():
		return ""
	case after.Desired == structs.DesiredRun && after.Client == structs.ClientComplete && after.Job != nil && after.Job.Array != nil:
		if after.Job.Array.Concurrency > 0 {
			return structs.TriggerArray // the next index may start
		}
		return ""
	case after.Desired == structs.DesiredEvict:
		return structs.TriggerPreemption // it returns to the queue
	case after.Desired != structs.DesiredRun:
		if after.Transition.Requeue || after.Job != nil && after.Job.Requeue != nil {
			return structs.TriggerRequeue // work that returns to the queue waits for this
		}
		if after.Job != nil {
			if after.Job.Group(after.Group).IsGang() {
				return structs.TriggerAllocStop // the gang starts again when all its members have ended
			}
		}
		return ""
	case after.Client == structs.ClientFailed:
		return structs.TriggerRetryFailed
	case after.Client == structs.ClientLost: // it was ended because its node was out of touch for too long
		return structs.TriggerNodeUpdate
	case after.Job != nil && (after.Job.Type == structs.JobService || after.Job.Type == structs.JobSystem):
		return structs.TriggerRetryFailed // the job runs until stopped
	}
	return ""
}

func applyAllocTransition(x *tx, c *structs.AllocTransitionCommand) *structs.Error {
	trigger := c.Trigger
	if trigger == "" {
		trigger = structs.TriggerAllocStop
	}
	known := 0
	for _, id := range c.IDs {
		old := state.Allocs.Get(x, id)
		if old == nil {
			continue
		}
		known++
		a := *old
		a.Transition.Migrate = a.Transition.Migrate || c.Transition.Migrate
		a.Transition.Reschedule = a.Transition.Reschedule || c.Transition.Reschedule
		a.Transition.ForceReschedule = a.Transition.ForceReschedule || c.Transition.ForceReschedule
		a.Transition.NoShutdownDelay = a.Transition.NoShutdownDelay || c.Transition.NoShutdownDelay
		a.Transition.Expire = a.Transition.Expire || c.Transition.Expire
		a.Transition.Leave = a.Transition.Leave || c.Transition.Leave
		if a.Transition != old.Transition {
			x.serverWrote(&a)
		}
		x.evalOf(old, trigger, func(e *structs.Evaluation) {
			e.NodeID = old.NodeID
			e.ForceResch = c.Transition.ForceReschedule
			if n := state.Nodes.Get(x, old.NodeID); trigger == structs.TriggerNodeDrain && n != nil && n.Drain != nil && n.LastDrain != nil && n.LastDrain.By != "" {
				e.By = n.LastDrain.By // the leader only carries the drain out
			}
		})
	}
	if known == 0 {
		return structs.Errorf(structs.CodeNotFound, "none of the %d allocations exists", len(c.IDs))
	}
	return nil
}
