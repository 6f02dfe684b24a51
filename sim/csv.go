package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/muster-sched/muster/structs"
)

// csvFormat is a trace of jobs with a header, or a plain SWF file, on any cluster.
//
// Columns (only submit and runtime must be there; times in seconds or as 1h30m, memory in MiB or as 80GiB):
//
//	job         name; default: the number of the row
//	submit      when it was submitted, from any origin
//	runtime     how long it runs once it has all it asks for
//	gpus        in all; a part of one as 0.5. More than a node has: a gang of whole nodes' GPUs
//	gpu_memory  of each GPU; less than the GPU has: the job shares it
//	model       of GPU
//	cpus        cores in all; default 1 for each GPU
//	memory      in all; default 1 GiB for each GPU
//	nodes       allocations that start together; gpus, cpus and memory are divided among them
//	estimate    what the submitter expects it to run for; default: not told
//	limit       wall-clock limit; the job is cut there
//	user, queue, priority (1 to 100, default 50), deadline (as submit is), preemptible (true, false)
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
	return runGeneral(ctx, o, "csv", policy, rules, BuildNodes(kinds), src, src.f)
}

// runGeneral replays jobs on a cluster with what the options ask for.
func runGeneral(ctx context.Context, o *Options, format, policy string, rules Rules, nodes []*structs.Node, src Source, f *file) (*Result, error) {
	cfg := Config{Nodes: nodes, Source: src, Seed: o.Seed, Whole: o.Whole, Notice: o.Notice, Failures: Failures{MTBF: o.MTBF, MTTR: o.MTTR, Seed: o.Seed}}
	if o.RestartCost > 0 {
		cfg.Restart = func(*Live) time.Duration { return o.RestartCost }
	}
	if o.Checkpoint != 0 {
		cfg.Kept = func(_ *Live, ran time.Duration) time.Duration {
			if o.Checkpoint < 0 {
				return 0
			}
			return ran - ran%o.Checkpoint
		}
	}
	if err := rules.Apply(&cfg); err != nil {
		return nil, err
	}
	if o.Progress != nil {
		cfg.Hooks.Ended = func(e *Engine, _ *Live) {
			if e.stats.Done%256 == 0 {
				if f != nil {
					o.Progress.Report(policy, f.read, f.size, Since(e.now))
				} else {
					o.Progress.Report(policy, e.stats.Done, 0, Since(e.now))
				}
			}
		}
	}
	learner := rules.learner(&cfg)
	e := NewEngine(cfg)
	if err := e.Run(ctx); err != nil {
		return nil, err
	}
	r := NewResult(format, policy, e.stats)
	if learner != nil && learner.Errors.N > 0 {
		r.Set("prediction_error", float64(learner.Errors.Relative())/10, "%")
	}
	return r, nil
}

// jobs reads a CSV or SWF trace for the general runner.
type jobs struct {
	o      *Options
	rules  Rules
	kinds  []Machine
	f      *file
	csv    *table
	swf    *SWFReader
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
	s := &jobs{o: o, rules: rules, kinds: kinds, draws: draws{o.Seed*0x9e3779b97f4a7c15 + 7}}
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
	if kind == "swf" {
		if s.swf, err = OpenSWF(o.Trace); err != nil {
			return nil, err
		}
		s.f = s.swf.f
		return s, nil
	}
	if s.f, err = openTrace(o.Trace); err != nil {
		return nil, err
	}
	if s.csv, err = newTable(o.Trace, s.f.in, csvAliases); err == nil {
		err = s.csv.need("submit", "runtime")
	}
	if err != nil {
		s.f.Close()
		return nil, err
	}
	return s, nil
}

func (s *jobs) Close() error { return s.f.Close() }

// asked is one row, whatever its file looks like.
type asked struct {
	job, user, queue, model string
	submit, run             time.Duration
	gpus                    float64
	gpuMiB, cpuMHz, memMiB  int64
	count                   int64
	estimate, limit         time.Duration
	priority                int64
	deadline                time.Duration
	preemptible             bool
}

