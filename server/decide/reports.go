package decide

import (
	"slices"
	"sync"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// reportsMax bounds the jobs whose reports are kept.
const reportsMax = 10_000

// reportStore keeps the newest reports of waiting jobs, in the leader's memory only (D23). When it is full, the job
// that was added first is dropped.
type reportStore struct {
	mu   sync.Mutex
	jobs map[structs.JobKey][]*structs.GroupReport
	age  []structs.JobKey // oldest first; may hold jobs that are no longer in the map
}

func (r *reportStore) keep(rep *scheduler.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.jobs == nil {
		r.jobs = map[structs.JobKey][]*structs.GroupReport{}
	}
	for i := range rep.Workloads {
		w := &rep.Workloads[i]
		if !w.Failed {
			delete(r.jobs, w.Key)
			continue
		}
		if _, have := r.jobs[w.Key]; !have {
			r.age = append(r.age, w.Key)
		}
		r.jobs[w.Key] = w.Groups
	}
	for len(r.jobs) > reportsMax && len(r.age) > 0 {
		delete(r.jobs, r.age[0])
		r.age = r.age[1:]
	}
	if len(r.age) > 2*reportsMax {
		r.age = slices.DeleteFunc(r.age, func(k structs.JobKey) bool { _, have := r.jobs[k]; return !have })
	}
}

// prune drops jobs whose queue entry is gone.
func (r *reportStore) prune(d *structs.Delta) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range d.Workloads {
		if c := &d.Workloads[i]; c.After == nil && c.Before != nil {
			delete(r.jobs, structs.JobKey{Namespace: c.Before.Namespace, ID: c.Before.JobID})
		}
	}
}

// of returns the newest reports of a job's groups, or nil.
func (r *reportStore) of(key structs.JobKey) []*structs.GroupReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.jobs[key]
}

// inputStore keeps the input of each domain's newest pass, so that an operator can fetch and replay it. Its columns are
// shared with the published views, so it needs little memory.
type inputStore struct {
	mu     sync.Mutex
	newest map[structs.PoolName]*scheduler.Input
}

func (s *inputStore) keep(domain structs.PoolName, in *scheduler.Input) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		s.newest = map[structs.PoolName]*scheduler.Input{}
	}
	s.newest[domain] = in
}

func (s *inputStore) of(domain structs.PoolName) *scheduler.Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest[domain]
}

// passedOver returns the refusal in a workload's newest reports that names the jobs to be served before it. A decision
// about the workload alone cannot find that out.
func passedOver(w *structs.Workload, reports []*structs.GroupReport) *structs.Refusal {
	if w.Reason != structs.ReasonPriority {
		return nil
	}
	for _, g := range reports {
		for i := range g.Refusals {
			if r := &g.Refusals[i]; r.Code == w.Reason && r.Nodes == 0 && g.Considered == 0 {
				return r
			}
		}
	}
	return nil
}
