package client

import (
	"context"
	"errors"

	"github.com/muster-sched/muster/client/supervisor"
)

// Supervisors combines several Supervisors.
func Supervisors(list ...Supervisor) Supervisor { return supervisors(list) }

type supervisors []Supervisor

// TaskIDs implements Supervisor.
func (p supervisors) TaskIDs(ctx context.Context) ([]string, error) {
	var all []string
	for _, s := range p {
		ids, err := s.TaskIDs(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, ids...)
	}
	return all, nil
}

// Destroy implements Supervisor. It asks all of them.
func (p supervisors) Destroy(ctx context.Context, taskID string) error {
	var errs []error
	for _, s := range p {
		errs = append(errs, s.Destroy(ctx, taskID))
	}
	return errors.Join(errs...)
}

// Supervised makes a Supervisor of the process supervisor that this node's drivers use.
func Supervised(s *supervisor.Client) Supervisor { return supervised{s} }

type supervised struct{ s *supervisor.Client }

// TaskIDs implements Supervisor.
func (p supervised) TaskIDs(ctx context.Context) ([]string, error) {
	list, err := p.s.List(ctx)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(list))
	for i, st := range list {
		ids[i] = st.ID
	}
	return ids, nil
}

// Destroy implements Supervisor.
func (p supervised) Destroy(ctx context.Context, taskID string) error {
	err := p.s.Destroy(ctx, taskID)
	if errors.Is(err, supervisor.ErrUnknownTask) {
		return nil
	}
	return err
}
