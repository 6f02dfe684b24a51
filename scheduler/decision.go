package scheduler

import "github.com/muster-sched/muster/structs"

// decision is the work on one workload of a pass.
type decision struct {
	in      *Input
	load    *Workload
	policy  Policy
	w       *pass
	vain    *hopeless
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
	spot spot

	alone bool               // not part of a gang's minimum
	evict []structs.PlanStop // others that make room for it
}

func newDecision(in *Input, load *Workload, p Policy, w *pass, vain *hopeless, cursor structs.NodeID) *decision {
	if x, ok := p.(interface{ ForJob(j *structs.Job) Policy }); ok {
		p = x.ForJob(load.Job)
	}
	d := &decision{in: in, load: load, policy: p, w: w, vain: vain, start: cursor, cursor: cursor, misses: make(map[string]int64), rec: newReconciler(in, load)}
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

// done leaves memory of the decision to others, when its entries are made.
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
