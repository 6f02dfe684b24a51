package endpoint

import (
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// levelKeys returns the levels of the topology that are in force, from near to far.
func levelKeys(p *replica.Published) []string {
	return p.View.LevelKeys(p.Snapshot.SchedulerConfig().TopologyLevels)
}

// placeText describes where a node is in the topology.
func placeText(p *replica.Published, n *structs.Node) string {
	if n == nil {
		return ""
	}
	return model.PlaceText(levelKeys(p), n)
}

// reachedBy describes how near the members of a gang are to each other; "" for a gang without members.
func reachedBy(p *replica.Published, r *structs.Roster) string {
	if r == nil {
		return ""
	}
	nodes := make([]structs.NodeID, len(r.Members))
	for i := range r.Members {
		nodes[i] = r.Members[i].Node
	}
	return reachedText(p, nodes)
}

func reachedText(p *replica.Published, ids []structs.NodeID) string {
	nodes := make([]*structs.Node, 0, len(ids))
	for _, id := range ids {
		if n := p.Snapshot.NodeByID(id); n != nil {
			nodes = append(nodes, n)
		}
	}
	if len(nodes) < len(ids) {
		return "" // of a node that is gone it is not known where it was
	}
	return model.ReachedText(levelKeys(p), nodes)
}

// noteReached adds what is known of a group.
func noteReached(all map[structs.GroupName]string, g structs.GroupName, text string) map[structs.GroupName]string {
	if text == "" {
		return all
	}
	if all == nil {
		all = make(map[structs.GroupName]string)
	}
	all[g] = text
	return all
}

// plannedReach describes how near the members would be that a dry run places, for each gang of the job.
func plannedReach(p *replica.Published, j *structs.Job, plan *scheduler.Plan) (out map[structs.GroupName]string) {
	for _, e := range plan.Entries {
		if e.Namespace != j.Namespace || e.JobID != j.ID {
			continue
		}
		for _, r := range e.Rosters {
			out = noteReached(out, r.Group, reachedBy(p, r))
		}
	}
	return out
}
