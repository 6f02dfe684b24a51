package reconcile

import (
	"fmt"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Work with stop_on_client_after never runs twice because its node fell silent. Naive: replace it when its node is
// down, as other work. But the agent may be stopped or cut off while its tasks run. So its place is held until the node
// must have ended the tasks by itself (structs.Group.RunsSilent), counted from when the servers lost contact: the
// node's supervisor began to count earlier, at the last heartbeat that was answered.
//
//	node silent                    the allocation is unknown and keeps its place; a gang keeps its member
//	node answers before the time   nothing has happened
//	the time is over               the allocation is lost, and replaced like others (ADR 0023)

// hold keeps an allocation on a silent node, and schedules an evaluation for when its tasks must have ended.
func (r *reconciler) hold(g *GroupPlan, a *structs.Allocation) {
	g.Counts.Ignore++
	if a.Client == structs.ClientUnknown && !a.Lineage().FollowupEval.IsZero() && !r.answering(a.Lineage().FollowupEval) {
		return // it is scheduled
	}
	until := a.SilentUntil(r.view.Node(a.NodeID))
	limit, _ := a.Job.Group(a.Group).StopOnClient()
	desc := fmt.Sprintf("alloc is unknown since its node is silent; it is replaced after %s, because stop_on_client_after is %s", until.Time().UTC().Format(time.RFC3339), limit)
	r.Later = append(r.Later, Later{At: until, Trigger: structs.TriggerReconnect, Desc: "the tasks on a silent node have ended", Group: g.Name,
		Stops: []structs.PlanStop{{ID: a.ID, Desc: desc, Client: structs.ClientUnknown}}})
}
