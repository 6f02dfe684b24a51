package duty

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// idsMax bounds the allocations in one command: 32 KiB of ids.
const idsMax = 2000

// RuntimeLimits stops allocations that have reached their wall-clock limit (Job.RunLimit). The time counts from the
// start of their first task and pauses while they are suspended. The node's agent does the same by its own clock. The
// duty is for agents that fail to, and it records the reason in the state.
type RuntimeLimits struct {
	queue *Queue[structs.AllocID]
}

// NewRuntimeLimits returns the duty. Call Load first.
func NewRuntimeLimits() *RuntimeLimits {
	return &RuntimeLimits{NewQueue(func(a, b structs.AllocID) int { return slices.Compare(a[:], b[:]) })}
}

// runtimeEnd returns when an allocation reaches its limit; 0 if it has none or is ending anyway.
func runtimeEnd(a *structs.Allocation) structs.LogTime {
	if a == nil || a.StartedAt == 0 || a.Suspended() || a.Terminal() || a.Transition.Expire || a.Job == nil {
		return 0
	}
	g := a.Job.Group(a.Group)
	if g == nil || a.Job.RunLimit(g) <= 0 {
		return 0
	}
	return a.Began(a.StartedAt).Add(a.Job.RunLimit(g))
}

// Load implements Duty.
func (l *RuntimeLimits) Load(snap *state.Snapshot, _ structs.LogTime) {
	l.queue.Clear()
	for a := range snap.Allocs() {
		l.queue.Set(a.ID, runtimeEnd(a))
	}
}

// Feed implements Duty.
func (l *RuntimeLimits) Feed(snap *state.Snapshot, d *structs.Delta, _ structs.LogTime) {
	for i := range d.Allocs {
		id := d.Allocs[i].Either().ID
		l.queue.Set(id, runtimeEnd(snap.AllocByID(id)))
	}
}

// Due implements Duty.
func (l *RuntimeLimits) Due(_ *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	var ids []structs.AllocID
	for id, _, ok := l.queue.Take(now); ok; id, _, ok = l.queue.Take(now) {
		ids = append(ids, id)
	}
	return transitions("max_run_duration", structs.TriggerMaxRun, ids, structs.Transition{Expire: true}), l.queue.Next()
}

// transitions returns commands of bounded size that request the same transition for many allocations.
func transitions(by string, trigger structs.Trigger, ids []structs.AllocID, how structs.Transition) (cmds []Command) {
	for part := range slices.Chunk(ids, idsMax) {
		cmds = append(cmds, Command{Subject: fmt.Sprintf("%d allocations, the first %s", len(part), part[0].Short()),
			Command: structs.Command{By: structs.Submitter{Name: by},
				Body: &structs.AllocTransitionCommand{IDs: part, Transition: how, Trigger: trigger}}})
	}
	return cmds
}
