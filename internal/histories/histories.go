// Package histories draws random clusters with queues, reservations and jobs, for tests that run whole histories of a
// cluster: in the simulator, on servers, and against the binary.
package histories

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Option is one dimension of random histories, with the values it takes.
type Option struct {
	Name   string
	Values []string
	apart  uint64 // seeds its own draw, so that histories stay as they were before it came; 0: drawn with the others
}

// orders are all orders, and lists of each kind.
func orders() (out []string) {
	for _, o := range append(queue.Names(), "priority,fair", "fair,sjf", "edf,fair", "priority,srtf", "fcfs,lottery") {
		out = append(out, string(o))
	}
	return out
}

// Options are those whose values and pairs of values the histories have to cover. The product of the first three
// is walked through; the others are drawn.
var Options = []Option{
	{"order", orders(), 0},
	{"backfill", []string{structs.BackfillNone, structs.BackfillGreedy, structs.BackfillEASY, structs.BackfillSJF, structs.BackfillConservative}, 0},
	{"preempt", []string{structs.PreemptNone, structs.PreemptPriority, structs.PreemptReclaim, structs.PreemptDeadline, structs.PreemptOrder}, 0},
	{"placement", []string{"", "binpack", "spread", "first-fit", "random"}, 0},
	{"cluster", []string{"one node", "equal", "mixed"}, 0},
	{"queues", []string{"one", "tree", "guarantee", "limit", "soft limit", "caps", "user caps", "minutes"}, 0},
	{"work", []string{"plain", "count", "gang", "elastic", "array", "deadline", "depends", "share", "cpu", "mixed"}, 0},
	{"preemptible", []string{"no", "some", "all"}, 0},
	{"saves", []string{"no", "free", "costly"}, 0},
	{"times", []string{"exact", "limit", "unknown", "learned", "late"}, 0},
	{"failures", []string{"no", "some"}, 0},
	{"reserved", []string{"no", "nodes", "amount"}, 0},
	{"max_wait", []string{"default", "2h"}, 0},
	{"priorities", []string{"equal", "spread"}, 0},
	{"limits of preemption", []string{"default", "tight"}, 0},
	{"depth", []string{"default", "window", "backfill_max_jobs", "reserve_depth"}, 0},
	{"waiting", []string{"whole", "by shape"}, 0},
	{"models", []string{"one", "two", "limits"}, 0},
	{"groups", []string{"one", "joint"}, 0},
	{"levels", []string{"none", "rack", "rack and leaf"}, 16},
	{"arrivals", []string{"spread", "dense"}, 17},
	{"parts of a checkpoint", []string{"all", "one"}, 18},
	{"preempt_min_runtime", []string{"default", "10m"}, 19},
	{"topology", []string{"any", "preferred", "required"}, 20},
	{"members", []string{"whole GPUs", "shares"}, 21},
	{"also", []string{"nothing", "deadline and dependency"}, 22},
}

// Node is a node with so many equal GPUs of 80 GiB.
type Node struct {
	GPUs  int64
	Model string
	Meta  map[string]string // its place in the levels of the topology
}

// Model is the model of GPUs where all are equal.
const Model = "GPU"

// Job is a job, when it is submitted, and how long its tasks run.
type Job struct {
	*structs.Job
	At  time.Duration // since the beginning
	Run time.Duration
}

// Reservation is one of an operator. Its dates are relative to Begin.
type Reservation struct {
	*structs.Reservation
	First bool // of the first node
}

// Begin is the log time at which histories begin: deadlines and reservations are relative to it.
const Begin structs.LogTime = 1_000_000_000_000_000_000

// History is one random cluster with its queues and jobs. Every job fits on the idle cluster and within all limits.
type History struct {
	Seed      uint64
	Is        map[string]string // value of each option
	Nodes     []Node
	Queues    []*structs.Queue // by path
	Jobs      []*Job           // in the order of their submission
	Reserved  []Reservation
	Scheduler structs.SchedulerConfig
	Drains    []Drain    // in order
	Services  []*Service // with updates
	Exact     bool       // run times are known exactly and nothing fails: what is reserved comes true

	rng   *rand.Rand
	apart *rand.Rand // for models
	more  *rand.Rand // for groups
	node  int        // GPUs of the smallest node
	nodes int
}

