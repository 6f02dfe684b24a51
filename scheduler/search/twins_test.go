package search_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// twinWorld is a random cluster with a history, kept as a view that is advanced and as lists to rebuild it from.
type twinWorld struct {
	r      *rand.Rand
	v      *model.View
	nodes  map[int]*structs.Node
	allocs map[int]*structs.Allocation
	next   int
	jobs   []*structs.Job // asked for again and again, so that caches are of use
	mix    *model.Mix     // nil: that of what is held, which changes often
}

func twinID(kind byte, n int) (id [16]byte) {
	id[0], id[1], id[2], id[3] = kind, byte(n>>16), byte(n>>8), byte(n)
	return id
}

// node makes one of few kinds of nodes, in one of few states.
func (w *twinWorld) node(n int) *structs.Node {
	x := &structs.Node{ID: twinID(1, n), Name: fmt.Sprint("n", n), Datacenter: []string{"dc1", "dc2", "dc3"}[w.r.IntN(10)/4], Pool: structs.NodePoolDefault, Status: structs.NodeReady, Eligibility: structs.NodeEligible}
	if w.r.IntN(20) == 0 {
		x.Pool = "other"
	}
	switch w.r.IntN(30) {
	case 0:
		x.Eligibility = structs.NodeIneligible
	case 1:
		x.Status = structs.NodeDown
	case 2:
		x.Eligibility, x.Drain = structs.NodeIneligible, &structs.DrainStrategy{}
	}
	for range max(0, w.r.IntN(12)-8) {
		x.Periods = append(x.Periods, structs.ReadyPeriod{From: structs.LogTime(0).Add(-24 * time.Hour), Lost: true})
	}
	x.Attributes = map[string]string{"unique.hostname": x.Name}
	x.Resources.CPU, x.Resources.MemoryMiB, x.Resources.DiskMiB = 16_000, 64_000, 100_000
	x.Resources.Cores, x.Resources.MHzPerCore = 8, int64(1000*(1+w.r.IntN(20)/19))
	kind := w.r.IntN(4)
	if kind == 0 {
		return x
	}
	g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: []string{"A10", "A100"}[kind%2]}
	sick := w.r.IntN(40) == 0
	for k := range 2 * kind {
		g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", n, k), Healthy: !sick || k > 0, MemoryMiB: int64(20_000 * kind), Island: fmt.Sprint(k / 2)})
	}
	x.Resources.Devices = []structs.DeviceGroup{g}
	return x
}

// alloc makes an allocation on a node that takes CPU and, most of the time, a GPU or a share of one; it may be more than
// there is.
func (w *twinWorld) alloc(n int, node *structs.Node) *structs.Allocation {
	a := &structs.Allocation{ID: twinID(2, n), NodeID: node.ID, JobID: "other", Group: "g", Client: structs.ClientRunning, Desired: structs.DesiredRun,
		Resources: structs.Vector{CPU: int64(3000 * (1 + w.r.IntN(5)/4)), MemoryMiB: 4000}}
	if d := node.Resources.Devices; len(d) > 0 && w.r.IntN(4) > 0 {
		in := &d[0].Instances[w.r.IntN(len(d[0].Instances))]
		g := structs.Grant{Task: "t", Device: d[0].ID(), Instance: in.ID, SizeMiB: in.MemoryMiB}
		if w.r.IntN(2) == 0 {
			g.MemoryMiB, g.Compute = in.MemoryMiB/4*int64(1+w.r.IntN(2)), int64(100*(w.r.IntN(8)/7))
		}
		a.Grants = []structs.Grant{g}
		if n := len(d[0].Instances); g.MemoryMiB == 0 && n > 1 && w.r.IntN(3) == 0 {
			g.Instance = d[0].Instances[(slices.Index(d[0].Instances, *in)+1)%n].ID
			a.Grants = append(a.Grants, g)
		}
	} else if w.r.IntN(6) == 0 {
		a.Resources.CPU, a.Resources.Cores, a.Cores = 0, 1, []int64{0}
	}
	return a
}

