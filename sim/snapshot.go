package sim

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// snapshotFormat is a live cluster at the moment of a decision, the output of `muster operator scheduler dump`. Running
// work continues for the rest of its expected run time or limit (services, and batch work that has neither, for ever);
// waiting work is decided again, until all of it has ended.
type snapshotFormat struct{}

func (snapshotFormat) Name() string { return "snapshot" }

func (snapshotFormat) About() string {
	return "a live cluster as `muster operator scheduler dump` wrote it, with what runs and waits; policies as csv"
}

func (snapshotFormat) Run(ctx context.Context, o *Options, policy string) (*Result, error) {
	rules, err := RulesFor(policy)
	if err != nil {
		return nil, err
	}
	f, err := openTrace(o.Trace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(f.in)
	if err != nil {
		return nil, err
	}
	in, _, err := scheduler.Load(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Trace, err)
	}
	src := &pictured{in: &in, o: o, draws: draws{o.Seed*0x9e3779b97f4a7c15 + 11}}
	var nodes []*structs.Node
	in.View.EachNode(func(n *structs.Node) bool {
		nodes = append(nodes, n)
		return true
	})
	src.gather()
	return runGeneral(ctx, o, "snapshot", policy, rules, nodes, src, int64(len(src.jobs)))
}

// pictured returns the jobs of a snapshot: first the running ones, then the waiting ones, all at the beginning.
type pictured struct {
	in    *scheduler.Input
	o     *Options
	draws draws
	jobs  []*Job
	at    int
}

// configure sets up a run with what the dumped cluster has: limits on saves, queues, quotas and the reservations of operators.
func (s *pictured) configure(cfg *Config) {
	cfg.Scheduler.CheckpointStorage, cfg.Scheduler.MaxCheckpoints = s.in.Config.CheckpointStorage, s.in.Config.MaxCheckpoints
	if q := s.in.Queues; q != nil {
		cfg.Queues, cfg.Tenants = slices.Clone(q.Queues), q.Tenants
	}
	for _, r := range s.in.Reserved {
		if r.JobID != "" || r.End <= s.in.Now {
			continue
		}
		c := *r
		c.Start, c.End = Epoch.Add(r.Start.Sub(s.in.Now)), Epoch.Add(r.End.Sub(s.in.Now))
		cfg.Reservations = append(cfg.Reservations, &c)
	}
}

// gather makes one job for each job that holds resources or waits.
func (s *pictured) gather() {
	held := map[structs.JobKey]*Job{}
	s.in.View.EachAllocation(func(a *structs.Allocation) bool {
		if a.Job == nil || a.Desired != structs.DesiredRun {
			a.Job = &structs.Job{Namespace: structs.NamespaceDefault, ID: "unknown-" + a.ID.Short(), Type: structs.JobService, Priority: structs.JobPriorityDefault,
				Groups: []*structs.Group{{Name: cmp.Or(a.Group, "g"), Count: 1}}}
		}
		j := held[a.Job.Key()]
		if j == nil {
			j = &Job{Job: s.adopt(a.Job), Run: s.left(a)}
			held[a.Job.Key()] = j
			s.jobs = append(s.jobs, j)
		}
		a.Job, a.Group = j.Job, cmp.Or(a.Group, "g")
		if a.Saved != nil {
			a.Saved.Time = Epoch.Add(a.Saved.Time.Sub(s.in.Now))
		}
		a.NameIndex = len(j.Held)
		j.Held = append(j.Held, a)
		return true
	})
	for i := range s.in.Pending {
		w := &s.in.Pending[i]
		if w.Job == nil || !w.Job.Placeable() || held[w.Key] != nil || w.Job.Type == structs.JobSystem || w.Job.Type == structs.JobSysBatch {
			continue
		}
		run := cmp.Or(w.Expect, w.Job.Runtime.Expected, w.Job.Runtime.Limit)
		if w.Job.Type == structs.JobService {
			run = -1
		}
		s.jobs = append(s.jobs, &Job{Job: s.adopt(w.Job), Run: s.spread(cmp.Or(run, time.Hour))})
	}
}

// adopt returns the simulation's copy of a job.
func (s *pictured) adopt(j *structs.Job) *structs.Job {
	c := *j
	c.Preemptible = c.Preemptible || s.o.Preemptible
	return &c
}

// left returns how much longer an allocation runs: negative for ever.
func (s *pictured) left(a *structs.Allocation) time.Duration {
	limit := time.Duration(0)
	if g := a.Job.Group(a.Group); g != nil {
		limit = a.Job.RunLimit(g)
	}
	all := cmp.Or(a.Expect, a.Job.Runtime.Expected, limit)
	if a.Job.Type == structs.JobService || all <= 0 {
		return -1
	}
	return max(s.spread(all)-s.in.Now.Sub(a.CreateTime), time.Second)
}

// spread varies an expected run time if the options ask for it.
func (s *pictured) spread(d time.Duration) time.Duration {
	if s.o.EstimateError <= 0 || d < 0 {
		return d
	}
	return s.draws.spread(d, s.o.EstimateError)
}

// Next returns the next job.
func (s *pictured) Next() (*Job, error) {
	if s.at == len(s.jobs) {
		return nil, io.EOF
	}
	s.at++
	return s.jobs[s.at-1], nil
}