func (h *History) pick(vs ...string) string { return vs[h.rng.IntN(len(vs))] }

func (h *History) chance(percent int) bool { return h.rng.IntN(100) < percent }

// New draws the history of a seed, with fixed values of some options.
func New(seed uint64, with map[string]string) *History {
	h := &History{Seed: seed, Is: map[string]string{}, Scheduler: *structs.DefaultSchedulerConfig(), rng: rand.New(rand.NewPCG(seed, 13)), apart: rand.New(rand.NewPCG(seed, 14)),
		more: rand.New(rand.NewPCG(seed, 15))}
	at := int(seed)
	for i, o := range Options {
		if i < 3 {
			h.Is[o.Name], at = o.Values[at%len(o.Values)], at/len(o.Values)
			continue
		}
		if o.Name == "models" {
			h.Is[o.Name] = o.Values[h.apart.IntN(len(o.Values))]
			continue
		}
		if o.Name == "groups" {
			h.Is[o.Name] = o.Values[h.more.IntN(len(o.Values))]
			continue
		}
		if o.apart != 0 {
			h.Is[o.Name] = o.Values[rand.New(rand.NewPCG(seed, o.apart)).IntN(len(o.Values))]
			continue
		}
		h.Is[o.Name] = h.pick(o.Values...)
	}
	for _, o := range Operations {
		h.Is[o.Name] = o.Values[0]
	}
	maps.Copy(h.Is, with)
	h.Exact = h.Is["times"] == "exact" && h.Is["failures"] == "no"
	h.cluster()
	h.levels()
	h.queues()
	for i := range 12 + h.rng.IntN(28) {
		h.job(i)
	}
	slices.SortStableFunc(h.Jobs, func(a, b *Job) int { return int(a.At - b.At) })
	h.models()
	h.joint()
	h.topology()
	h.members()
	h.also()
	h.reservations()
	h.operations()
	h.Scheduler.Algorithm = h.Is["placement"]
	return h
}

// levels puts the nodes into racks and leaves, the first into no leaf.
func (h *History) levels() {
	for i := range h.Nodes {
		if h.Is["levels"] != "none" {
			h.Nodes[i].Meta = map[string]string{"rack": fmt.Sprint("r", i/2)}
		}
		if h.Is["levels"] == "rack and leaf" && i > 0 {
			h.Nodes[i].Meta["leaf"] = fmt.Sprint("l", i/3)
		}
	}
}

func (h *History) cluster() {
	h.node, h.nodes = 1<<h.rng.IntN(4), 2+h.rng.IntN(3)
	if h.Is["cluster"] == "one node" {
		h.nodes, h.node = 1, 4
	}
	for range h.nodes {
		h.Nodes = append(h.Nodes, Node{GPUs: int64(h.node), Model: Model})
	}
	if h.Is["cluster"] == "mixed" {
		h.Nodes = append(h.Nodes, Node{GPUs: 8, Model: Model})
	}
}

// gpus returns how many GPUs the cluster has.
func (h *History) gpus() (n int64) {
	for _, x := range h.Nodes {
		n += x.GPUs
	}
	return n
}

