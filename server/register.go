package server

import (
	"context"

	"github.com/muster-sched/muster/internal/rpc"
)

// handler is the shape of an endpoint: the wrapper has authenticated, forwarded and authorised before.
type handler[Req, Resp any] func(ctx context.Context, c *rpc.Call, req *Req) (*Resp, error)

// register serves every server-side row of the table.
func (s *Server) register() {
	s.registerNodes()
	s.registerServers()
	s.registerJobs()
	s.registerScheduler()
	s.registerQueues()
	s.registerVariables()
	s.registerServices()
	s.registerAllocs()
	s.registerNodeUsers()
	s.registerACL()
	s.registerOperator()
	s.registerSearch()
	s.registerEvents()
	s.registerRelays()
}

func handle[Req, Resp any](s *Server, m rpc.Method[Req, Resp], h handler[Req, Resp]) {
	rpc.Handle(s.reg, m, h)
}

// install wires what leader services offer to endpoints; see Hooks.
func (s *Server) install() {
	s.Hooks.Collect = s.collectNow
	s.Hooks.ForcePeriodic = s.forcePeriodic
}
