package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/muster-sched/muster/structs"
)

// csvFormat is a trace of jobs with a header, or a plain SWF file, on any cluster.
//
// Columns (only submit and runtime must be there; times in seconds or as 1h30m, memory in MiB or as 80GiB):
//
//	job         name; default: the number of the row
//	submit      time of submission, from any origin
//	runtime     run time with all requested resources
//	gpus        in total; a part of one as 0.5. More than a node has: a gang of whole nodes' GPUs
//	gpu_memory  of each GPU; less than the GPU has: the job shares it
//	model       of GPU
//	cpus        cores in all; default 1 for each GPU
//	memory      in all; default 1 GiB for each GPU
//	nodes       allocations that start together; gpus, cpus and memory are divided among them
//	estimate    the run time that the submitter expects; default: none
//	limit       wall-clock limit; the job is cut there
//	user, namespace, queue, priority (1 to 100, default 50), deadline (as submit is), preemptible (true, false)
type csvFormat struct{}

func (csvFormat) Name() string { return "csv" }

func (csvFormat) About() string {
	return "jobs with a header (submit, runtime, gpus, gpu_memory, cpus, memory, user, queue, priority, deadline, ...), or a plain SWF file"
}

var csvAliases = map[string]string{
	"id": "job", "name": "job", "job_id": "job", "submit_time": "submit", "submit_s": "submit", "run": "runtime", "run_time": "runtime", "duration": "runtime",
	"duration_s": "runtime", "gpu": "gpus", "num_gpus": "gpus", "num_gpu": "gpus", "gpu_mem": "gpu_memory", "gpu_memory_mib": "gpu_memory", "cpu": "cpus", "mem": "memory",
	"memory_mib": "memory", "prio": "priority", "expected": "estimate", "req": "limit", "time_limit": "limit", "gpu_model": "model",
}

func (csvFormat) Run(ctx context.Context, o *Options, policy string) (*Result, error) {
	rules, err := RulesFor(policy)
	if err != nil {
		return nil, err
	}
	spec := o.Nodes
	if spec == "" {
		return nil, errors.New("no cluster is given: say -nodes, such as -nodes 8x8 or -nodes 1000x8xH100-80GiB")
	}
	kinds, err := ParseNodes(spec)
	if err != nil {
		return nil, err
	}
	src, err := openJobs(o, rules, kinds)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	r, err := runGeneral(ctx, o, "csv", policy, rules, BuildNodes(kinds), src, src.rows.Rows)
	if err == nil && src.rows.LeftOut > 0 {
		leftOut(r, src.rows.LeftOut)
	}
	return r, err
}

// leftOut adds the number of rows that were not replayed to a result.
func leftOut(r *Result, n int64) {
	r.Set("left_out", float64(n), "")
	r.Notes = append(r.Notes, fmt.Sprintf("%s: %d rows are left out: they do not say when the job was submitted, how long it ran or how much it held", r.Policy, n))
}

// runGeneral replays jobs on a cluster under the given options. all is the number of jobs, 0 when it is not known.
func runGeneral(ctx context.Context, o *Options, format, policy string, rules Rules, nodes []*structs.Node, src Source, all int64) (*Result, error) {
	cfg := Config{Nodes: nodes, Source: src, Seed: o.Seed, Whole: o.Whole, Notice: o.Notice, Failures: Failures{MTBF: o.MTBF, MTTR: o.MTTR, Seed: o.Seed}}
	if o.RestartCost > 0 {
		cfg.Restart = func(*Live) time.Duration { return o.RestartCost }
	}
	o.losses(&cfg)
	if s, ok := src.(interface{ configure(cfg *Config) }); ok {
		s.configure(&cfg)
	}
	if err := o.Cluster.configure(&cfg); err != nil {
		return nil, err
	}
	if err := rules.Apply(&cfg); err != nil {
		return nil, err
	}
	if o.Progress != nil {
		cfg.Hooks.Ended = func(e *Engine, _ *Live) {
			if e.stats.Done%256 == 0 {
				o.Progress.Report(policy, e.stats.Done, all, Since(e.now))
			}
		}
	}
	learner := rules.learner(&cfg)
	e := NewEngine(cfg)
	if err := e.Run(ctx); err != nil {
		return nil, err
	}
	r := NewResult(format, policy, e.stats)
	learner.report(r)
	return r, nil
}

// losses sets what work loses that is preempted or whose node fails.
func (o *Options) losses(cfg *Config) {
	switch {
	case o.Checkpoint > 0:
		cfg.Saves = o.Checkpoint
		cfg.Kept = func(_ *Live, ran time.Duration) time.Duration { return ran - ran%o.Checkpoint }
	case o.Checkpoint < 0:
		cfg.Kept = func(*Live, time.Duration) time.Duration { return 0 }
	}
}

