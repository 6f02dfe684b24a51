package sim

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/muster-sched/muster/structs"
)

// swfFormat is logs of parallel machines: one machine of equal processors, and jobs that use some or all of them for
// their whole run. The machine is one node with a unit of CPU per processor. At one instant first predictions expire,
// then jobs arrive, then jobs end; a pass follows each arrival and each end. Work that is predicted to end at an
// instant holds nothing in it.
type swfFormat struct{}

func (swfFormat) Name() string { return "swf" }

func (swfFormat) About() string {
	return "logs of parallel machines on -procs processors: Standard Workload Format, or CSV with job, submit, run, procs, req and user; -1 is unknown; who asks for more than -procs gets all; policies default, easy, easy-clair, easy-sjbf, easy-sjbf-clair, easy-tsafrir, conservative"
}

// procsMax limits -procs: decisions multiply amounts.
const procsMax = 1 << 30

func (f swfFormat) Run(ctx context.Context, o *Options, policy string) (*Result, error) {
	src, err := openSWFJobs(o)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	r, err := runSWF(ctx, o, policy, src, nil)
	if err == nil && src.rows.LeftOut > 0 {
		leftOut(r, src.rows.LeftOut)
	}
	return r, err
}

// swfConfig returns the configuration for a log under a policy, and the learner of run times, or nil.
func swfConfig(o *Options, policy string, src Source) (Config, *Learner, error) {
	if o.Procs <= 0 || o.Procs > procsMax {
		return Config{}, nil, errors.New("the size of the machine is not given: say -procs, such as -procs 100")
	}
	rules, err := RulesFor(policy)
	if err != nil {
		return Config{}, nil, err
	}
	cfg := Config{Nodes: swfMachine(o.Procs), Source: src, Seed: o.Seed, First: []Kind{Expired, Submitted, Ended}, Silent: []Kind{Expired},
		Each: true, Whole: true, LeaveOut: true, Due: true, Capacity: 1000 * o.Procs,
		Expire: func(_ *Live, a *structs.Allocation, _ time.Duration) time.Duration {
			return a.Job.RunLimit(a.Job.Groups[0])
		},
		// In the published orders a long wait does not move a job forward.
		Queues: []*structs.Queue{{Path: structs.QueueRoot, MaxWait: structs.MaxWaitOff}},
	}
	if rules.Estimate == "" && rules.Order != "" && rules.Order != structs.OrderAdaptive {
		rules.Estimate = EstimateLimit // orders of the studies go by what submitters say
	}
	learner := rules.learner(&cfg)
	if learner != nil {
		learner.Nameless, learner.Once = true, rules.Estimate == EstimateTsafrir
	}
	err = rules.Apply(&cfg)
	return cfg, learner, err
}

// runSWF replays jobs under a policy. ended is called for each ended job, unless it is nil.
func runSWF(ctx context.Context, o *Options, policy string, src Source, ended func(*Live)) (*Result, error) {
	cfg, learner, err := swfConfig(o, policy, src)
	if err != nil {
		return nil, err
	}
	cfg.Hooks.Ended = func(e *Engine, l *Live) {
		if ended != nil {
			ended(l)
		}
		if o.Progress != nil && e.stats.Done%256 == 0 {
			if s, ok := src.(*swfJobs); ok {
				o.Progress.Report(policy, e.stats.Done, s.rows.Rows, Since(e.now))
			}
		}
	}
	e := NewEngine(cfg)
	if err := e.Run(ctx); err != nil {
		return nil, err
	}
	r := NewResult("swf", policy, e.stats)
	learner.report(r)
	return r, nil
}

// swfMachine returns one node with a unit of CPU per processor.
func swfMachine(procs int64) []*structs.Node {
	n := &structs.Node{Name: "machine", Datacenter: "dc1", Pool: structs.NodePoolDefault, Status: structs.NodeReady, Eligibility: structs.NodeEligible, Epoch: 1,
		Attributes: map[string]string{"kernel.name": "linux"}, Drivers: map[string]*structs.DriverInfo{Driver: {Detected: true, Healthy: true}},
		Resources: structs.NodeResources{CPU: procs, Cores: 1, MHzPerCore: 1, MemoryMiB: 1 << 40, DiskMiB: 1 << 40}}
	nodes := []*structs.Node{n}
	SetIDs(nodes)
	return nodes
}

// swfJobs returns the jobs of a log as batch jobs of one allocation.
type swfJobs struct {
	o    *Options
	rows *inOrder[SWFJob]
	n    int64
}

func openSWFJobs(o *Options) (*swfJobs, error) {
	rows, err := openInOrder(o.Trace, o.Limit, func() (rowReader[SWFJob], error) { return OpenSWF(o.Trace) }, func(j *SWFJob) time.Duration { return j.Submit })
	return &swfJobs{o: o, rows: rows}, err
}

// Close closes the log.
func (s *swfJobs) Close() error { return s.rows.Close() }

// Next returns the next job.
func (s *swfJobs) Next() (*Job, error) {
	r, err := s.rows.Next()
	if err != nil {
		return nil, err
	}
	s.n++
	r.Procs = min(r.Procs, s.o.Procs) // as published: a job that asks for more than the machine has gets all of it
	run := max(r.Run, time.Second)    // as published: a job runs for at least a second
	limit := max(r.Req, time.Second)
	if r.Req <= 0 {
		limit = run
	}
	run = min(run, limit)
	return &Job{At: r.Submit - s.rows.Origin, Run: run, Size: r.Procs, Ref: s.n, Job: &structs.Job{
		Namespace: structs.NamespaceDefault, ID: strconv.FormatInt(r.ID, 10), Type: structs.JobBatch, Priority: structs.JobPriorityDefault,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Submitter: structs.Submitter{Name: r.User, UID: -1, GID: -1}, Runtime: structs.Runtime{Limit: limit},
		Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Driver: Driver, Resources: structs.Resources{CPU: r.Procs, MemoryMiB: 1}}}}},
	}}, nil
}
