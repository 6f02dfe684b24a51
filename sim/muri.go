package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// muriFormat is the traces of Muri (Zhao et al., SIGCOMM'22): deep-learning jobs that may be preempted and resumed at
// any time. The published policies are replayed with the published preemption cost, which every running job pays at
// every event; under other policies a job pays it when it is resumed, and loses what -checkpoint says.
type muriFormat struct{}

func (muriFormat) Name() string { return "muri" }

func (muriFormat) About() string {
	return "preemptible deep-learning jobs (job, gpus, submit_s, iterations, iter_s, model): srtf, srsf, 2d-las, default; -durations known|unknown"
}

// muriPublished are the policies with published results.
var muriPublished = map[string]struct {
	order structs.Order
	knows bool // run times
}{
	"srtf":   {structs.OrderSRTF, true},
	"srsf":   {structs.OrderSRSF, true},
	"2d-las": {structs.OrderMLFQ, false},
}

// muriStretch is the slowdown of an iteration under the study's scheduler.
const muriStretch = 1.015

// muriRestart is the cost of stopping and starting a job that the study measured, in seconds, by model and by GPUs (1,
// 2, 4, 8, 16, 32).
var muriRestart = map[string][6]int{
	"vgg16":              {7, 7, 8, 9, 9, 10},
	"vgg19":              {7, 7, 8, 9, 10, 10},
	"resnet18":           {4, 5, 5, 7, 7, 7},
	"shufflenet_v2_x1_0": {4, 4, 5, 5, 7, 8},
	"a2c":                {38, 39, 39, 46, 46, 46},
	"dqn":                {5, 5, 6, 6, 8, 8},
}

// muriRestartOther is the cost of every other model.
const muriRestartOther = 10 * time.Second

// muriRow is one job of the trace.
type muriRow struct {
	job    string
	gpus   int64
	submit time.Duration
	work   time.Duration
	model  string
}

func (r *muriRow) restart() time.Duration {
	c, ok := muriRestart[r.model]
	if !ok {
		return muriRestartOther
	}
	at := bits.Len64(uint64(max(r.gpus, 1) - 1)) // log2 of the GPUs, rounded up
	return time.Duration(c[min(at, len(c)-1)]) * time.Second
}

func (muriFormat) Run(ctx context.Context, o *Options, policy string) (*Result, error) {
	knows := true
	switch o.Durations {
	case "unknown":
		knows = false
	case "", "known":
	default:
		return nil, fmt.Errorf("durations are known or unknown, not %q", o.Durations)
	}
	rows, err := readMuri(o.Trace, o.Limit)
	if err != nil {
		return nil, err
	}
	kinds, err := ParseNodes(cmp.Or(o.Nodes, "8x8"))
	if err != nil {
		return nil, err
	}
	pub, published := muriPublished[policy]
	rules := Rules{}
	if published {
		rules = Rules{Order: pub.order, Preempt: structs.PreemptOrder, Placement: "first-fit"}
		if pub.knows && !knows {
			return nil, fmt.Errorf("policy %s goes by run times; it has no meaning with -durations unknown", policy)
		}
		knows = pub.knows
		if o.Checkpoint != 0 || o.Cluster.given() != "" {
			return nil, fmt.Errorf("policy %s is replayed with its published protocol, without -checkpoint and -queues", policy)
		}
	} else if rules, err = RulesFor(policy); err != nil {
		return nil, err
	}
	m := &muri{o: o, policy: policy, rows: rows, knows: knows, perNode: 1}
	for _, k := range kinds {
		m.perNode = max(m.perNode, int64(k.GPUs))
	}
	cfg := Config{Nodes: BuildNodes(kinds), Source: m, Seed: o.Seed, First: []Kind{Ended, Submitted, Woken}, Whole: true, Window: math.MaxInt32,
		Queues: []*structs.Queue{{Path: structs.QueueDefault}}}
	if err := o.Cluster.configure(&cfg); err != nil {
		return nil, err
	}
	if err := rules.Apply(&cfg); err != nil {
		return nil, err
	}
	if published {
		q := *cfg.Queues[0]
		q.PreemptMinRuntime, q.PreemptMax, q.MaxWait = 1, math.MaxInt64, structs.MaxWaitOff // the study has no such limits
		cfg.Queues[0] = &q
		if pub.order == structs.OrderMLFQ {
			cfg.Chooser = &queue.LAS2D{}
		}
		m.tax = true
	} else {
		cfg.Restart = func(l *Live) time.Duration { return rows[l.Ref].restart() }
		o.losses(&cfg)
	}
	cfg.Hooks.Event, cfg.Hooks.Ended = m.event, m.ended
	e := NewEngine(cfg)
	if err := e.Run(ctx); err != nil {
		return nil, err
	}
	return m.result(e), nil
}

// muri is one run.
type muri struct {
	o       *Options
	policy  string
	rows    []muriRow
	next    int
	perNode int64
	knows   bool
	tax     bool // every running job pays the cost at every event
	last    structs.LogTime
	live    []*Live // in the order of their submission
	done    int64
	waits   [4]Dist
}

