package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// Arrays keep their last ended allocations only; of the others Apply keeps how they ended as runs. Ordinary garbage
// collection comes every few minutes and leaves the ended work of live jobs alone; an array of 100,000 short tasks would
// fill the state by then, and every decision about it would look at all of them. So a leader service follows what ends.

const (
	arrayLook    = structs.ArrayKept / 4 // ended allocations of one array after which the service looks at it
	arrayCollect = 4_000                 // ids in one command
)

// arrayWaste lists the ended allocations of an array beyond those that are kept, oldest first.
func arrayWaste(snap *state.Snapshot, j *structs.Job) []structs.AllocID {
	var ended []*structs.Allocation
	for _, a := range snap.AllocsByJob(j.Key()) {
		if scheduler.Settled(j, a) {
			ended = append(ended, a)
		}
	}
	if len(ended) <= structs.ArrayKept {
		return nil
	}
	slices.SortFunc(ended, func(a, b *structs.Allocation) int {
		return cmp.Or(cmp.Compare(a.ModifyIndex, b.ModifyIndex), slices.Compare(a.ID[:], b.ID[:]))
	})
	ids := make([]structs.AllocID, 0, len(ended)-structs.ArrayKept)
	for _, a := range ended[:len(ended)-structs.ArrayKept] {
		ids = append(ids, a.ID)
	}
	return ids
}

// runArrays is the service.
func (s *Server) runArrays(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("arrays", 1024)
	defer s.Unsubscribe(sub)
	ended := map[structs.JobKey]int{}
	all := func(snap *state.Snapshot) {
		for j := range snap.Jobs("", "") {
			if j.Array != nil {
				ended[j.Key()] = arrayLook
			}
		}
	}
	all(s.Published().Snapshot)
	for {
		var due []structs.JobKey
		for k, n := range ended { // sorted below
			if n >= arrayLook {
				due = append(due, k)
			}
		}
		slices.SortFunc(due, func(a, b structs.JobKey) int { return cmp.Compare(a.String(), b.String()) })
		for _, k := range due {
			delete(ended, k)
			snap := s.Published().Snapshot
			j := snap.JobByKey(k)
			if j == nil || j.Array == nil {
				continue
			}
			for ids := range slices.Chunk(arrayWaste(snap, j), arrayCollect) {
				_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: structs.Submitter{Name: "gc"}, Body: &structs.CollectCommand{Allocs: ids}})
				if err != nil && ctx.Err() == nil {
					s.log.Warn("ended allocations of an array were not collected; trying again", "job", k, "error", err)
					ended[k] = arrayLook
					pause(ctx, time.Second)
					break
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				if a.Lost || a.Delta.Restored {
					all(a.Snapshot)
					continue
				}
				for i := range a.Delta.Allocs {
					c := &a.Delta.Allocs[i]
					if c.After != nil && c.After.Job != nil && c.After.Job.Array != nil && c.After.ClientTerminal() && (c.Before == nil || !c.Before.ClientTerminal()) {
						ended[c.After.JobKey()]++
					}
				}
			}
		}
	}
}

// arraySummary counts the indices of an array, each once.
func arraySummary(snap *state.Snapshot, j *structs.Job, sum *methods.Summary) *methods.Summary {
	ended := snap.ArrayByKey(j.Key())
	var g methods.GroupSummary
	g.Complete, g.Failed = ended.Count()
	seen := make(map[int]bool)
	for _, a := range snap.AllocsByJob(j.Key()) {
		if a.CreateIndex < j.CreateIndex || !a.Next.IsZero() || a.NameIndex >= j.Array.Count || seen[a.NameIndex] || ended.Has(a.NameIndex) {
			continue
		}
		switch {
		case a.Client == structs.ClientComplete && a.ServerTerminal(), a.Client == structs.ClientLost:
			continue // to be done again
		case a.Client == structs.ClientPending:
			g.Starting++
		case a.Client == structs.ClientRunning:
			g.Running++
		case a.Client == structs.ClientComplete:
			g.Complete++
		case a.Client == structs.ClientFailed:
			g.Failed++
		case a.Client == structs.ClientUnknown:
			g.Unknown++
		}
		seen[a.NameIndex] = true
	}
	if ended != nil {
		sum.ModifyIndex = max(sum.ModifyIndex, ended.ModifyIndex)
	}
	if !j.Stop {
		g.Queued = max(0, j.Array.Count-g.Starting-g.Running-g.Complete-g.Failed-g.Unknown)
	}
	sum.Groups[j.Groups[0].Name] = g
	return sum
}
