package scheduler

import (
	"slices"
	"strconv"

	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// decision is the work on one workload of a pass.
type decision struct {
	in      *Input
	load    *Workload
	policy  search.Policy
	w       *search.Pass
	noFit   *search.NoFit
	rec     *reconciler
	eval    *structs.Evaluation // the one that is answered
	start   structs.NodeID      // Cursor when the decision began
	cursor  structs.NodeID
	steps   int
	books   *books
	promise *structs.Reservation // what the pass promises to the workload, or nil
	pre     *preemption
	retry   structs.LogTime // when more may be preempted; 0: not known
	limits  *limits         // nil: nothing is limited
	took    taken           // of limits
	aside   *aside          // nil: no amounts are set aside
	beyond  bool            // not tried: see books.beyond

	setAside  structs.Amount // what the first setAsideN of placed hold
	setAsideN int
	asideDone int // of placed: told to aside

	placed  []placement
	misses  map[string]int64 // per group: places not found
	entries []*structs.PlanEntry
	report  WorkloadReport
}

// placement is a want with the spot found for it.
type placement struct {
	g    *groupWork
	want *want
	spot search.Placement

	alone bool               // not part of a gang's minimum
	evict []structs.PlanStop // others that make room for it
}

func newDecision(in *Input, load *Workload, p search.Policy, w *search.Pass, vain *search.NoFit, cursor structs.NodeID) *decision {
	if x, ok := p.(interface {
		ForJob(j *structs.Job) search.Policy
	}); ok {
		p = x.ForJob(load.Job)
	}
	d := &decision{in: in, load: load, policy: p, w: w, noFit: vain, start: cursor, cursor: cursor, misses: make(map[string]int64), rec: newReconciler(in, load)}
	d.report.Key = load.Key
	d.eval = load.Blocked
	if n := len(load.Evals); n > 0 {
		d.eval = load.Evals[n-1]
	}
	if d.eval != nil {
		d.report.EvalID = d.eval.ID
	}
	return d
}

// Done leaves memory of the decision to others, when its entries are made.
func (d *decision) done() {
	d.rec.done()
	if len(d.placed) > 0 || d.promise != nil {
		return // their wants may be referred to
	}
	for _, g := range d.rec.groups {
		if g.gang {
			keepWants(g.wants)
			g.wants = nil
		}
	}
}

// noFitKey is the key of a group; while something is promised, how long it will run decides, too, where it may go.
func (d *decision) noFitKey(g *groupWork) string {
	if !g.noFitKeyed {
		g.noFitKey, g.noFitKeyed = g.hopeKey(d.load.Job), true
	}
	key := g.noFitKey
	if key != "" && d.w.AnyShy() {
		return "" // who keeps away from whom depends on their names
	}
	if key == "" || !d.books.Keeps() && d.aside == nil {
		return key
	}
	if len(d.books.Windows) > 0 || d.aside != nil {
		return "" // and whose it is
	}
	return key + strconv.FormatInt(int64(d.until(g.tg)), 36)
}

// hopeKey is equal for groups that are feasible on the same nodes. It is "" for a group whose search depends on where
// its job's allocations are.
func (g *groupWork) hopeKey(job *structs.Job) string {
	a := g.ask
	if a.DistinctHostsJob || a.DistinctHostsGroup || len(a.Distinct) > 0 || len(model.PeersOf(a.Job, a.Tg)) > 0 ||
		slices.ContainsFunc(g.wants, func(w want) bool { return w.yields || !w.pinned.IsZero() }) {
		return ""
	}
	type taskKey struct {
		Driver      string
		Constraints []structs.Constraint
		Cores       int64
		Devices     []structs.DeviceRequest
		GPU         []structs.GPURequest
		RDMA        bool
		NUMA        *structs.NUMA
	}
	if g.gang && (a.Shares && len(g.staying) > 0 || len(g.ban(job)) > 0) {
		return ""
	}
	members := 1
	if g.gang {
		members = len(g.wants)
		if g.tg.Topology != nil && g.tg.Topology.Across != "" && len(g.staying) > 0 {
			return ""
		}
	}
	if b := a.PlainKey(members); b != nil {
		return string(b)
	}
	key := struct {
		Members     int
		Topology    *structs.Topology
		Pool        string
		Datacenters []string
		Need        structs.Vector
		Job, Group  []structs.Constraint
		Networks    []structs.Network
		Volumes     []structs.VolumeRequest
		Tasks       []taskKey
		Tolerations []structs.Toleration
	}{members, g.tg.Topology, job.NodePool, job.Datacenters, a.Need, job.Constraints, g.tg.Constraints, g.tg.Networks, g.tg.Volumes, nil, job.Tolerations}
	for _, t := range g.tg.Tasks {
		key.Tasks = append(key.Tasks, taskKey{t.Driver, t.Constraints, t.Resources.Cores, t.Resources.Devices, t.Resources.GPU, t.Resources.RDMA, t.Resources.NUMA})
	}
	return string(pack.Append(nil, &key))
}

// weightsFor are the weights that configuration says for a job: its own, then its pool's, then the cluster's.
func weightsFor(in *Input, j *structs.Job) structs.ScoreWeights {
	w := in.Config.Weights
	if j == nil {
		return w
	}
	pool := j.NodePool
	if pool == "" {
		pool = structs.NodePoolDefault
	}
	if p := in.View.Pool(pool); p != nil {
		w = w.Over(p.Weights)
	}
	return w.Over(j.Weights)
}
