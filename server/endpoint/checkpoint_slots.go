package endpoint

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/checkpoint"
	"github.com/muster-sched/muster/structs"
)

// NodeSaveTurn answers whether it is an allocation's turn to save its state, before it stops or while it runs.
func (s *Set) NodeSaveTurn(_ context.Context, _ *rpc.Call, req *methods.NodeSaveTurnRequest) (*methods.SaveTurn, error) {
	snap, line := s.lines.newest(s.published().Snapshot, time.Now())
	a := snap.AllocByID(req.AllocID)
	if a != nil && a.NodeID != req.NodeID {
		return nil, structs.Errorf(structs.CodeDenied, "allocation %s is not on node %s", req.AllocID.Short(), req.NodeID)
	}
	if req.Periodic {
		now := s.env.Replica.Now()
		d, due, again := s.lines.periodic(s.published().Snapshot, time.Now(), now).Turn(req.AllocID, now)
		if d == nil {
			return &methods.SaveTurn{Now: true, Due: due}, nil
		}
		return &methods.SaveTurn{Limit: d.By.Most, Where: d.By.Where, Again: again, Due: due}, nil
	}
	if a == nil || !a.ServerTerminal() { // this server lags
		return &methods.SaveTurn{Again: 2 * lineAge}, nil
	}
	u, again := line.Turn(snap, a, s.env.Replica.Now())
	if u == nil {
		return &methods.SaveTurn{Now: true}, nil
	}
	return &methods.SaveTurn{Before: u.Before, Limit: u.By.Most, Where: u.By.Where, Again: again}, nil
}

// CheckpointsFor counts the allocations in line of a job, and of work that its allocations wait for. It returns nil if
// none waits.
func (s *Set) CheckpointsFor(snap *state.Snapshot, k structs.JobKey) *methods.Saving {
	snap, line := s.lines.newest(snap, time.Now())
	if len(line.Of) == 0 {
		return nil
	}
	ids := map[structs.AllocID]bool{}
	for _, a := range snap.AllocsByJob(k) {
		if a.ClientTerminal() {
			continue
		}
		ids[a.ID] = true
		for _, id := range a.WaitsOn {
			ids[id] = true
		}
	}
	out := &methods.Saving{}
	held := map[checkpoint.Limit]int64{}
	for id := range ids {
		switch u := line.Of[id]; {
		case u == nil:
		case u.Now:
			out.Now++
		default:
			out.Waiting++
			held[u.By]++
		}
	}
	if out.Waiting == 0 {
		return nil
	}
	most := slices.MaxFunc(slices.Collect(maps.Keys(held)), func(a, b checkpoint.Limit) int {
		return cmp.Or(cmp.Compare(held[a], held[b]), cmp.Compare(b.Where, a.Where))
	})
	out.Where, out.Limit = most.Where, most.Most
	return out
}

// saveStorages returns what is known of the storages that are configured or were measured.
func (s *Set) saveStorages(snap *state.Snapshot) []methods.SaveStorage {
	var out []methods.SaveStorage
	_, line := s.lines.newest(snap, time.Now())
	for _, x := range line.Storages() {
		out = append(out, methods.SaveStorage{Name: x.Name, Most: x.Most, Limit: x.Limit, Saves: x.Saves, Alone: x.Alone, Together: x.Together, Saving: x.Turns, Waiting: x.Waits})
	}
	return out
}
