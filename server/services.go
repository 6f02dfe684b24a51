package server

import (
	"fmt"
	"runtime/debug"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// leaderServices returns the services that run while this server leads, in starting order.
func (s *Server) leaderServices() []Service {
	services := []Service{
		{"members", s.members.RunMembers},
		{"autopilot", s.members.RunAutopilot},
		{"reseal", s.keys.Reseal},
		{"heartbeats", s.nodes.Beats.Run},
		{"passes", s.decide.Run},
		s.dutyService("drains", duty.NewDrains(), nil),
		s.dutyService("taints", duty.NewTaints(), nil),
		s.dutyService("windows", duty.NewWindows(), nil),
		s.dutyService("periodic", duty.NewPeriodic(s.endpoints.NamespaceRefuses, s.periodicRefused), nil),
		s.dutyService("runtime limits", duty.NewRuntimeLimits(), nil),
		s.dutyService("gangs", duty.NewGangs(), nil),
		s.dutyService("arrays", duty.NewArrays(), nil),
		s.dutyService("rollouts", duty.NewRollouts(), nil),
		s.dutyService("deadlines", duty.NewDeadlines(), nil),
		s.dutyService("collect", duty.NewCollect(s.cfg.Collect.OrDefaults()), s.duties.collect),
	}
	if !s.cfg.Testing.NoSigningKey {
		services = append(services, Service{"signing key", s.keys.MakeSigner})
	}
	return services
}

// periodicRefused logs a periodic job that cannot be launched.
func (s *Server) periodicRefused(key structs.JobKey, err error) {
	s.log.Error("periodic job cannot be launched", "job", key, "error", err)
}

func panicError(what string, p any) error {
	return fmt.Errorf("%s panicked: %v\n%s", what, p, debug.Stack())
}
