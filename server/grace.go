package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// adjusted makes a submitted job what the cluster lets it be, and says what was changed.
func (s *Server) adjusted(j *structs.Job) (warnings []string) {
	return append(s.withoutOversubscription(j), s.withinGrace(j)...)
}

// withinGrace shortens the time in which a job may save its state (checkpoint.grace) to what its queue gives to work that
// makes room for others (Queue.PreemptGrace, inherited), and says so. A group that names no time gets the default, if that
// is not longer.
func (s *Server) withinGrace(j *structs.Job) (warnings []string) {
	snap := s.Published().Snapshot
	cfg := *snap.SchedulerConfig()
	most := s.queueTable(snap).Settings(j.QueueName(), &cfg).PreemptGrace
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
			warnings = append(warnings, fmt.Sprintf("group %q: checkpoint grace of %s is shortened to %s, the most that queue %q gives (its preempt_grace)", g.Name, short(asked), short(most), j.QueueName()))
		} else {
			warnings = append(warnings, fmt.Sprintf("group %q: it has %s to save its state, the most that queue %q gives (its preempt_grace)", g.Name, short(most), j.QueueName()))
		}
	}
	j.Groups = groups
	return warnings
}

// short is a duration without the parts that are nothing: 2m, not 2m0s.
func short(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= u.unit && d%u.unit == 0 {
			return fmt.Sprintf("%d%s", d/u.unit, u.name)
		}
	}
	return d.String()
}