func newTwinWorld(seed uint64) *twinWorld {
	w := &twinWorld{r: rand.New(rand.NewPCG(seed, 7)), nodes: map[int]*structs.Node{}, allocs: map[int]*structs.Allocation{}}
	for i := range 400 + w.r.IntN(400) {
		w.nodes[2*i] = w.node(2 * i) // others may come between them
		if w.r.IntN(4) == 0 {
			w.next++
			w.allocs[w.next] = w.alloc(w.next, w.nodes[2*i])
		}
	}
	w.v = w.rebuilt()
	for range 4 {
		w.jobs = append(w.jobs, w.job())
	}
	if w.r.IntN(2) == 0 {
		w.mix = model.NewMix([]model.Shape{{CPU: 3000, GPUs: 1, Milli: 500, Count: 50}, {CPU: 2000, GPUs: 1, Milli: 1000, Model: "A100", Count: 20}, {CPU: 8000, GPUs: 2, Milli: 1000, Count: 40}, {CPU: 4000, GPUs: 4, Milli: 1000, Count: 20}})
	}
	return w
}

func (w *twinWorld) rebuilt() *model.View {
	return model.NewView(w.index(), slices.Collect(maps.Values(w.nodes)), slices.Collect(maps.Values(w.allocs)), nil)
}

func (w *twinWorld) index() structs.Index {
	if w.v == nil {
		return 1
	}
	return w.v.Index()
}

// step changes a few nodes and allocations.
func (w *twinWorld) step() {
	d := structs.Delta{Index: w.v.Index() + 1}
	keys := slices.Sorted(maps.Keys(w.nodes))
	for range 1 + w.r.IntN(4) {
		n := keys[w.r.IntN(len(keys))]
		switch w.r.IntN(8) {
		case 0: // it comes, or comes in another state
			if w.r.IntN(3) == 0 {
				n++
			}
			before := w.nodes[n]
			w.nodes[n] = w.node(n)
			d.Nodes = append(d.Nodes, structs.Changed[structs.Node]{Before: before, After: w.nodes[n]})
		case 1:
			if x := w.nodes[n]; x != nil && w.r.IntN(4) == 0 {
				d.Nodes = append(d.Nodes, structs.Changed[structs.Node]{Before: x})
				delete(w.nodes, n)
			}
		case 2, 3:
			for k, a := range w.allocs { // any: which one it is does not matter, as the view is compared with a rebuilt one
				d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{Before: a})
				delete(w.allocs, k)
				break
			}
		default:
			if x := w.nodes[n]; x != nil {
				w.next++
				w.allocs[w.next] = w.alloc(w.next, x)
				d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{After: w.allocs[w.next]})
			}
		}
	}
	w.v = w.v.Advance(d)
}

// job makes a job that asks for CPU, GPUs or a share of one, with spreads and distinct hosts now and then.
func (w *twinWorld) job() *structs.Job {
	j := &structs.Job{Namespace: "default", ID: fmt.Sprint("j", w.r.IntN(1000)), Type: structs.JobBatch, NodePool: structs.NodePoolDefault, Datacenters: []string{"dc1", "dc2"}}
	if w.r.IntN(3) == 0 {
		j.Type = structs.JobService
	}
	res := structs.Resources{CPU: int64(1000 * (1 + w.r.IntN(8))), MemoryMiB: 1000}
	switch w.r.IntN(5) {
	case 0, 1:
		res.GPU = []structs.GPURequest{{Count: 1, MemoryMiB: int64(5000 * (1 + w.r.IntN(8))), Compute: int64(25 * w.r.IntN(3))}}
	case 2:
		res.GPU = []structs.GPURequest{{Count: int64(1 + w.r.IntN(3))}}
	case 3:
		res.GPU = []structs.GPURequest{{Count: 1, Share: int64(10 * (1 + w.r.IntN(9))), Model: "A100"}}
	}
	if w.r.IntN(4) == 0 {
		j.Spreads = []structs.Spread{{Attribute: "${node.datacenter}", Weight: 50}}
	}
	if w.r.IntN(5) == 0 {
		j.Constraints = []structs.Constraint{{Operand: structs.OperandDistinctHosts}}
	}
	j.Groups = []*structs.Group{{Name: "g", Count: 1 + w.r.IntN(40), Tasks: []*structs.Task{{Name: "t", Driver: "", Resources: res}}}}
	return j
}

// found is what a search said.
type found struct {
	rows    []int
	held    []model.Held
	reports []structs.GroupReport
	end     bool
}

