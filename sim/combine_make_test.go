package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/predict"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// option is one dimension of the random histories of TestCombinations, with the values it takes.
type option struct {
	name   string
	values []string
}

// combinedOrders are all orders, and lists of each kind.
func combinedOrders() (out []string) {
	for _, o := range append(queue.Names(), "priority,fair", "fair,sjf", "edf,fair", "priority,srtf", "fcfs,lottery") {
		out = append(out, string(o))
	}
	return out
}

// combined are the options whose values and pairs of values the histories have to cover. The product of the first three
// is walked through; the others are drawn.
var combined = []option{
	{"order", combinedOrders()},
	{"backfill", backfills},
	{"preempt", []string{structs.PreemptNone, structs.PreemptPriority, structs.PreemptReclaim, structs.PreemptDeadline, structs.PreemptOrder}},
	{"placement", []string{"", "binpack", "spread", "first-fit", "random"}},
	{"cluster", []string{"one node", "equal", "mixed"}},
	{"queues", []string{"one", "tree", "guarantee", "limit", "soft limit", "caps", "user caps", "minutes"}},
	{"work", []string{"plain", "count", "gang", "elastic", "array", "deadline", "depends", "share", "cpu", "mixed"}},
	{"preemptible", []string{"no", "some", "all"}},
	{"saves", []string{"no", "free", "costly"}},
	{"times", []string{"exact", "limit", "unknown", "learned", "late"}},
	{"failures", []string{"no", "some"}},
	{"reserved", []string{"no", "nodes", "amount"}},
	{"max_wait", []string{"default", "2h"}},
	{"priorities", []string{"equal", "spread"}},
	{"limits of preemption", []string{"default", "tight"}},
	{"depth", []string{"default", "window", "backfill_max_jobs", "reserve_depth"}},
	{"waiting", []string{"whole", "by shape"}},
	{"models", []string{"one", "two", "limits"}}, // drawn apart, so that the others stay as they were before there were models
	{"groups", []string{"one", "joint"}},         // the same
}

// history is one random cluster with its queues and jobs.
type history struct {
	seed   uint64
	is     map[string]string // value of each option
	rng    *rand.Rand
	apart  *rand.Rand // for models
	groups *rand.Rand // for groups
	cfg    Config
	jobs   []*Job
	held   []*structs.Reservation // of operators
	node   int                    // GPUs of the smallest node
	nodes  int
	exact  bool // run times are known exactly and nothing fails: what is reserved comes true
	checks checks
}

func (h *history) pick(vs ...string) string { return vs[h.rng.IntN(len(vs))] }

func (h *history) chance(percent int) bool { return h.rng.IntN(100) < percent }

// newHistory draws the history of a seed.
func newHistory(t *testing.T, seed uint64) *history { return newHistoryWith(t, seed, nil) }

// newHistoryWith draws the history of a seed with fixed values of some options.
func newHistoryWith(t *testing.T, seed uint64, with map[string]string) *history {
	h := &history{seed: seed, is: map[string]string{}, rng: rand.New(rand.NewPCG(seed, 13)), apart: rand.New(rand.NewPCG(seed, 14)),
		groups: rand.New(rand.NewPCG(seed, 15))}
	at := int(seed)
	for i, o := range combined {
		if i < 3 {
			h.is[o.name], at = o.values[at%len(o.values)], at/len(o.values)
			continue
		}
		if o.name == "models" {
			h.is[o.name] = o.values[h.apart.IntN(len(o.values))]
			continue
		}
		if o.name == "groups" {
			h.is[o.name] = o.values[h.groups.IntN(len(o.values))]
			continue
		}
		h.is[o.name] = h.pick(o.values...)
	}
	maps.Copy(h.is, with)
	h.exact = h.is["times"] == "exact" && h.is["failures"] == "no"
	h.cluster(t)
	h.queues()
	for i := range 12 + h.rng.IntN(28) {
		h.job(i)
	}
	slices.SortStableFunc(h.jobs, func(a, b *Job) int { return int(a.At - b.At) })
	h.models()
	h.joint()
	h.reservations()
	h.rules()
	return h
}

func (h *history) String() string {
	var b strings.Builder
	for _, o := range combined {
		fmt.Fprintf(&b, "%s=%s ", o.name, h.is[o.name])
	}
	return b.String()
}

func (h *history) cluster(t *testing.T) {
	h.node, h.nodes = 1<<h.rng.IntN(4), 2+h.rng.IntN(3)
	switch h.is["cluster"] {
	case "one node":
		h.nodes, h.node = 1, 4
		h.cfg.Nodes = nodes(t, "1x4")
	case "equal":
		h.cfg.Nodes = nodes(t, fmt.Sprintf("%dx%d", h.nodes, h.node))
	default:
		h.cfg.Nodes = nodes(t, fmt.Sprintf("%dx%d+1x8", h.nodes, h.node))
	}
}

