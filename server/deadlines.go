package server

import (
	"container/heap"
	"context"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// A job that has not ended by its deadline has missed it. The service waits for the earliest deadline that is ahead and has
// the miss written when its time is over; Apply checks again with log time, so that each is written once, and never of a
// job that ended before. A job that ends late before the service has said so is found by Apply itself.

// missing is the deadlines that are ahead. Those that changed or were met stay in the heap until their turn.
type missing struct {
	heap deadlineHeap
	at   map[structs.JobKey]structs.LogTime
}

type deadline struct {
	at  structs.LogTime
	job structs.JobKey
}

type deadlineHeap []deadline

func (h deadlineHeap) Len() int { return len(h) }
func (h deadlineHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].job.Less(h[j].job)
}
func (h deadlineHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *deadlineHeap) Push(x any)   { *h = append(*h, x.(deadline)) }
func (h *deadlineHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

func loadMissing(snap *state.Snapshot) *missing {
	m := &missing{at: map[structs.JobKey]structs.LogTime{}}
	for j := range snap.Jobs("", "") {
		m.set(snap, j.Key())
	}
	return m
}

// set takes note of a job as it is now.
func (m *missing) set(snap *state.Snapshot, k structs.JobKey) {
	j, w := snap.JobByKey(k), snap.Workload(k)
	if j == nil || w == nil || j.Deadline == 0 || w.Missed != 0 || !j.Placeable() {
		delete(m.at, k)
		return
	}
	if m.at[k] != j.Deadline {
		m.at[k] = j.Deadline
		heap.Push(&m.heap, deadline{j.Deadline, k})
	}
}

// next is the job whose deadline comes first; false when there is none.
func (m *missing) next() (deadline, bool) {
	for len(m.heap) > 0 {
		if first := m.heap[0]; m.at[first.job] == first.at {
			return first, true
		}
		heap.Pop(&m.heap)
	}
	return deadline{}, false
}

// runDeadlines is the service.
func (s *Server) runDeadlines(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("deadlines", 1024)
	defer s.Unsubscribe(sub)
	m := loadMissing(s.Published().Snapshot)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		first, any := m.next()
		if any {
			wait = max(first.at.Sub(s.logNow())+time.Millisecond, 0)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				if a.Lost || a.Delta.Restored {
					m = loadMissing(a.Snapshot)
					continue
				}
				for i := range a.Delta.Jobs {
					m.set(a.Snapshot, either(a.Delta.Jobs[i]).Key())
				}
				for i := range a.Delta.Workloads {
					w := either(a.Delta.Workloads[i])
					m.set(a.Snapshot, structs.JobKey{Namespace: w.Namespace, ID: w.JobID})
				}
			}
		case <-timer.C:
			if !any || first.at >= s.logNow() {
				continue
			}
			delete(m.at, first.job)
			_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: structs.Submitter{Name: "deadline"},
				Body: &structs.WorkloadCommand{Namespace: first.job.Namespace, JobID: first.job.ID, Action: structs.ActionMissed}})
			switch code := structs.CodeOf(err); {
			case ctx.Err() != nil:
				return nil
			case err != nil && code != structs.CodeConflict && code != structs.CodeNotFound:
				s.log.Warn("could not write that a job missed its deadline; trying again", "job", first.job, "error", err)
				if !pause(ctx, time.Second) {
					return nil
				}
				m = loadMissing(s.Published().Snapshot)
			}
		}
	}
}