// ask searches on one view. What happens in it is drawn from seed, the same for each view.
func (w *twinWorld) ask(v *model.View, j *structs.Job, p search.Policy, seed uint64) (f found, used bool) {
	r := rand.New(rand.NewPCG(seed, 3))
	pass := search.NewPass(v, model.Overlay{})
	defer pass.Release()
	pass.Mix = w.mix
	if r.IntN(4) > 0 { // else it is not known how reliable nodes are
		pass.Doubt(structs.LogTime(0).Add(time.Duration(r.IntN(3)*12)*time.Hour), time.Duration(30*(1+r.IntN(30)))*time.Hour)
	}
	touch := func() {
		row := r.IntN(v.Rows)
		c, i := v.At(row)
		h := &model.Held{ID: twinID(5, r.IntN(1000)), Need: structs.Vector{CPU: int64(1000 * (1 + r.IntN(3)))}}
		if o, short := model.Fits(c.Nodes[i], c.Total[i], c.MHz[i], pass.Get(row), h); short.Dim == structs.DimensionNone {
			pass.Set(row, o)
		}
	}
	for range r.IntN(4) {
		touch()
	}
	s := search.New(match.CompileAsk(j, j.Groups[0], ""), pass, p, 0)
	s.Until, s.Work.Expect = 1000, 1000*time.Hour
	if r.IntN(3) == 0 {
		s.Reserved = &search.Reservations{W: pass, Now: 1}
		for range 1 + r.IntN(5) {
			s.Reserved.Reserve(r.IntN(v.Rows), &model.ReservedPlace{Start: structs.LogTime(1 + r.IntN(2000)), Held: &model.Held{ID: twinID(6, r.IntN(1000)), Need: structs.Vector{CPU: 12_000}}})
		}
	}
	for range r.IntN(4) {
		s.Count(r.IntN([]int{v.Rows, 10}[r.IntN(2)]), r.IntN(2) == 0, 1)
	}
	for k := range 1 + r.IntN(30) {
		var avoid []int
		if r.IntN(4) == 0 && len(f.rows) > 0 {
			avoid = []int{f.rows[len(f.rows)-1], r.IntN(v.Rows)}
		}
		prefer := -1
		if r.IntN(6) == 0 {
			prefer = r.IntN(v.Rows)
		}
		at, ok := s.Place(twinID(4, k), avoid, prefer)
		used = s.UsesTwins()
		if !ok {
			break
		}
		f.rows, f.held = append(f.rows, at.Row), append(f.held, *at.Held)
		if r.IntN(5) == 0 {
			touch()
		}
	}
	n := int64(len(f.rows))
	f.reports = append(f.reports, *s.Report(n, n), *s.Report(n+2, n))
	f.end = s.ExhaustedAll()
	s.Done()
	return f, used
}

// TestTwinsChangeNothing: on random clusters with random histories, a search that rates one row of each set of twins
// places the same, in the same order, with the same GPUs, and reports the same, as one that rates every row.
func TestTwinsChangeNothing(t *testing.T) {
	const first = 20261125
	worlds := 25
	if testing.Short() {
		worlds = 8
	}
	names := slices.Sorted(maps.Keys(policy.Builtin))
	searches, used, placed, refused := 0, map[string]int{}, 0, 0
	for seed := uint64(first); seed < uint64(first+worlds); seed++ {
		w := newTwinWorld(seed)
		for step := range 40 {
			w.step()
			plain := w.rebuilt()
			search.HoldTwins(plain, string(structs.NodePoolDefault))
			name := names[w.r.IntN(len(names))]
			if w.r.IntN(2) == 0 {
				name = structs.AlgorithmDefault
			}
			p, ok := policy.Builtin[name]
			if !ok {
				t.Fatalf("no policy %q", name)
			}
			j, draw := w.jobs[w.r.IntN(len(w.jobs))], w.r.Uint64()
			got, with := w.ask(w.v, j, p, draw)
			want, without := w.ask(plain, j, p, draw)
			if without {
				t.Fatal("the plain search uses twins")
			}
			searches++
			if with {
				used[name]++
				placed += len(got.rows)
				refused += len(got.reports[1].Refusals)
			}
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, step %d, %s, twins %v: job %+v\n got %+v\nwant %+v", seed, step, name, with, j.Groups[0].Tasks[0].Resources, got, want)
			}
		}
	}
	t.Logf("%d searches, with twins by policy: %v; %d placements, %d refusals", searches, used, placed, refused)
	if used[structs.AlgorithmDefault] < searches/4 || len(used) < 5 || placed == 0 || refused == 0 {
		t.Error("too few searches use twins: the run proves little")
	}
}