// queues makes the tree. Every limit leaves room for each single job, so that every job can be served.
func (h *History) queues() {
	root := &structs.Queue{Path: structs.QueueRoot, Order: structs.Order(h.Is["order"]), Backfill: h.Is["backfill"], Preempt: h.Is["preempt"]}
	if h.Is["max_wait"] == "2h" {
		root.MaxWait = 2 * time.Hour
	}
	if h.Is["limits of preemption"] == "tight" {
		root.PreemptMax, root.PreemptMinRuntime, root.PreemptAfter, root.PreemptDelta = 2, 5*time.Minute, 10*time.Minute, 20
	}
	if h.Is["preempt_min_runtime"] == "10m" {
		root.PreemptMinRuntime = 10 * time.Minute
	}
	switch h.Is["depth"] {
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
	switch h.Is["queues"] {
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
	h.Queues = append([]*structs.Queue{}, kids...)
	h.Queues = append(h.Queues, root)
	slices.SortFunc(h.Queues, func(a, b *structs.Queue) int { return strings.Compare(string(a.Path), string(b.Path)) })
}

// widest returns the most that one job asks for, in thousandths of GPUs.
func (h *History) widest() int64 { return 1000 * int64(h.node) * int64(h.nodes) }

// job adds a job. It fits on the idle cluster and within the limits of its queue.
func (h *History) job(i int) {
	kind := h.Is["work"]
	if kind == "mixed" || kind != "plain" && h.chance(40) {
		kind = h.pick("plain", "count", "gang", "elastic", "array", "deadline", "depends", "share", "cpu")
	}
	if h.Is["work"] != "mixed" && kind != h.Is["work"] {
		kind = "plain"
	}
	at := time.Duration(h.rng.IntN(6*60)) * time.Minute
	if h.Is["arrivals"] == "dense" {
		at /= 4
	}
	run := time.Duration(1+h.rng.IntN(1<<(1+h.rng.IntN(8)))) * time.Minute
	gpus := int64(1) << h.rng.IntN(4)
	for gpus > int64(h.node) {
		gpus /= 2
	}
	j := &Job{At: at, Run: run, Job: &structs.Job{ID: fmt.Sprintf("%s%d", strings.ReplaceAll(kind, " ", ""), i), Type: structs.JobBatch, Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault,
		Groups: []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{GPU: []structs.GPURequest{{Count: gpus}}}}}}}}}
	g := j.Job.Groups[0]
	g.Tasks[0].Resources.CPU, g.Tasks[0].Resources.MemoryMiB = 1000, 1024
	h.shape(j, kind)
	j.Job.Priority = 50
	if h.Is["priorities"] == "spread" {
		j.Job.Priority = []int{10, 30, 50, 70, 90}[h.rng.IntN(5)]
	}
	j.Job.Submitter.Name = h.pick("ann", "bob", "cat")
	var leaves []string
	for _, q := range h.Queues {
		if q.Path != structs.QueueRoot {
			leaves = append(leaves, string(q.Path))
		}
	}
	j.Job.Queue = structs.QueuePath(h.pick(leaves...))
	h.yields(j)
	h.times(j)
	h.Jobs = append(h.Jobs, j)
}

// shape makes a job what its kind says.
func (h *History) shape(j *Job, kind string) {
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
		if h.Is["queues"] == "limit" {
			j.Job.Array.Concurrency = 1
		}
	case "count":
		g.Count = 2 + h.rng.IntN(5)
	case "deadline":
		j.Job.Deadline = Begin.Add(j.At + j.Run*time.Duration(1+h.rng.IntN(5)))
	case "depends":
		if len(h.Jobs) > 0 {
			on := h.Jobs[h.rng.IntN(len(h.Jobs))].Job.ID
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
func (h *History) yields(j *Job) {
	switch h.Is["preemptible"] {
	case "some":
		j.Job.Preemptible = h.chance(50)
	case "all":
		j.Job.Preemptible = true
	}
	if !j.Job.Preemptible {
		return
	}
	switch h.Is["saves"] {
	case "free":
		j.Job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: 1}
	case "costly":
		j.Job.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Cost: 2 * time.Minute, Grace: time.Minute}
	}
	if g := j.Job.Groups[0]; g.Checkpoint != nil && g.Gang != nil && h.Is["parts of a checkpoint"] == "one" {
		g.Checkpoint.Members = 1
	}
}

