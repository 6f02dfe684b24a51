package server

import (
	"context"
	"fmt"
	"runtime/debug"

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
		{"passes", s.decide.Run},
		s.dutyService("drains", duty.NewDrains(), nil),
		s.dutyService("taints", duty.NewTaints(), nil),
		s.dutyService("windows", duty.NewWindows(), nil),
		s.dutyService("periodic", duty.NewPeriodic(s.invalidPeriodic), nil),
		s.dutyService("runtime limits", duty.NewRuntimeLimits(), nil),
		s.dutyService("gangs", duty.NewGangs(), nil),
		s.dutyService("arrays", duty.NewArrays(), nil),
		s.dutyService("deadlines", duty.NewDeadlines(), nil),
		s.dutyService("collect", duty.NewCollect(duty.DefaultCollectLimits), s.collect.force),
	}
}

// Hooks are what leader services offer to endpoints. Each is nil until its service sets it; endpoints say so when they
// need one that is missing. They are set in New, before anything runs.
type Hooks struct {
	// Collect collects garbage now, thresholds ignored.
	Collect func(ctx context.Context) error
	// ForcePeriodic launches a periodic job now.
	ForcePeriodic func(ctx context.Context, key structs.JobKey, by structs.Submitter) (structs.Result, error)
}

func panicError(what string, p any) error {
	return fmt.Errorf("%s panicked: %v\n%s", what, p, debug.Stack())
}
