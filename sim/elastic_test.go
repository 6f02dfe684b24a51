package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// elasticRun is a random cluster with elastic gangs and other work, under the default configuration, and what is counted of it.
type elasticRun struct {
	t    *testing.T
	seed uint64
	e    *Engine

	minRuntime time.Duration
	last       map[structs.JobKey]structs.LogTime // of each gang: its last start or resize
	size       map[structs.JobKey]int
	grown      map[structs.JobKey]int
	shrunk     map[structs.JobKey]int
	others     map[structs.JobKey]int  // ends of other work while a gang runs
	gave       map[structs.JobKey]bool // whether its last resize was a shrinking
	added      map[structs.JobKey][]added
	owner      map[string]*run            // of each GPU, after the last pass
	since      map[string]structs.LogTime // since when a GPU is free
	lost, got  float64                    // GPU seconds: done again because of growth; held by the added members
	grew, kept int
	resizes    int64   // of the engine, before this pass
	charged    float64 // the same
}

// added are members that a gang grew by.
type added struct {
	runs []*run
	from structs.LogTime
}

// TestElasticIsNotShaken: under the default configuration, elastic gangs grow only where it pays, and never while work waits
// that could have the room; there is a smallest time between their resizes, and no more resizes than other work gives
// reason for. The simulator charges for growth what the scheduler has compared.
func TestElasticIsNotShaken(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	grew, kept, lost, got := 0, 0, 0.0, 0.0
	for seed := range seeds {
		r := &elasticRun{t: t, seed: seed, last: map[structs.JobKey]structs.LogTime{}, size: map[structs.JobKey]int{}, grown: map[structs.JobKey]int{}, shrunk: map[structs.JobKey]int{},
			others: map[structs.JobKey]int{}, added: map[structs.JobKey][]added{}, gave: map[structs.JobKey]bool{}, owner: map[string]*run{}, since: map[string]structs.LogTime{}}
		r.run()
		grew, kept, lost, got = grew+r.grew, kept+r.kept, lost+r.lost, got+r.got
	}
	t.Logf("%d seeds: %d growths, %d passes in which one did not grow because it loses more; %.0f GPU seconds done again, %.0f gained", seeds, grew, kept, lost, got)
	if 2*lost > got { // in one history it may be more than is gained, because members can be given back later
		t.Errorf("%.0f GPU seconds are done again, and only %.0f gained", lost, got)
	}
	if 2*grew < int(seeds) || kept == 0 || lost == 0 {
		t.Errorf("that proves nothing")
	}
}

func (r *elasticRun) run() {
	rng := rand.New(rand.NewPCG(r.seed, 6))
	var jobs []*Job
	at := time.Duration(0)
	for i := range 60 {
		at += time.Duration(rng.ExpFloat64() * float64(8*time.Minute))
		run := time.Duration(float64(5*time.Minute) * float64(int64(1)<<rng.IntN(6)) * (0.5 + rng.Float64()))
		j := gpuJob(fmt.Sprint("j", i), at, run, []int64{1, 1, 2, 4}[rng.IntN(4)])
		if rng.IntN(3) == 0 {
			j = gpuJob(fmt.Sprint("elastic", i), at, 4*run, 1)
			g := j.Job.Groups[0]
			g.Count = 1 + rng.IntN(2)
			g.Gang, g.Elastic = &structs.Gang{}, &structs.Elastic{Min: 1, Max: g.Count + 1 + rng.IntN(4)}
			switch rng.IntN(3) {
			case 0:
				g.Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: time.Minute}
			case 1:
				g.Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: 10 * time.Minute}
			}
		}
		j.Job.Runtime.Expected = j.Run
		jobs = append(jobs, j)
	}
	cfg := Config{Nodes: nodes(r.t, []string{"1x8", "2x4", "3x4"}[rng.IntN(3)]), Source: &list{jobs: jobs}, Scheduler: *structs.DefaultSchedulerConfig(), Seed: r.seed}
	cfg.Policy = policy.For(nil, cfg.Scheduler)
	r.minRuntime = (&contend.QueueTable{}).Settings(structs.QueueDefault, &cfg.Scheduler).PreemptMinRuntime
	cfg.Kept = func(l *Live, ran time.Duration) time.Duration {
		if l.Job.Job.Saves() {
			return ran
		}
		return 0
	}
	cfg.Restart = func(l *Live) time.Duration {
		if c := l.Job.Job.Groups[0].Checkpoint; c != nil {
			return c.Cost
		}
		return 0
	}
	cfg.Hooks.Passed, cfg.Hooks.Ended = r.passed, r.ended
	r.e = NewEngine(cfg)
	if err := r.e.Run(context.Background()); err != nil {
		r.t.Fatalf("seed %d: %v", r.seed, err)
	}
	if r.e.stats.Left > 0 {
		r.t.Errorf("seed %d: %d jobs never end", r.seed, r.e.stats.Left)
	}
	if s := r.e.stats; int(s.Resizes) == 0 && r.grew > 0 {
		r.t.Errorf("seed %d: nothing is charged for %d growths", r.seed, r.grew)
	}
}

func (r *elasticRun) failf(l *Live, format string, args ...any) {
	r.t.Helper()
	r.t.Errorf("seed %d, %v, %s: %s", r.seed, Since(r.e.now), l.Key.ID, fmt.Sprintf(format, args...))
}