// gpus returns how many GPUs the cluster has.
func (h *history) gpus() (n int64) {
	for _, x := range h.cfg.Nodes {
		for i := range x.Resources.Devices {
			n += int64(len(x.Resources.Devices[i].Instances))
		}
	}
	return n
}

// queues makes the tree. Every limit leaves room for each single job, so that every job can be served.
func (h *history) queues() {
	root := &structs.Queue{Path: structs.QueueRoot, Order: structs.Order(h.is["order"]), Backfill: h.is["backfill"], Preempt: h.is["preempt"]}
	if h.is["max_wait"] == "2h" {
		root.MaxWait = 2 * time.Hour
	}
	if h.is["limits of preemption"] == "tight" {
		root.PreemptMax, root.PreemptMinRuntime, root.PreemptAfter, root.PreemptDelta = 2, 5*time.Minute, 10*time.Minute, 20
	}
	switch h.is["depth"] {
	case "window":
		root.BackfillWindow = 4 * time.Hour
	case "backfill_max_jobs":
		root.BackfillMaxJobs = 2
	case "reserve_depth":
		root.ReserveDepth = 3
	}
	all := h.gpus() * 1000
	amount := func(gpuMilli int64) *structs.Amount {
		a := structs.Unlimited
		a.GPUMilli = gpuMilli
		return &a
	}
	one, two := &structs.Queue{Path: "a", Weight: 1}, &structs.Queue{Path: "b", Weight: 3}
	kids := []*structs.Queue{one, two}
	switch h.is["queues"] {
	case "one":
		kids = []*structs.Queue{one}
	case "tree":
		kids = append(kids, &structs.Queue{Path: "b/c"}, &structs.Queue{Path: "b/d", Weight: 2})
	case "guarantee":
		one.Guarantee = &structs.Amount{GPUMilli: all / 2}
		two.Guarantee = &structs.Amount{GPUMilli: all / 4}
	case "limit":
		one.Limit = amount(h.widest())
		two.Limit = amount(max(h.widest(), all*3/4))
	case "soft limit":
		one.SoftLimit = amount(all / 4)
	case "caps":
		one.RunningMax, two.RunningMax = 2, 3
	case "user caps":
		one.RunningUserMax, two.RunningUserMax = 1, 2
	case "minutes":
		one.GPUMinutesMax = 6000 * int64(h.node) * 24 * 60 / 1000
	}
	h.cfg.Queues = append([]*structs.Queue{}, kids...)
	h.cfg.Queues = append(h.cfg.Queues, root)
	slices.SortFunc(h.cfg.Queues, func(a, b *structs.Queue) int { return strings.Compare(string(a.Path), string(b.Path)) })
}

// widest returns the most that one job asks for, in thousandths of GPUs.
func (h *history) widest() int64 { return 1000 * int64(h.node) * int64(h.nodes) }

// job adds a job. It fits on the idle cluster and within the limits of its queue.
func (h *history) job(i int) {
	kind := h.is["work"]
	if kind == "mixed" || kind != "plain" && h.chance(40) {
		kind = h.pick("plain", "count", "gang", "elastic", "array", "deadline", "depends", "share", "cpu")
	}
	if h.is["work"] != "mixed" && kind != h.is["work"] {
		kind = "plain"
	}
	at := time.Duration(h.rng.IntN(6*60)) * time.Minute
	run := time.Duration(1+h.rng.IntN(1<<(1+h.rng.IntN(8)))) * time.Minute
	gpus := int64(1) << h.rng.IntN(4)
	for gpus > int64(h.node) {
		gpus /= 2
	}
	j := gpuJob(fmt.Sprintf("%s%d", strings.ReplaceAll(kind, " ", ""), i), at, run, gpus)
	g := j.Job.Groups[0]
	g.Tasks[0].Resources.CPU, g.Tasks[0].Resources.MemoryMiB = 1000, 1024
	h.shape(j, kind)
	j.Job.Priority = 50
	if h.is["priorities"] == "spread" {
		j.Job.Priority = []int{10, 30, 50, 70, 90}[h.rng.IntN(5)]
	}
	j.Job.Submitter.Name = h.pick("ann", "bob", "cat")
	var leaves []string
	for _, q := range h.cfg.Queues {
		if q.Path != structs.QueueRoot {
			leaves = append(leaves, string(q.Path))
		}
	}
	j.Job.Queue = structs.QueuePath(h.pick(leaves...))
	h.yields(j)
	h.times(j)
	h.jobs = append(h.jobs, j)
}