// Next gives the next job.
func (s *jobs) Next() (*Job, error) {
	if s.o.Limit > 0 && s.n >= s.o.Limit {
		return nil, io.EOF
	}
	var a asked
	var err error
	if s.csv != nil {
		err = s.row(&a)
	} else {
		err = s.swfRow(&a)
	}
	if err != nil {
		return nil, err
	}
	s.n++
	if !s.begun {
		s.begun, s.origin = true, a.submit
	}
	return s.job(&a)
}

func (s *jobs) row(a *asked) error {
	t := s.csv
	if err := t.next(); err != nil {
		return err
	}
	*a = asked{job: t.text("job"), user: t.text("user"), queue: t.text("queue"), model: t.text("model")}
	if a.job == "" {
		a.job = "job-" + strconv.FormatInt(s.n+1, 10)
	}
	var e [11]error
	a.submit, e[0] = t.span("submit", 0)
	a.run, e[1] = t.span("runtime", 0)
	a.gpus, e[2] = t.float("gpus", 0)
	a.gpuMiB, e[3] = t.amount("gpu_memory", 0)
	var cores float64
	cores, e[4] = t.float("cpus", max(1, a.gpus))
	a.cpuMHz = int64(cores * megahertzOfOne)
	a.memMiB, e[5] = t.amount("memory", int64(1024*max(1, a.gpus)))
	a.count, e[6] = t.whole("nodes", 0)
	a.estimate, e[7] = t.span("estimate", 0)
	a.limit, e[8] = t.span("limit", 0)
	a.priority, e[9] = t.whole("priority", structs.JobPriorityDefault)
	a.deadline, e[10] = t.span("deadline", 0)
	for _, err := range e {
		if err != nil {
			return err
		}
	}
	if p := t.text("preemptible"); p != "" {
		var err error
		if a.preemptible, err = strconv.ParseBool(p); err != nil {
			return t.wrong("preemptible", "is neither true nor false")
		}
	}
	if a.priority < structs.JobPriorityMin || a.priority > structs.JobPriorityMax {
		return t.wrong("priority", "is not from 1 to 100")
	}
	if a.gpus > 1 && a.gpus != math.Trunc(a.gpus) {
		return t.wrong("gpus", "is more than one and not a whole number")
	}
	return nil
}

func (s *jobs) swfRow(a *asked) error {
	r, err := s.swf.Next()
	if err != nil {
		return err
	}
	*a = asked{job: "job-" + strconv.FormatInt(r.ID, 10), user: r.User, queue: "", submit: r.Submit, run: r.Run, limit: r.Req, priority: structs.JobPriorityDefault}
	if s.gpus > 0 {
		a.gpus, a.cpuMHz, a.memMiB = float64(r.Procs), r.Procs*megahertzOfOne, max(r.Procs*r.MemMiB, r.Procs*1024)
	} else {
		a.cpuMHz, a.memMiB = r.Procs*megahertzOfOne, max(r.Procs*r.MemMiB, 1)
		a.count = (r.Procs + s.cores - 1) / max(s.cores, 1)
	}
	return nil
}

// job makes the job that a person would have submitted.
func (s *jobs) job(a *asked) (*Job, error) {
	count := max(a.count, 1)
	gpus := int64(a.gpus)
	if a.count == 0 && s.gpus > 0 && gpus > s.gpus {
		count = (gpus + s.gpus - 1) / s.gpus
	}
	if count > structs.GroupCountMax {
		return nil, fmt.Errorf("%s: job %q asks for %d allocations; %d is the most", s.o.Trace, a.job, count, structs.GroupCountMax)
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
	run := a.run
	if a.limit > 0 {
		run = min(run, a.limit)
	}
	j := &structs.Job{
		Namespace: structs.NamespaceDefault, ID: a.job, Name: a.job, Type: structs.JobBatch, Priority: int(a.priority), AllAtOnce: count > 1,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Groups: []*structs.Group{g}, Queue: a.queue,
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