// passed looks at what a pass has changed.
func (r *elasticRun) passed(e *Engine, _ *scheduler.Input, _ *scheduler.Plan, rep *scheduler.Report) {
	for i := range rep.Workloads {
		for _, g := range rep.Workloads[i].Groups {
			for _, x := range g.Refusals {
				if x.Dimension == structs.DimensionGrowth && x.Of > 0 {
					r.kept++
				}
			}
		}
	}
	resizes, charged, lost := e.stats.Resizes-r.resizes, e.stats.ResizeLost-r.charged, r.lost
	r.resizes, r.charged = e.stats.Resizes, e.stats.ResizeLost
	defer func() {
		if resizes == 1 && r.lost > lost && math.Abs(charged-(r.lost-lost)) > 1e-3 {
			r.t.Errorf("seed %d, %v: a growth is charged %.3f GPU seconds, want %.3f", r.seed, Since(e.now), charged, r.lost-lost)
		}
	}()
	defer r.own()
	for l := e.holders; l != nil; l = l.nextHolder {
		if l.Job.Job.Groups[0].Elastic == nil {
			continue
		}
		u := &l.units[0]
		was, is := r.size[l.Key], len(u.runs)
		last := r.last[l.Key]
		r.size[l.Key] = is
		switch {
		case was == is:
			continue
		case was == 0:
		case is > was:
			r.grown[l.Key]++
			r.grows(l, was, last)
		default:
			r.shrunk[l.Key]++
			if d := e.now.Sub(last); d < r.minRuntime && (d > 0 || !r.gave[l.Key]) { // several may take members at one moment
				r.failf(l, "shrinks %v after its last start or resize", d)
			}
			r.left(l)
		}
		r.last[l.Key], r.gave[l.Key] = e.now, is < was
		if ro := l.work.Rosters[0]; int(ro.Resizes.Grown) != r.grown[l.Key] || int(ro.Resizes.Shrunk) != r.shrunk[l.Key] || len(ro.Members) != is {
			r.failf(l, "it has %d members, grew %d times and shrank %d times; its roster has %d and says %+v", is, r.grown[l.Key], r.shrunk[l.Key], len(ro.Members), ro.Resizes)
		}
	}
}

// own notes which GPUs are free, and since when.
func (r *elasticRun) own() {
	now := map[string]*run{}
	for _, x := range r.e.runs {
		for i := range x.alloc.Grants {
			now[x.alloc.Grants[i].Instance] = x
		}
	}
	for gpu := range r.owner {
		if now[gpu] == nil {
			r.since[gpu] = r.e.now
		}
	}
	r.owner = now
}

// grows checks a growth from a number of members, of a gang that last started or was resized at a time.
func (r *elasticRun) grows(l *Live, was int, last structs.LogTime) {
	r.grew++
	u, e := &l.units[0], r.e
	if d := e.now.Sub(last); d < r.minRuntime {
		r.failf(l, "grows %v after its last start or resize", d)
	}
	lost := e.now.Sub(last) // of each member
	if c := l.Job.Job.Groups[0].Checkpoint; c != nil {
		lost = c.Cost
	}
	lost *= time.Duration(was)
	left := u.left
	if !l.Job.Job.Saves() {
		left -= e.now.Sub(last)
	}
	if gain := max(left, 0) * time.Duration(len(u.runs)-was); lost >= gain {
		r.failf(l, "grows from %d to %d: its members lose %v, and those that are added have %v", was, len(u.runs), lost, gain)
	}
	r.lost += lost.Seconds()
	r.added[l.Key] = append(r.added[l.Key], added{append([]*run{}, u.runs[was:]...), e.now})
	for _, x := range u.runs[was:] {
		for i := range x.alloc.Grants {
			gpu := x.alloc.Grants[i].Instance
			if o := r.owner[gpu]; o != nil && o != x {
				r.failf(l, "grows into a GPU that %s has just left", o.live.Key.ID)
			}
			if since := r.since[gpu]; since > 0 && e.now.Sub(since) < r.minRuntime {
				r.failf(l, "grows into a GPU that has been free for %v", e.now.Sub(since))
			}
		}
	}
	for _, x := range u.runs[was:] { // each of them alone
		for _, o := range e.live {
			g := o.Job.Job.Groups[0]
			need := gpusEach(g)
			if o.holds == 0 && o.Submit <= e.now && g.Count == 1 && g.Gang == nil && e.nodes[x.node].free+1 >= need {
				r.failf(l, "takes a GPU of %s, where %s, which needs %d, could run instead of waiting", e.nodes[x.node].node.Name, o.Key.ID, need)
			}
		}
	}
}

func gpusEach(g *structs.Group) int64 { return g.Tasks[0].Resources.GPU[0].Count }

// left adds up what members had from which a gang has shrunk, or that end with it.
func (r *elasticRun) left(l *Live) {
	for i := range r.added[l.Key] {
		a := &r.added[l.Key][i]
		var stay []*run
		for _, x := range a.runs {
			if r.e.runs[x.alloc.ID] == x {
				stay = append(stay, x)
				continue
			}
			r.got += r.e.now.Sub(a.from).Seconds()
		}
		a.runs = stay
	}
}

func (r *elasticRun) ended(_ *Engine, l *Live) {
	if l.Job.Job.Groups[0].Elastic == nil {
		for k := range r.size {
			r.others[k]++
		}
		return
	}
	r.left(l)
	if n, most := r.grown[l.Key], 1+r.others[l.Key]; n > most {
		r.failf(l, "grew %d times; while it ran, other work ended only %d times", n, most-1)
	}
	if n := r.shrunk[l.Key]; n > r.grown[l.Key]+4 {
		r.failf(l, "shrank %d times, grew %d times", n, r.grown[l.Key])
	}
	delete(r.size, l.Key)
}