// jobs returns the jobs of a trace for the general runner.
type jobs struct {
	o      *Options
	rules  Rules
	rows   *inOrder[asked] // nil: the caller supplies the rows
	n      int64
	origin time.Duration
	begun  bool
	draws  draws
	gpus   int64 // of the largest node
	cores  int64
	gpuMiB int64 // of the smallest GPU
}

// newJobs makes a source without a file.
func newJobs(o *Options, rules Rules, kinds []Machine) *jobs {
	s := &jobs{o: o, rules: rules, draws: draws{o.Seed*0x9e3779b97f4a7c15 + 7}}
	for _, m := range kinds {
		s.gpus, s.cores = max(s.gpus, int64(m.GPUs)), max(s.cores, m.CPU/megahertzOfOne)
		if m.GPUs > 0 && (s.gpuMiB == 0 || m.GPUMiB < s.gpuMiB) {
			s.gpuMiB = m.GPUMiB
		}
	}
	return s
}

func openJobs(o *Options, rules Rules, kinds []Machine) (*jobs, error) {
	s := newJobs(o, rules, kinds)
	kind, err := guess(o.Trace)
	if err != nil {
		return nil, err
	}
	s.rows, err = openInOrder(o.Trace, o.Limit, func() (rowReader[asked], error) {
		if kind == "swf" {
			swf, err := OpenSWF(o.Trace)
			return &swfRows{jobs: s, SWFReader: swf}, err
		}
		return openRows(o.Trace)
	}, func(a *asked) time.Duration { return a.submit })
	return s, err
}

// Close closes the trace.
func (s *jobs) Close() error { return s.rows.Close() }

// Next returns the next job.
func (s *jobs) Next() (*Job, error) {
	a, err := s.rows.Next()
	if err != nil {
		return nil, err
	}
	s.n++
	s.begun, s.origin = true, s.rows.Origin
	return s.job(&a)
}

// job makes the job that a user would have submitted for a row.
func (s *jobs) job(a *asked) (*Job, error) {
	count := max(a.count, 1)
	gpus := int64(a.gpus)
	if a.count == 0 && s.gpus > 0 && gpus > s.gpus {
		count = (gpus + s.gpus - 1) / s.gpus
	}
	if count > structs.GroupCountMax {
		return nil, fmt.Errorf("%s:%d: job %q asks for %d allocations; %d is the most", s.o.Trace, a.line, a.job, count, structs.GroupCountMax)
	}
	res := structs.Resources{CPU: max(a.cpuMHz/count, 1), MemoryMiB: max(a.memMiB/count, 1)}
	size := max(gpus, 1)
	if a.gpus > 0 {
		r := structs.GPURequest{Count: (gpus + count - 1) / count, Model: a.model}
		switch {
		case a.gpus < 1:
			r.Count, r.Share, r.Compute = 1, max(1, int64(a.gpus*100+0.5)), max(1, int64(a.gpus*100+0.5))
		case a.gpuMiB > 0 && a.gpuMiB < s.gpuMiB:
			r.MemoryMiB = a.gpuMiB
		}
		res.GPU = []structs.GPURequest{r}
	} else if s.gpus == 0 {
		size = max(1, a.cpuMHz/megahertzOfOne)
	}
	g := &structs.Group{Name: "g", Count: int(count), Tasks: []*structs.Task{{Name: "t", Driver: Driver, Resources: res}}}
	if count > 1 {
		g.Gang = &structs.Gang{}
	}
	if err := s.o.Cluster.admits(cmp.Or(a.namespace, structs.NamespaceDefault), structs.QueuePath(a.queue)); err != nil {
		return nil, fmt.Errorf("%s:%d: job %q: %w", s.o.Trace, a.line, a.job, err)
	}
	run := a.run
	if a.limit > 0 {
		run = min(run, a.limit)
	}
	j := &structs.Job{
		Namespace: cmp.Or(a.namespace, structs.NamespaceDefault), ID: a.job, Name: a.job, Type: structs.JobBatch, Priority: int(a.priority), AllAtOnce: count > 1,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Groups: []*structs.Group{g}, Queue: structs.QueuePath(a.queue),
		Preemptible: a.preemptible || s.o.Preemptible, Submitter: structs.Submitter{Name: a.user, UID: -1, GID: -1},
		Runtime: structs.Runtime{Expected: a.estimate, Limit: a.limit},
	}
	if a.deadline > 0 {
		j.Deadline = Epoch.Add(a.deadline - s.origin)
	}
	switch {
	case s.rules.Estimate == EstimateTrue:
		j.Runtime.Expected = run
	case s.rules.Estimate == EstimateNone:
		j.Runtime = structs.Runtime{}
	case s.o.EstimateError > 0:
		j.Runtime.Expected = s.draws.spread(run, s.o.EstimateError)
	}
	return &Job{Job: j, At: a.submit - s.origin, Run: run, Size: size, Ref: s.n}, nil
}
