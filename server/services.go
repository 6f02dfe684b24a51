package server

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// leaderServices is everything that runs while this server leads, in starting order. All share one context.
func (s *Server) leaderServices() []Service {
	return []Service{
		{"clock", s.members.RunClock},
		{"members", s.members.RunMembers},
		{"autopilot", s.members.RunAutopilot},
		{"reseal", s.keys.Reseal},
		{"heartbeats", s.beats.Run},
		{"passes", s.runScheduler},
		s.dutyService("drains", duty.NewDrains(), nil),
		s.dutyService("taints", duty.NewTaints(), nil),
		s.dutyService("windows", duty.NewWindows(), nil),
		s.dutyService("periodic", duty.NewPeriodic(s.invalidPeriodic), nil),
		s.dutyService("runtime limits", duty.NewRuntimeLimits(), nil),
		s.dutyService("gangs", duty.NewGangs(), nil),
		s.dutyService("arrays", duty.NewArrays(), nil),
		s.dutyService("deadlines", duty.NewDeadlines(), nil),
		s.dutyService("collect", duty.NewCollect(duty.DefaultCollectLimits), s.decide.collect.force),
	}
}

// Hooks are what leader services offer to endpoints. Each is nil until its service sets it; endpoints say so when they
// need one that is missing. They are set in New, before anything runs.
type Hooks struct {
	// Collect collects garbage now, thresholds ignored.
	Collect func(ctx context.Context) error
	// ForcePeriodic launches a periodic job now.
	ForcePeriodic func(ctx context.Context, key structs.JobKey, by structs.Submitter) (structs.Result, error)
	// NextLaunch is when a periodic job would launch next after t; zero for never.
	NextLaunch func(p *structs.Periodic, t time.Time) (time.Time, error)
	// Reports are the newest reports of a job's groups, in memory of the leader (D23); nil when none are kept.
	Reports func(key structs.JobKey) []*structs.GroupReport
	// Queue is the pending list in queue order; nil order means by priority, then submit index.
	Queue func() []structs.JobKey
}

func panicError(what string, p any) error {
	return fmt.Errorf("%s panicked: %v\n%s", what, p, debug.Stack())
}