// shape makes a job what its kind says.
func (h *history) shape(j *Job, kind string) {
	g := j.Job.Groups[0]
	res := &g.Tasks[0].Resources
	switch kind {
	case "gang":
		g.Count = 2 + h.rng.IntN(h.nodes)
		if g.Count > h.nodes {
			g.Count, res.GPU[0].Count = max(h.nodes, 2), max(1, int64(h.node)/2)
		}
		if h.nodes == 1 {
			res.GPU[0].Count = 1 + h.rng.Int64N(2)
		} else if h.node == 1 {
			g.Count = 2
		}
		g.Gang = &structs.Gang{}
	case "elastic":
		res.GPU[0].Count = 1
		g.Count = 2
		g.Gang, g.Elastic = &structs.Gang{Min: 1}, &structs.Elastic{Min: 1, Max: 4}
	case "array":
		res.GPU[0].Count = min(res.GPU[0].Count, 2)
		j.Job.Array = &structs.Array{Count: 2 + h.rng.IntN(4), Concurrency: h.rng.IntN(3)}
		if h.is["queues"] == "limit" {
			j.Job.Array.Concurrency = 1
		}
	case "count":
		g.Count = 2 + h.rng.IntN(5)
	case "deadline":
		j.Job.Deadline = Epoch.Add(j.At + j.Run*time.Duration(1+h.rng.IntN(5)))
	case "depends":
		if len(h.jobs) > 0 {
			on := h.jobs[h.rng.IntN(len(h.jobs))].Job.ID
			j.Job.Depends = []structs.Dependency{{Name: on, When: h.pick(structs.WhenStarted, structs.WhenCompleted, structs.WhenSuccess)}}
		}
	case "share":
		res.GPU[0].Count = 1
		switch h.rng.IntN(3) {
		case 0:
			res.GPU[0].Share = 25
		case 1:
			res.GPU[0].Share, res.GPU[0].Compute = 50, 40
		default:
			res.GPU[0].MemoryMiB = 20 << 10
		}
	case "cpu":
		res.GPU = nil
		res.CPU = int64(1+h.rng.IntN(3)) * 8000 * int64(h.node)
	}
}

// yields says whether a job may be preempted, and what it keeps then.
func (h *history) yields(j *Job) {
	switch h.is["preemptible"] {
	case "some":
		j.Job.Preemptible = h.chance(50)
	case "all":
		j.Job.Preemptible = true
	}
	if !j.Job.Preemptible {
		return
	}
	switch h.is["saves"] {
	case "free":
		j.Job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: 1}
	case "costly":
		j.Job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: 2 * time.Minute, Grace: time.Minute}
	}
}

// times sets what is known of a job's run time.
func (h *history) times(j *Job) {
	if h.is["queues"] == "minutes" {
		j.Run = min(j.Run, 4*time.Hour)
		j.Job.Runtime.Limit = 24 * time.Hour
	}
	switch h.is["times"] {
	case "exact":
		j.Job.Runtime = structs.Runtime{Expected: j.Run, Limit: max(j.Run, j.Job.Runtime.Limit)}
	case "limit":
		j.Job.Runtime.Limit = max(j.Run+time.Duration(h.rng.IntN(120))*time.Minute, j.Job.Runtime.Limit)
	case "late":
		j.Job.Runtime.Expected = max(time.Minute, j.Run*time.Duration(25+h.rng.IntN(100))/100)
		j.Job.Runtime.Limit = max(2*j.Run, j.Job.Runtime.Limit)
	}
}

