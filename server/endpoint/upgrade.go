package endpoint

import (
	"context"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/auth"
)

func (s *Set) upgradeStatus(ctx context.Context, _ *rpc.Call, _ *methods.EmptyRequest) (*methods.UpgradeStatusResponse, error) {
	return s.env.Members.Upgrade(ctx)
}

func (s *Set) upgradeFinish(ctx context.Context, _ *rpc.Call, _ *methods.EmptyRequest) (*methods.UpgradeFinishResponse, error) {
	return s.env.Members.FinishUpgrade(ctx, auth.Who(ctx).By)
}
