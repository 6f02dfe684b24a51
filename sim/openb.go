package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// OpenB is a cluster and a list of tasks in the format of the openb traces (Weng et al., "Beware of Fragmentation:
// Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", ATC'23): see testdata/traces/openb.
type OpenB struct {
	nodes []*structs.Node // without ids
	kinds []openbKind
	tasks []int // indexes into kinds, in the order of the file
	gpus  int64 // thousandths of all GPUs
	mix   *model.Mix

	told func(done, all int64) // reports progress, in arrivals over all seeds; nil: not called
	done atomic.Int64
}

// openbKind is a set of tasks with equal requests.
type openbKind struct {
	groups []*structs.Group
	milli  int64 // GPUs in total, in thousandths
}

// OpenBResult is one run of one policy with one seed. Values are percentages.
type OpenBResult struct {
	Seed           uint64
	Alloc80        float64 // share of all GPUs allocated when tasks for 80 % of them had arrived
	Alloc100       float64
	Alloc130       float64
	FragOfIdle80   float64
	FragOfTotal80  float64
	FragOfTotal130 float64
	Tasks          int64   // that arrived
	Curve          []Point // allocated over arrived, both in percent, at every whole percent arrived; Y only up to the end
	Wall           time.Duration
}

// The protocol: tasks are drawn until they ask for 130 % of all GPUs.
const openbArrive = 130

// openbGPUMiB is the memory of a GPU of these nodes: one MiB stands for a thousandth.
const openbGPUMiB = 1000