// models makes every other node one with GPUs of another model, some jobs ask for one of them, and queues limit how many of
// a model they hold. Every job fits on the nodes that it may use and within every limit: one that names no model gets H100s first.
func (h *history) models() {
	if h.is["models"] == "one" || h.nodes < 2 {
		return
	}
	rooms := map[string][]int64{} // GPUs of each node
	for i, n := range h.cfg.Nodes {
		g := &n.Resources.Devices[0]
		if g.Name = "NVIDIA H100 80GB"; i%2 == 1 {
			g.Name = "NVIDIA A100-SXM4-80GB"
		}
		rooms[g.Name] = append(rooms[g.Name], int64(len(g.Instances)))
	}
	fits := func(model string, each int64) (n int64) { // allocations
		for name, nodes := range rooms {
			for _, gpus := range nodes {
				if model == "" || structs.IsModel(name, model) {
					n += gpus / each
				}
			}
		}
		return n
	}
	need := map[structs.QueuePath]map[string]int64{} // the most that one job of the queue must hold of a model
	for _, j := range h.jobs {
		g := j.Job.Groups[0]
		r := g.Tasks[0].Resources.GPU
		if len(r) == 0 {
			continue
		}
		each, count := max(r[0].Count, 1), int64(1)
		if g.Gang != nil {
			count = int64(g.Gang.Least(g.Count))
		}
		if model := []string{"", "", "H100", "A100"}[h.apart.IntN(4)]; fits(model, each) >= count {
			r[0].Model = model
		}
		for _, model := range []string{"H100", "A100"} {
			must := int64(0)
			switch {
			case r[0].Model == model:
				must = count * each
			case r[0].Model == "" && model == "H100":
				must = min(count, fits("H100", each)) * each
			case r[0].Model == "":
				must = max(0, count-fits("H100", each)) * each
			}
			for p := range j.Job.QueueName().Lineage() {
				if need[p] == nil {
					need[p] = map[string]int64{}
				}
				need[p][model] = max(need[p][model], must)
			}
		}
	}
	if h.is["models"] != "limits" {
		return
	}
	for _, q := range h.cfg.Queues {
		limits := func() (out []structs.ModelAmount) {
			for _, model := range []string{"A100", "H100"} {
				if h.apart.IntN(3) > 0 {
					out = append(out, structs.ModelAmount{Model: model, Milli: 1000 * (need[q.Path][model] + h.apart.Int64N(2))})
				}
			}
			return out
		}
		q.LimitModels = limits()
		if q.Path != structs.QueueRoot && h.apart.IntN(2) == 0 {
			q.UserLimitModels = limits()
		}
		if h.apart.IntN(3) == 0 {
			q.SoftLimitModels = limits()
		}
	}
}

// joint gives some jobs a second group without GPUs, with which they run as one (all_at_once).
func (h *history) joint() {
	if h.is["groups"] != "joint" {
		return
	}
	for _, j := range h.jobs {
		first := j.Job.Groups[0]
		if res := &first.Tasks[0].Resources; first.Gang == nil && first.Count > 1 { // all of it must fit at once now
			if h.is["models"] != "one" || int64(first.Count) > int64(h.nodes)*(int64(h.node)/max(1, res.GPU[0].Count)) {
				continue
			}
		} else if res.CPU > 16_000*int64(h.node) || j.Job.Array != nil {
			continue
		}
		if h.groups.IntN(2) == 0 {
			continue
		}
		g := &structs.Group{Name: "second", Count: 1 + h.groups.IntN(2), Tasks: []*structs.Task{{Name: "t", Driver: Driver,
			Resources: structs.Resources{CPU: 500, MemoryMiB: 512}}}}
		j.Job.Groups, j.Job.AllAtOnce = append(slices.Clone(j.Job.Groups), g), true
	}
}

// reservations of operators: they end, so that work they keep out is served after them.
func (h *history) reservations() {
	r := &structs.Reservation{ID: "maintenance", Domain: structs.NodePoolDefault, Start: Epoch.Add(2 * time.Hour), End: Epoch.Add(4 * time.Hour)}
	switch h.is["reserved"] {
	case "nodes":
		r.Nodes = []structs.NodeID{h.cfg.Nodes[0].ID}
	case "amount":
		r.Amount = &structs.Amount{GPUMilli: 1000}
	default:
		return
	}
	if h.chance(50) {
		r.Queues = []structs.QueuePath{"a"}
	}
	h.held = append(h.held, r)
}

// rules sets how the cluster decides and what is charged.
func (h *history) rules() {
	h.cfg.Scheduler = *structs.DefaultSchedulerConfig()
	h.cfg.Scheduler.Algorithm = h.is["placement"]
	h.cfg.Policy = policy.For(nil, h.cfg.Scheduler)
	h.cfg.Seed = h.seed
	h.cfg.Source = &list{jobs: h.jobs}
	h.cfg.Whole = h.is["waiting"] == "whole"
	h.cfg.Kept = func(l *Live, ran time.Duration) time.Duration {
		if l.Job.Job.Saves() {
			return ran
		}
		return 0
	}
	h.cfg.Restart = func(l *Live) time.Duration {
		if g := l.Job.Job.Groups[0]; g.Checkpoint != nil {
			return g.Checkpoint.Cost
		}
		return 0
	}
	if h.is["times"] == "learned" {
		h.cfg.Predict = NewLearner(predict.NewSimilar())
	}
	if h.is["failures"] == "some" {
		h.cfg.Failures = Failures{MTBF: 12 * time.Hour, MTTR: 30 * time.Minute, Seed: h.seed}
	}
	h.checks.begin(h)
}