// times sets what is known of a job's run time.
func (h *History) times(j *Job) {
	if h.Is["queues"] == "minutes" {
		j.Run = min(j.Run, 4*time.Hour)
		j.Job.Runtime.Limit = 24 * time.Hour
	}
	switch h.Is["times"] {
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
func (h *History) models() {
	if h.Is["models"] == "one" || h.nodes < 2 {
		return
	}
	rooms := map[string][]int64{} // GPUs of each node
	for i := range h.Nodes {
		n := &h.Nodes[i]
		if n.Model = "NVIDIA H100 80GB"; i%2 == 1 {
			n.Model = "NVIDIA A100-SXM4-80GB"
		}
		rooms[n.Model] = append(rooms[n.Model], n.GPUs)
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
	for _, j := range h.Jobs {
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
	if h.Is["models"] != "limits" {
		return
	}
	for _, q := range h.Queues {
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
func (h *History) joint() {
	if h.Is["groups"] != "joint" {
		return
	}
	for _, j := range h.Jobs {
		first := j.Groups[0]
		if res := &first.Tasks[0].Resources; first.Gang == nil && first.Count > 1 { // all of it must fit at once now
			if h.Is["models"] != "one" || int64(first.Count) > int64(h.nodes)*(int64(h.node)/max(1, res.GPU[0].Count)) {
				continue
			}
		} else if res.CPU > 16_000*int64(h.node) || j.Array != nil {
			continue
		}
		if h.more.IntN(2) == 0 {
			continue
		}
		g := &structs.Group{Name: "second", Count: 1 + h.more.IntN(2), Tasks: []*structs.Task{{Name: "t",
			Resources: structs.Resources{CPU: 500, MemoryMiB: 512}}}}
		j.Groups, j.AllAtOnce = append(slices.Clone(j.Groups), g), true
	}
}

// topology lets gangs ask for one rack. Where they require one, they fit into the first rack, the only one that surely has
// two nodes. With leaves none requires a rack: a rack whose nodes name different leaves, or none, counts as several.
func (h *History) topology() {
	if h.Is["levels"] == "none" || h.Is["topology"] == "any" {
		return
	}
	for _, j := range h.Jobs {
		g := j.Groups[0]
		if g.Gang == nil || j.AllAtOnce {
			continue
		}
		g.Topology = &structs.Topology{Across: "rack"}
		if fits := int64(min(h.nodes, 2)) * (int64(h.node) / g.Tasks[0].Resources.GPU[0].Count); h.Is["topology"] == "required" && h.Is["levels"] == "rack" && h.Is["models"] == "one" && int64(g.Count) <= fits {
			g.Topology.Mode = structs.TopologyRequired
		}
	}
}

// members lets the members of some gangs, elastic ones too, ask for half of a GPU instead of whole ones.
func (h *History) members() {
	if h.Is["members"] != "shares" {
		return
	}
	rng := rand.New(rand.NewPCG(h.Seed, 23))
	for _, j := range h.Jobs {
		if r := j.Groups[0].Tasks[0].Resources.GPU; j.Groups[0].Gang != nil && rng.IntN(2) == 0 {
			r[0].Count, r[0].Share = 1, 50
		}
	}
}

// also gives some jobs of any kind a deadline, and has them depend on a job that was submitted before and depends on none, so
// that no two wait for each other.
func (h *History) also() {
	if h.Is["also"] == "nothing" {
		return
	}
	rng := rand.New(rand.NewPCG(h.Seed, 24))
	for i, j := range h.Jobs {
		if rng.IntN(3) > 0 || i == 0 || len(j.Depends) > 0 {
			continue
		}
		on := h.Jobs[rng.IntN(i)]
		if len(on.Depends) > 0 {
			continue
		}
		j.Deadline = Begin.Add(j.At + j.Run*time.Duration(1+rng.IntN(5)))
		whens := []string{structs.WhenStarted, structs.WhenCompleted, structs.WhenSuccess}
		j.Depends = []structs.Dependency{{Name: on.ID, When: whens[rng.IntN(len(whens))]}}
	}
}

// reservations of operators: they end, so that work they keep out is served after them.
func (h *History) reservations() {
	r := Reservation{Reservation: &structs.Reservation{ID: "maintenance", Domain: structs.NodePoolDefault, Start: Begin.Add(2 * time.Hour), End: Begin.Add(4 * time.Hour)}}
	switch h.Is["reserved"] {
	case "nodes":
		r.First = true
	case "amount":
		r.Amount = &structs.Amount{GPUMilli: 1000}
	default:
		return
	}
	if h.chance(50) {
		r.Queues = []structs.QueuePath{"a"}
	}
	h.Reserved = append(h.Reserved, r)
}
