package server

import (
	"context"
	"time"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// forcePeriodic is Hooks.ForcePeriodic: a launch for this very second.
func (s *Server) forcePeriodic(ctx context.Context, key structs.JobKey, by structs.Submitter) (structs.Result, error) {
	job := s.Published().Snapshot.JobByKey(key)
	switch {
	case job == nil:
		return structs.Result{}, structs.Errorf(structs.CodeNotFound, "job %q not found in namespace %q", key.ID, key.Namespace)
	case !job.IsPeriodic():
		return structs.Result{}, structs.Errorf(structs.CodeInvalid, "job %q is not periodic", key.ID)
	}
	at := structs.LogTimeOf(s.replica.Now().Time().Truncate(time.Second))
	return s.ApplyLane(ctx, replica.LanePriority, structs.Command{By: by, Body: duty.Launch(job, at, true)})
}

func (s *Server) invalidPeriodic(key structs.JobKey, err error) {
	s.log.Error("periodic job cannot be launched", "job", key, "error", err)
}