// Next returns the jobs of the trace.
func (m *muri) Next() (*Job, error) {
	if m.next == len(m.rows) {
		return nil, io.EOF
	}
	r := &m.rows[m.next]
	m.next++
	each, count := r.gpus, int64(1)
	if r.gpus > m.perNode {
		each, count = m.perNode, (r.gpus+m.perNode-1)/m.perNode
	}
	g := &structs.Group{Name: "g", Count: int(count), Tasks: []*structs.Task{{Name: "t", Driver: Driver,
		Resources: structs.Resources{CPU: each * megahertzOfOne, MemoryMiB: each * 1024, GPU: []structs.GPURequest{{Count: each}}}}}}
	if count > 1 {
		g.Gang = &structs.Gang{}
	}
	j := &structs.Job{Namespace: structs.NamespaceDefault, ID: r.job, Name: r.job, Type: structs.JobBatch, Priority: structs.JobPriorityDefault, AllAtOnce: count > 1,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Groups: []*structs.Group{g}, Preemptible: true, Submitter: structs.Submitter{UID: -1, GID: -1}}
	return &Job{Job: j, At: r.submit - m.rows[0].submit, Run: r.work, Size: r.gpus, Ref: int64(m.next - 1)}, nil
}

// event keeps the study's accounts before each pass: the preemption cost of running jobs, and what is known of
// remaining run times.
func (m *muri) event(e *Engine, k Kind, l *Live) {
	if k == Submitted {
		m.live = append(m.live, l)
		if m.knows {
			e.SetExpect(l, l.Run)
		}
	}
	since := e.now.Sub(m.last)
	m.last = e.now
	if since == 0 {
		return
	}
	kept := m.live[:0]
	for _, l := range m.live {
		if l.End != 0 {
			continue
		}
		kept = append(kept, l)
		if !l.Running() {
			continue
		}
		left := l.Left(e.now)
		if m.tax && left > 0 { // a job that ends at this moment does not pay
			e.Delay(l, min(m.rows[l.Ref].restart(), since))
			left = l.Left(e.now)
		}
		if m.knows {
			e.SetExpect(l, l.Ran(e.now)+left)
		}
	}
	clear(m.live[len(kept):])
	m.live = kept
}

func (m *muri) ended(e *Engine, l *Live) {
	m.done++
	wait := max(0, l.End.Sub(l.Submit)-l.Run).Seconds()
	for i := range Classes {
		if l.Size <= Classes[i].Max {
			m.waits[i].Add(wait)
			break
		}
	}
	if m.o.Progress != nil && m.done%64 == 0 {
		m.o.Progress.Report(m.policy, m.done, int64(len(m.rows)), Since(e.now))
	}
}

// result adds the waits as the study measures them: the time in the system minus the work.
func (m *muri) result(e *Engine) *Result {
	r := NewResult("muri", m.policy, e.stats)
	r.Classes = nil
	for i := range Classes {
		if m.waits[i].N > 0 {
			r.Classes = append(r.Classes, Figure{Classes[i].Name, m.waits[i].Quantile(0.95), "s"})
		}
	}
	return r
}

// readMuri reads a trace: the first limit jobs by submission, 0 for all.
func readMuri(path string, limit int64) ([]muriRow, error) {
	f, err := openTrace(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in, err := newTable(path, f.in, nil)
	if err != nil {
		return nil, err
	}
	if err := in.need("job", "gpus", "submit_s", "iterations", "iter_s", "model"); err != nil {
		return nil, err
	}
	var out []muriRow
	for {
		if err := in.next(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		var bad error
		num := func(col string, most float64) float64 {
			v, err := in.float(col, 0)
			switch {
			case bad != nil:
			case err != nil:
				bad = err
			case in.text(col) == "":
				bad = in.must(col)
			case v > most:
				bad = in.wrong(col, fmt.Sprintf("is more than %g", most))
			}
			return v
		}
		r := muriRow{job: in.text("job"), model: in.text("model"), gpus: int64(num("gpus", 1<<20)), submit: nanos(num("submit_s", 1e9))}
		if bad == nil && r.gpus < 1 {
			bad = in.wrong("gpus", "is no number of GPUs")
		}
		r.work = nanos(min(num("iterations", 1e12)*num("iter_s", 1e6)*muriStretch, 9e9))
		if bad != nil {
			return nil, bad
		}
		if r.job == "" {
			r.job = "job-" + strconv.Itoa(len(out)+1)
		}
		out = append(out, r)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: there is no job in it that could be replayed", path)
	}
	bySubmission(out, func(r *muriRow) time.Duration { return r.submit })
	if limit > 0 && int64(len(out)) > limit {
		out = out[:limit]
	}
	return out, nil
}

// nanos converts seconds to a duration with nanosecond precision, so that events coincide only where the trace has
// equal times.
func nanos(v float64) time.Duration { return time.Duration(math.Round(v * 1e9)) }
