package endpoint

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/structs"
)

// normalize applies cluster limits to a submitted job, and marks the groups that run as one. It returns a warning for each
// change, and for what no node has.
func (s *Set) normalize(j *structs.Job) (warnings []string) {
	if s.published().Snapshot.Has(feature.JointJobs) {
		j.Join()
	}
	return slices.Concat(s.DropMemoryMax(j), s.withinGrace(j), s.unknownDepends(j), s.revertsToNothing(j), unmet(s.published().Snapshot.Nodes(), j))
}

// unknownDepends warns of dependencies of the job's namespace that are not registered: a misspelt name would make the job
// wait for ever.
func (s *Set) unknownDepends(j *structs.Job) (warnings []string) {
	for i := range j.Depends {
		if k := j.Depends[i].On(j); k.Namespace == j.Namespace && !decide.Known(s.published().Snapshot, k) {
			warnings = append(warnings, fmt.Sprintf("it depends on job %q, which namespace %q does not have: it waits until there is one", k.ID, k.Namespace))
		}
	}
	return warnings
}

// withinGrace shortens a job's checkpoint.grace to the grace period that its queue gives to preempted work
// (Queue.PreemptGrace, inherited), with a warning. A group without a grace gets the default if that is not longer.
func (s *Set) withinGrace(j *structs.Job) (warnings []string) {
	snap := s.published().Snapshot
	cfg := *snap.SchedulerConfig()
	most := s.env.Decide.QueueTable(snap).Settings(j.QueueName(), &cfg).PreemptGrace
	if most <= 0 {
		return nil
	}
	groups := slices.Clone(j.Groups)
	for i, g := range groups {
		if g == nil || g.Checkpoint == nil || g.Checkpoint.GraceOrDefault() <= most {
			continue
		}
		own, c := *g, *g.Checkpoint
		c.Grace = most
		own.Checkpoint = &c
		groups[i] = &own
		if asked := g.Checkpoint.Grace; asked > 0 {
			warnings = append(warnings, fmt.Sprintf("group %q: checkpoint grace of %s is shortened to %s, the most that queue %q gives (its preempt_grace)", g.Name, structs.ShortDuration(asked), structs.ShortDuration(most), j.QueueName()))
		} else {
			warnings = append(warnings, fmt.Sprintf("group %q: it has %s to save its state, the most that queue %q gives (its preempt_grace)", g.Name, structs.ShortDuration(most), j.QueueName()))
		}
	}
	j.Groups = groups
	return warnings
}
