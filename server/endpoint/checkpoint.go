package endpoint

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// checkpointsAtOnce bounds the nodes asked at the same time, and checkpointNotice the time for one to answer.
const (
	checkpointsAtOnce = 64
	checkpointNotice  = 15 * time.Second
)

// jobCheckpoint asks the running allocations of a job to save their state now. Each is asked by a separate call to its
// node, with the caller's token. Some may fail; it is an error only if none can be asked.
func (s *Set) jobCheckpoint(ctx context.Context, c *rpc.Call, req *methods.JobCheckpointRequest) (*methods.JobCheckpointResponse, error) {
	k, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	if err := tellable(j, req.Group); err != nil {
		return nil, err
	}
	all, err := s.running(k, req.Group, req.Rank)
	if err != nil {
		return nil, err
	}
	resp := &methods.JobCheckpointResponse{Allocs: all}
	self := s.env.Registry.LocalShared(c.Peer, nil)
	turns := make(chan struct{}, checkpointsAtOnce)
	var wg sync.WaitGroup
	for i := range all {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			a := &all[i]
			h := rpc.Header{Token: c.Token, Namespace: k.Namespace}
			var err error
			nctx, cancel := context.WithTimeout(ctx, checkpointNotice)
			defer cancel()
			if a.Notice, err = rpc.Invoke(nctx, self, methods.ClientCheckpoint, h, &methods.AllocNodeRequest{AllocID: a.AllocID}); err != nil {
				a.Error = err.Error()
			}
		})
	}
	wg.Wait()
	return resp, nil
}

// tellable returns an error if no work of a job, or of one of its groups, can be asked to save its state.
func tellable(j *structs.Job, group structs.GroupName) error {
	if group != "" && j.Group(group) == nil {
		return structs.Errorf(structs.CodeNotFound, "job %q has no group %q", j.ID, group)
	}
	declared := structs.GroupName("")
	for _, g := range j.Groups {
		if g.Checkpoint == nil || group != "" && g.Name != group {
			continue
		}
		if g.Checkpoint.Notified() {
			return nil
		}
		declared = g.Name
	}
	what := "job \"" + j.ID + "\""
	if group != "" {
		what = "group \"" + string(group) + "\" of " + what
	}
	if declared != "" {
		return structs.Errorf(structs.CodeUnprocessable, "the checkpoint block of group %q does not say how to ask its tasks to save their state: add signal (for example \"SIGUSR1\"), command or url", declared)
	}
	return structs.Errorf(structs.CodeUnprocessable, "%s has no checkpoint block, which says how to ask its tasks to save their state: add one to the group, for example checkpoint { signal = \"SIGUSR1\" }", what)
}

// running returns the running allocations of a job that can be asked to save their state, in the order of groups, ranks
// and names. If rank is not nil, it returns only the allocation that runs this rank.
func (s *Set) running(k structs.JobKey, group structs.GroupName, rank *int) ([]methods.AllocCheckpoint, error) {
	snap := s.published().Snapshot
	ranks := map[structs.AllocID]int{}    // node ranks
	holds := map[structs.AllocID][2]int{} // first rank, and number of ranks
	world := map[structs.GroupName]int{}  // ranks of each group
	for _, ro := range snap.RostersByJob(k) {
		for i, m := range ro.Members {
			a := snap.AllocByID(m.Alloc)
			if a == nil {
				continue
			}
			n := 1
			if g := a.Job.Group(a.Group); g != nil {
				n = g.Launch.RanksOf(m.GPUs)
			}
			ranks[m.Alloc], holds[m.Alloc] = i, [2]int{world[ro.Group], n}
			world[ro.Group] += n
		}
	}
	var out []methods.AllocCheckpoint
	some := false
	groups := map[structs.GroupName]bool{}
	for _, a := range snap.AllocsByJob(k) {
		if a.Client != structs.ClientRunning || a.ServerTerminal() || group != "" && a.Group != group {
			continue
		}
		some = true
		if g := a.Job.Group(a.Group); g == nil || g.Checkpoint == nil || !g.Checkpoint.Notified() {
			continue
		}
		groups[a.Group] = true
		at, member := ranks[a.ID]
		if !member {
			at = -1
		}
		if r := holds[a.ID]; rank != nil && (!member || *rank < r[0] || *rank >= r[0]+r[1]) {
			continue
		}
		out = append(out, methods.AllocCheckpoint{AllocID: a.ID, Name: a.Name(), Group: a.Group, NodeID: a.NodeID, NodeName: a.NodeName, NodeRank: at})
	}
	switch {
	case !some && group != "":
		return nil, structs.Errorf(structs.CodeUnprocessable, "group %q of job %q has no running allocations", group, k.ID)
	case !some:
		return nil, structs.Errorf(structs.CodeUnprocessable, "job %q has no running allocations", k.ID)
	case rank != nil && len(groups) > 1:
		return nil, structs.Errorf(structs.CodeInvalid, "job %q has several groups with a checkpoint block: name the group whose rank %d is meant", k.ID, *rank)
	case rank != nil && len(out) == 0:
		for g := range groups {
			if n := world[g]; n > 0 {
				return nil, structs.Errorf(structs.CodeInvalid, "there is no rank %d: the ranks are 0 to %d", *rank, n-1)
			}
		}
		return nil, structs.Errorf(structs.CodeInvalid, "there is no rank %d: only gangs have ranks", *rank)
	case len(out) == 0:
		return nil, structs.Errorf(structs.CodeUnprocessable, "no running allocation of job %q can be asked to save its state: they are of an older version, or of a group, that does not say how", k.ID)
	}
	slices.SortFunc(out, func(a, b methods.AllocCheckpoint) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.NodeRank, b.NodeRank), cmp.Compare(a.Name, b.Name), slices.Compare(a.AllocID[:], b.AllocID[:]))
	})
	return out, nil
}
