package endpoint

import (
	"context"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/structs"
)

// registerScheduler registers methods for operators about the deciding service.
func (s *Set) registerScheduler() {
	handle(s, methods.SchedulerInput, s.schedulerInput)
	handle(s, methods.PredictionsGet, s.predictions)
}

// Predictions returns the errors of predicted run times. Only the leader knows them; other servers return none.
func (s *Set) Predictions() predict.Errors {
	if !s.env.IsLeader() {
		return predict.Errors{}
	}
	return s.env.Decide.PredictionErrors()
}

func (s *Set) predictions(context.Context, *rpc.Call, *methods.EmptyRequest) (*methods.PredictionsResponse, error) {
	e := s.Predictions()
	return &methods.PredictionsResponse{Ended: e.N + e.Unknown, Predicted: e.N, Under: e.Under, MedianFactor: e.MedianFactor(),
		MeanAbsolute: e.MeanAbsolute(), Relative: e.Relative()}, nil
}

// schedulerInput returns the input of the newest pass of a node pool. scheduler.Load reads it, so that the pass can be
// decided again anywhere.
func (s *Set) schedulerInput(_ context.Context, _ *rpc.Call, req *methods.NameRequest) (*methods.SchedulerInputResponse, error) {
	name := structs.PoolName(req.Name)
	if name == "" {
		name = structs.NodePoolDefault
	}
	in := s.env.Decide.Input(name)
	if in == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "no pass of node pool %q has run on this server; name a pool that jobs run in, or %q", name, structs.NodePoolAll)
	}
	pol := policy.For(in.View.Pool(name), in.Config).Name()
	data, err := scheduler.Dump(*in, pol)
	if err != nil {
		return nil, err
	}
	return &methods.SchedulerInputResponse{Index: in.View.Index(), Pool: string(name), Policy: pol, Input: data}, nil
}