// LoadOpenB reads the two files.
func LoadOpenB(nodes, tasks string) (*OpenB, error) {
	b := &OpenB{}
	err := readCSV(nodes, []string{"sn", "cpu_milli", "memory_mib", "gpu", "model"}, func(f []string) error {
		n, err := openbNode(f)
		if err == nil {
			b.nodes = append(b.nodes, n)
			for i := range n.Resources.Devices {
				b.gpus += 1000 * int64(len(n.Resources.Devices[i].Instances))
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	known := make(map[openbAsk]int)
	var shapes []model.Shape
	err = readCSV(tasks, []string{"cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"}, func(f []string) error {
		a, err := openbAskOf(f)
		if err != nil {
			return err
		}
		at, ok := known[a]
		if !ok {
			at = len(b.kinds)
			known[a] = at
			b.kinds = append(b.kinds, openbKind{[]*structs.Group{a.group()}, a.gpus * a.milli})
		}
		b.tasks = append(b.tasks, at)
		shapes = append(shapes, model.Shape{CPU: a.cpu, GPUs: a.gpus, Milli: a.milli, Model: a.model, Count: 1})
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case b.gpus == 0:
		return nil, fmt.Errorf("%s: no GPUs", nodes)
	case !slices.ContainsFunc(b.kinds, func(k openbKind) bool { return k.milli > 0 }):
		return nil, fmt.Errorf("%s: no task asks for a GPU", tasks)
	}
	b.mix = model.NewMix(shapes)
	return b, nil
}

// readCSV calls f with the named columns of every row.
func readCSV(file string, columns []string, f func([]string) error) error {
	in, err := openTrace(file)
	if err != nil {
		return err
	}
	defer in.Close()
	t, err := newTable(file, in.in, nil)
	if err != nil {
		return err
	}
	if err := t.need(columns...); err != nil {
		return err
	}
	out := make([]string, len(columns))
	for {
		if err := t.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for i, c := range columns {
			out[i] = t.text(c)
		}
		if err := f(out); err != nil {
			return fmt.Errorf("%s:%d: %w", file, t.line, err)
		}
	}
}

// numbers reads integers; an empty field is 0, and fractions are truncated.
func numbers(fields []string, to ...*int64) error {
	for i, p := range to {
		if fields[i] == "" {
			continue
		}
		x, err := strconv.ParseFloat(fields[i], 64)
		if err != nil || x != x || x < 0 || x > 1<<40 {
			return fmt.Errorf("%q is no amount", fields[i])
		}
		*p = int64(x)
	}
	return nil
}

func openbNode(f []string) (*structs.Node, error) {
	var cpu, mem, gpus int64
	if err := numbers(f[1:4], &cpu, &mem, &gpus); err != nil {
		return nil, err
	}
	if gpus > 1024 {
		return nil, fmt.Errorf("%d GPUs on one node", gpus)
	}
	n := &structs.Node{Name: string([]byte(f[0])), Datacenter: structs.DatacenterDefault, Pool: structs.NodePoolDefault,
		Resources: structs.NodeResources{CPU: cpu, Cores: max(cpu/1000, 1), MHzPerCore: 1000, MemoryMiB: mem, DiskMiB: 1 << 30},
		Drivers:   map[string]*structs.DriverInfo{openbDriver: {Detected: true, Healthy: true}},
		Status:    structs.NodeReady, Eligibility: structs.NodeEligible, Epoch: 1}
	if gpus > 0 {
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: string([]byte(f[4]))}
		for i := range gpus {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: "GPU-" + n.Name + "-" + strconv.FormatInt(i, 10), Healthy: true, MemoryMiB: openbGPUMiB})
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
	}
	return n, nil
}

const openbDriver = "exec"

// openbAsk is the request of a task.
type openbAsk struct {
	cpu, mem, gpus, milli int64
	model                 string
}

func openbAskOf(f []string) (a openbAsk, err error) {
	if err := numbers(f[:4], &a.cpu, &a.mem, &a.gpus, &a.milli); err != nil {
		return a, err
	}
	switch {
	case a.gpus == 0:
		a.milli = 0
	case a.milli == 0 || a.milli > 1000:
		return a, fmt.Errorf("gpu_milli %d", a.milli)
	default:
		a.model = string([]byte(f[4]))
	}
	return a, nil
}

func (a *openbAsk) group() *structs.Group {
	t := &structs.Task{Name: "task", Driver: openbDriver, Resources: structs.Resources{CPU: a.cpu, MemoryMiB: a.mem}}
	if a.gpus > 0 {
		r := structs.GPURequest{Count: a.gpus, Model: a.model}
		if a.milli < 1000 {
			r.MemoryMiB = a.milli * openbGPUMiB / 1000
		}
		t.Resources.GPU = []structs.GPURequest{r}
	}
	return &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{t}}
}

// Run replays the list with the published protocol once per seed, several at a time: an empty cluster; the nodes and
// the tasks in an order drawn from the seed; tasks drawn from the list until they ask for 130 % of all GPUs; each is
// placed when it arrives, or dropped. Ties go to the first node, so nodes get ids in the order drawn. mix is what
// policies know of the list: Mix by the published protocol, nil for what a server knows, which is what is held.
func (b *OpenB) Run(ctx context.Context, config structs.SchedulerConfig, mix *model.Mix, seeds []uint64) ([]OpenBResult, error) {
	out := make([]OpenBResult, len(seeds))
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(seeds)) {
		wg.Go(func() {
			for i := range next {
				out[i] = b.run(ctx, config, mix, seeds[i], len(seeds))
			}
		})
	}
	for i := range seeds {
		next <- i
	}
	close(next)
	wg.Wait()
	return out, ctx.Err()
}

// Mix returns the requests of the whole list.
func (b *OpenB) Mix() *model.Mix { return b.mix }

// MeanOpenB returns the mean over runs; rs must not be empty.
func MeanOpenB(rs []OpenBResult) OpenBResult {
	var m OpenBResult
	n := float64(len(rs))
	for i := range rs {
		r := &rs[i]
		m.Alloc80, m.Alloc100, m.Alloc130 = m.Alloc80+r.Alloc80/n, m.Alloc100+r.Alloc100/n, m.Alloc130+r.Alloc130/n
		m.FragOfIdle80, m.FragOfTotal80, m.FragOfTotal130 = m.FragOfIdle80+r.FragOfIdle80/n, m.FragOfTotal80+r.FragOfTotal80/n, m.FragOfTotal130+r.FragOfTotal130/n
		m.Tasks += r.Tasks / int64(len(rs))
		m.Wall += r.Wall / time.Duration(len(rs))
	}
	for k := range rs[0].Curve {
		p := Point{X: rs[0].Curve[k].X}
		for i := range rs {
			p.Y += rs[i].Curve[k].Y / n
		}
		m.Curve = append(m.Curve, p)
	}
	return m
}

// run replays one order. Tasks that arrive within the same percent are decided in one pass; a pass decides in order, so
// with a mix this only saves time. Without one, a pass knows what was held when it began.
func (b *OpenB) run(ctx context.Context, config structs.SchedulerConfig, mix *model.Mix, seed uint64, seeds int) OpenBResult {
	p := policy.For(nil, config)
	start := time.Now()
	res := OpenBResult{Seed: seed}
	lots := rand.New(rand.NewPCG(seed, 0x6f70656e62)) //nolint:gosec // a replay wants the same order for the same seed
	nodes := make([]*structs.Node, len(b.nodes))
	for i, k := range lots.Perm(len(b.nodes)) {
		n := *b.nodes[k]
		binary.BigEndian.PutUint32(n.ID[:4], uint32(i)+1)
		nodes[i] = &n
	}
	view := model.NewView(1, nodes, nil, nil)
	index := structs.Index(1)
	var arrived, allocated int64
	var pending []contend.Workload
	milli := make(map[structs.JobKey]int64)
	decide := func() {
		if len(pending) == 0 {
			return
		}
		plan, _ := scheduler.Schedule(scheduler.Input{View: view, Pending: pending, Config: config, Now: structs.LogTime(index), Seed: seed, Mix: mix}, p)
		index++
		delta := structs.Delta{Index: index}
		var flight model.Overlay
		for n, e := range plan.Entries {
			verdict := verify.Verify(view, flight, e)
			for i := range e.Parts {
				if !verdict.Accepted[i] {
					panic(fmt.Sprintf("the plan of %s/%s was refused: %v", e.Namespace, e.JobID, verdict.Refused))
				}
				for k := range e.Parts[i].Places {
					delta.Allocs = append(delta.Allocs, structs.Changed[structs.Allocation]{After: allocOf(e, &e.Parts[i].Places[k], index)})
					allocated += milli[structs.JobKey{Namespace: e.Namespace, ID: e.JobID}]
				}
			}
			flight = flight.Add(uint64(index)<<32|uint64(n), e, verdict.Accepted)
		}
		view = view.Advance(delta)
		pending = pending[:0]
		clear(milli)
	}
	share := func() float64 { return 100 * float64(allocated) / float64(b.gpus) }
	frag := func() (idle, total float64) {
		f := view.GPUTotals(b.mix, "")
		return 100 * float64(f.Fragmented) / float64(max(f.Free, 1)), 100 * float64(f.Fragmented) / float64(b.gpus)
	}
	tasks := b.arrivals(lots)
	res.Tasks = int64(len(tasks))
	mark := int64(0) // the next percent of arrivals to record
	note := func() {
		res.Curve = append(res.Curve, Point{float64(mark), share()})
		switch mark {
		case 80:
			res.Alloc80 = share()
			res.FragOfIdle80, res.FragOfTotal80 = frag()
		case 100:
			res.Alloc100 = share()
		}
		mark++
	}
	for n, at := range tasks {
		k := &b.kinds[at]
		for (arrived+k.milli)*100 > b.gpus*mark {
			if decide(); ctx.Err() != nil {
				return res
			}
			note()
		}
		arrived += k.milli
		w := openbWorkload(n, k)
		milli[w.Key] = k.milli
		pending = append(pending, w)
		if b.told != nil && n%100 == 99 {
			b.told(b.done.Add(100), int64(seeds*len(tasks)))
		}
	}
	decide()
	for mark <= openbArrive {
		note()
	}
	res.Alloc130 = share()
	_, res.FragOfTotal130 = frag()
	res.Wall = time.Since(start)
	return res
}

// arrivals draws the order of the tasks.
func (b *OpenB) arrivals(lots *rand.Rand) []int {
	tasks := slices.Clone(b.tasks)
	lots.Shuffle(len(tasks), func(i, j int) { tasks[i], tasks[j] = tasks[j], tasks[i] })
	sum, limit := int64(0), b.gpus*openbArrive/100
	for _, t := range tasks {
		sum += b.kinds[t].milli
	}
	for sum > limit {
		i := lots.IntN(len(tasks))
		sum -= b.kinds[tasks[i]].milli
		tasks = slices.Delete(tasks, i, i+1)
	}
	for {
		t := b.tasks[lots.IntN(len(b.tasks))]
		if sum += b.kinds[t].milli; sum > limit {
			return tasks
		}
		tasks = append(tasks, t)
	}
}

func openbWorkload(n int, k *openbKind) contend.Workload {
	id := "task-" + strconv.Itoa(n)
	j := &structs.Job{Namespace: structs.NamespaceDefault, ID: id, Name: id, Type: structs.JobBatch, Priority: structs.JobPriorityDefault,
		Datacenters: []string{"*"}, NodePool: structs.NodePoolDefault, Groups: k.groups, CreateIndex: 1, SpecIndex: 1, ModifyIndex: 1}
	e := &structs.Evaluation{Namespace: j.Namespace, JobID: id, Type: j.Type, Priority: j.Priority, Trigger: structs.TriggerJobRegister, Status: structs.EvalPending, JobSpecIndex: 1}
	binary.BigEndian.PutUint64(e.ID[:8], uint64(n)+1)
	return contend.Workload{Key: j.Key(), Job: j, Evals: []*structs.Evaluation{e}}
}

// allocOf returns the allocation for a placement.
func allocOf(e *structs.PlanEntry, p *structs.PlanPlace, index structs.Index) *structs.Allocation {
	group := e.Groups[p.Group]
	return &structs.Allocation{ID: structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, group, p.Index), Namespace: e.Namespace, JobID: e.JobID, Job: e.Job, Group: group,
		NodeID: e.Nodes[p.Node].ID, Resources: e.Asks[p.Group], Grants: p.Grants, Client: structs.ClientRunning, Desired: structs.DesiredRun, CreateIndex: index, ModifyIndex: index}
}
