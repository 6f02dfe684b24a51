package planner

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// world is a state that applies plans as the state machine does, with a view of it that is published late.
type world struct {
	index  structs.Index
	nodes  map[structs.NodeID]*structs.Node
	allocs map[structs.AllocID]*structs.Allocation
	job    *structs.Job
	view   *model.View
	deltas []structs.Delta // applied, not published yet
	ever   map[structs.AllocID]bool
}

var ask = structs.Vector{CPU: 100, MemoryMiB: 10}

func newWorld(nodes int) *world {
	w := &world{index: 10, nodes: map[structs.NodeID]*structs.Node{}, allocs: map[structs.AllocID]*structs.Allocation{}, ever: map[structs.AllocID]bool{},
		job: &structs.Job{Namespace: "default", ID: "j", CreateIndex: 5, Groups: []*structs.Group{{Name: "g", Count: 1}}}}
	var list []*structs.Node
	for i := range nodes {
		n := &structs.Node{ID: structs.NodeID{byte(i + 1)}, Pool: "default", Status: structs.NodeReady, Eligibility: structs.NodeEligible,
			Epoch: 1, Resources: structs.NodeResources{CPU: 1000, MemoryMiB: 1000, DiskMiB: 1000}}
		w.nodes[n.ID] = n
		list = append(list, n)
	}
	w.view = model.NewView(w.index, list, nil, nil)
	return w
}

// plan returns a plan with one allocation on each given node.
func (w *world) plan(eval byte, n uint64, on ...byte) *structs.PlanEntry {
	e := &structs.PlanEntry{Namespace: "default", JobID: "j", JobCreate: 5, SnapshotIndex: w.view.Index(),
		EvalID: structs.DeriveID[structs.EvalID](structs.Seed{eval}, "e", "", n), Groups: []structs.GroupName{"g"}, Asks: []structs.Vector{ask}}
	e.Evals = []*structs.Evaluation{{ID: e.EvalID, JobID: "j", Namespace: "default", Status: structs.EvalComplete}}
	for i, b := range on {
		id := structs.NodeID{b}
		e.Nodes = append(e.Nodes, structs.PlanNode{ID: id, Epoch: w.view.Node(id).Epoch})
		e.Parts = append(e.Parts, structs.PlanPart{Places: []structs.PlanPlace{{Node: i, Index: i}}})
	}
	return e
}

// apply commits one log entry.
func (w *world) apply(entries []*structs.PlanEntry) (structs.Index, []*structs.PlanResult) {
	w.index++
	d := structs.Delta{Index: w.index}
	var results []*structs.PlanResult
	for _, e := range entries {
		r := &structs.PlanResult{Index: w.index, Accepted: make([]bool, len(e.Parts))}
	part:
		for i := range e.Parts {
			for _, p := range e.Parts[i].Places {
				if w.nodes[e.Nodes[p.Node].ID].Epoch != e.Nodes[p.Node].Epoch {
					r.Refused = "epoch"
					continue part
				}
			}
			for _, p := range e.Parts[i].Places {
				a := &structs.Allocation{ID: structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, "g", p.Index), NodeID: e.Nodes[p.Node].ID,
					Namespace: "default", JobID: "j", Group: "g", Resources: ask, Client: structs.ClientPending, Desired: structs.DesiredRun, Job: w.job}
				w.allocs[a.ID], w.ever[a.ID] = a, true
				d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{After: a})
			}
			r.Accepted[i] = true
		}
		results = append(results, r)
	}
	w.deltas = append(w.deltas, d)
	return w.index, results
}

func (w *world) publish() {
	for _, d := range w.deltas {
		w.view = w.view.Advance(d)
	}
	w.deltas = nil
}

// bump changes a node, as a re-registration does.
func (w *world) bump(id structs.NodeID) {
	w.index++
	old := w.nodes[id]
	n := *old
	n.Epoch = w.index
	w.nodes[id] = &n
	w.deltas = append(w.deltas, structs.Delta{Index: w.index, Nodes: []structs.Changed[structs.Node]{{Before: old, After: &n}}})
}

func (w *world) end(id structs.AllocID) {
	w.index++
	old := w.allocs[id]
	a := *old
	a.Client = structs.ClientComplete
	delete(w.allocs, id)
	w.deltas = append(w.deltas, structs.Delta{Index: w.index, Allocs: []structs.Changed[structs.Allocation]{{Before: old, After: &a}}})
}

func (w *world) used(id structs.NodeID) (v structs.Vector) {
	for _, a := range w.allocs {
		if a.NodeID == id {
			v = v.Add(a.Resources)
		}
	}
	return v
}

// TestPipelineNeverOvercommits drives random plans, decided on views of any age, through a pipeline that commits late,
// loses batches, and meets changed nodes.
func TestPipelineNeverOvercommits(t *testing.T) {
	checks := 100_000
	if s := os.Getenv("MUSTER_CHECKS"); s != "" {
		checks, _ = strconv.Atoi(s)
	} else if testing.Short() {
		checks = 10_000
	}
	seed := time.Now().UnixNano()
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		seed, _ = strconv.ParseInt(s, 10, 64)
	}
	t.Logf("seed %d (repeat with MUSTER_SEED)", seed)
	var sum Counters
	ended, full := 0, 0
	for round := int64(0); checks > 0; round++ {
		r := rand.New(rand.NewSource(seed + round))
		w := newWorld(4)
		p := New(Limits{Depth: 3, EntryPlans: 4})
		open := map[uint64]*structs.PlanEntry{}
		answered := func(as []Answer) {
			for _, a := range as {
				if open[a.ID] == nil {
					t.Fatalf("plan %d answered twice or never proposed", a.ID)
				}
				if a.Outcome == Accepted {
					for _, part := range open[a.ID].Parts {
						id := structs.DeriveAllocID(open[a.ID].EvalID, open[a.ID].SnapshotIndex, "g", part.Places[0].Index)
						if !w.ever[id] {
							t.Fatalf("plan %d is called accepted, but %s is not in the state", a.ID, id)
						}
					}
				}
				delete(open, a.ID)
			}
		}
		type sent struct {
			b     Batch
			index structs.Index
			res   []*structs.PlanResult
		}
		var log []Batch // sent, not applied
		var acks []sent // applied, not answered
		step := func(k int) {
			switch {
			case k < 8:
				var on []byte
				for b := range byte(4) {
					if r.Intn(2) == 0 {
						on = append(on, b+1)
					}
				}
				if len(on) == 0 {
					return
				}
				e := w.plan(byte(round), uint64(checks), on...)
				room := map[structs.NodeID]bool{}
				held := map[structs.NodeID]int64{} // in flight, not in the view
				for _, o := range open {
					for _, part := range o.Parts {
						for _, pl := range part.Places {
							held[o.Nodes[pl.Node].ID]++
						}
					}
				}
				for _, n := range e.Nodes {
					u, total, _ := w.view.Usage(n.ID)
					room[n.ID] = u.CPU+(held[n.ID]+1)*ask.CPU <= total.CPU
				}
				id, a, done := p.Propose(w.view, w.job, e, false, nil, 0)
				if done {
					if a.Outcome != Refused {
						t.Fatalf("nothing of a plan remained, and it is %s", a.Outcome)
					}
					for _, n := range e.Nodes {
						if room[n.ID] {
							t.Fatalf("node %s has room for the placement that was refused: %s", n.ID, a.Why)
						}
					}
					full++
					return
				}
				queue := p.queue[len(p.queue)-1]
				open[id] = queue.entry
			case k < 11:
				if b, ok := p.Next(); ok {
					log = append(log, b)
				}
			case k < 14 && len(log) > 0:
				index, res := w.apply(log[0].Entries)
				acks = append(acks, sent{log[0], index, res})
				log = log[1:]
			case k < 17 && len(acks) > 0:
				w.publish()
				answered(p.Landed(acks[0].b.Seq, acks[0].index, acks[0].res, w.view.Index()))
				acks = acks[1:]
			case k == 17:
				w.publish()
				p.Advance(w.view.Index())
			case k == 18:
				w.bump(structs.NodeID{byte(1 + r.Intn(4))})
			case k == 19:
				for id := range w.allocs {
					w.end(id)
					ended++
					break
				}
			case k == 20 && len(log) > 0 && r.Intn(4) == 0:
				at := r.Intn(len(log)) // everything after it in the log is dropped, too
				answered(p.Lost(log[at].Seq))
				log = log[:at]
			}
			for id, n := range w.nodes {
				if u := w.used(id); !u.Fits(structs.Vector{CPU: n.Resources.CPU, MemoryMiB: n.Resources.MemoryMiB}) {
					t.Fatalf("round %d: node %s holds %v", round, id, u)
				}
			}
		}
		for range 200 {
			checks--
			step(r.Intn(21))
		}
		for !p.Idle() {
			step(9)
			step(12)
			step(15)
			step(17)
		}
		if n := p.Overlay().Len(); n != 0 || len(open) != 0 {
			t.Fatalf("round %d: idle, but the overlay holds %d plans and %d are unanswered", round, n, len(open))
		}
		c := p.Counters
		sum.Proposed, sum.Plans, sum.Entries = sum.Proposed+c.Proposed, sum.Plans+c.Plans, sum.Entries+c.Entries
		sum.PartsRefused, sum.PartsStale, sum.Unknown = sum.PartsRefused+c.PartsRefused, sum.PartsStale+c.PartsStale, sum.Unknown+c.Unknown
		sum.Refreshes, sum.Places, sum.DepthSum = sum.Refreshes+c.Refreshes, sum.Places+c.Places, sum.DepthSum+c.DepthSum
		sum.PlansMax, sum.DepthMax = max(sum.PlansMax, c.PlansMax), max(sum.DepthMax, c.DepthMax)
	}
	t.Logf("what happened: %+v; ended %d, refused whole %d; plans an entry %.2f, depth %.2f", sum, ended, full,
		float64(sum.Plans)/float64(sum.Entries), float64(sum.DepthSum)/float64(sum.Entries))
	if sum.PartsRefused == 0 || sum.PartsStale == 0 || sum.Unknown == 0 || sum.Refreshes == 0 || full == 0 || sum.PlansMax < 2 || sum.DepthMax < 2 {
		t.Error("one of refusals, stale parts, unknown outcomes, shared entries or a deep pipeline never happened: the run proves nothing about it")
	}
}

// TestOneBadNodeOf600: one placement is refused, the others are committed, and the evaluation stays open.
func TestOneBadNodeOf600(t *testing.T) {
	w := newWorld(60)
	var on []byte
	for i := range 600 {
		on = append(on, byte(i%60+1))
	}
	e := w.plan(1, 1, on...)
	e.Nodes[77].Epoch = 99
	p := New(Limits{})
	if _, a, done := p.Propose(w.view, w.job, e, false, nil, 0); done {
		t.Fatalf("all of it was refused: %s", a.Why)
	}
	b, _ := p.Next()
	if n := len(b.Entries[0].Parts); n != 599 || len(b.Entries[0].Evals) != 0 {
		t.Fatalf("%d parts and %d evaluations proposed, want 599 and the evaluation left open", n, len(b.Entries[0].Evals))
	}
	index, res := w.apply(b.Entries)
	as := p.Landed(b.Seq, index, res, 0)
	if as[0].Outcome != Refused || as[0].Index != index || p.Counters.Places != 599 {
		t.Fatalf("answer %+v with %d places, want refused with 599", as[0], p.Counters.Places)
	}
	if p.Overlay().Len() == 0 {
		t.Fatal("the overlay forgot the plan before the view had it")
	}
	w.publish()
	if p.Advance(w.view.Index()); p.Overlay().Len() != 0 || !p.Idle() {
		t.Fatal("the overlay still holds what the view has")
	}
}

// TestReturnedNodes: work that was taken for lost while its node returned is left alone, and nothing takes its place. What is said about
// other work stands.
func TestReturnedNodes(t *testing.T) {
	w := newWorld(60)
	e := w.plan(1, 1, 1, 2, 3)
	id := func(b byte) structs.AllocID { return structs.AllocID{b} }
	lost := func(b byte) structs.PlanStop {
		return structs.PlanStop{ID: id(b), Desired: structs.DesiredStop, Client: structs.ClientLost}
	}
	e.Parts[0].Stops = []structs.PlanStop{lost(1)}
	e.Parts[1].Stops = []structs.PlanStop{lost(2)}
	e.Parts = append(e.Parts,
		structs.PlanPart{Stops: []structs.PlanStop{lost(1), lost(2), {ID: id(3), Desired: structs.DesiredStop}}},
		structs.PlanPart{Stops: []structs.PlanStop{{ID: id(1), Client: structs.ClientUnknown}}})
	p := New(Limits{})
	p.Returned = func(a structs.AllocID) bool { return a == id(1) || a == id(3) }
	if _, a, done := p.Propose(w.view, w.job, e, false, nil, 0); done {
		t.Fatalf("all of it was refused: %s", a.Why)
	}
	b, _ := p.Next()
	out := b.Entries[0]
	if len(out.Parts) != 3 || len(out.Evals) != 0 || len(out.Parts[0].Places) != 1 || out.Parts[0].Stops[0].ID != id(2) || len(out.Parts[1].Places) != 1 {
		t.Fatalf("parts %+v and %d evaluations; want the places for 2 and for new work, and the evaluation left open", out.Parts, len(out.Evals))
	}
	if rest := out.Parts[2].Stops; len(rest) != 2 || rest[0].ID != id(2) || rest[1].ID != id(3) {
		t.Errorf("stops %+v; want those of 2, which is lost, and of 3, which was not taken for lost", rest)
	}
	if len(e.Parts[3].Stops) != 3 {
		t.Error("the plan that was proposed has changed")
	}
}

// TestEntriesAreSharedAndBounded: queued plans share an entry, up to its size. A part that is too large for any entry
// is refused.
func TestEntriesAreSharedAndBounded(t *testing.T) {
	w := newWorld(60)
	p := New(Limits{EntryBytes: 8 << 10, Depth: 2})
	for i := range 30 {
		p.Propose(w.view, w.job, w.plan(2, uint64(i), byte(i+1), byte(i+2)), false, nil, 0)
	}
	total, entries := 0, 0
	for {
		b, ok := p.Next()
		if !ok {
			break
		}
		entries++
		total += len(b.Entries)
		size := 0
		for _, e := range b.Entries {
			size += Size(e)
			data, err := fsm.Encode(structs.Command{Body: e}, feature.Newest)
			if err != nil || len(data) > Size(e) {
				t.Fatalf("an entry of %d bytes was estimated at %d (%v)", len(data), Size(e), err)
			}
		}
		if size > 8<<10 {
			t.Errorf("entry of %d bytes", size)
		}
	}
	if entries != 2 || total < 8 || total == 30 {
		t.Errorf("%d plans in %d entries, want several in each of 2, and the rest waiting for the pipeline", total, entries)
	}
	big := w.plan(3, 1, 50, 51)
	big.Parts[0].Places[0].Resched = make([]structs.RescheduleEvent, 100)
	q := New(Limits{EntryBytes: 8 << 10})
	if _, a, done := q.Propose(w.view, w.job, big, false, nil, 0); done {
		t.Fatalf("all refused: %s", a.Why)
	}
	if b, _ := q.Next(); len(b.Entries[0].Parts) != 1 || q.Counters.TooLarge != 1 {
		t.Errorf("%d parts, %d too large, want 1 and 1", len(b.Entries[0].Parts), q.Counters.TooLarge)
	}
}

// TestJobMovedOn: a plan for an old version keeps only its stops. A speculative one is left to Apply.
func TestJobMovedOn(t *testing.T) {
	w := newWorld(2)
	w.job.Version = 3
	e := w.plan(4, 1, 1)
	e.Parts = append(e.Parts, structs.PlanPart{Stops: []structs.PlanStop{{ID: structs.AllocID{1}, Desired: structs.DesiredStop}}})
	p := New(Limits{})
	if _, _, done := p.Propose(w.view, w.job, e, false, nil, 0); done {
		t.Fatal("the stop was refused too")
	}
	if b, _ := p.Next(); len(b.Entries[0].Parts) != 1 || len(b.Entries[0].Parts[0].Stops) != 1 {
		t.Errorf("parts %+v, want the stop alone", b.Entries[0].Parts)
	}
	if _, a, done := New(Limits{}).Propose(w.view, nil, w.plan(4, 2, 1), false, nil, 0); !done || a.Outcome != Refused {
		t.Error("a plan for an absent job was not refused")
	}
	if _, _, done := New(Limits{}).Propose(w.view, nil, w.plan(4, 3, 1), true, nil, 0); done {
		t.Error("a speculative plan was refused although its job may be in the log before it")
	}
}

func BenchmarkPropose(b *testing.B) {
	w := newWorld(200)
	p := New(Limits{})
	for i := 0; b.Loop(); i++ {
		_, _, done := p.Propose(w.view, w.job, w.plan(5, uint64(i), byte(i%200+1)), false, nil, 0)
		if done {
			b.Fatal("refused")
		}
		if i%8 == 7 {
			batch, _ := p.Next()
			p.Lost(batch.Seq)
		}
	}
}

// TestPromises: Reservations returns the newest reservation of each job in plans that are not in the view, until the
// view includes it.
func TestPromises(t *testing.T) {
	p := New(Limits{})
	v := model.NewView(1, nil, nil, nil)
	propose := func(job string, start structs.LogTime) {
		e := &structs.PlanEntry{Namespace: "default", JobID: job, Reservation: &structs.Reservation{ID: "job/default/" + job, JobID: job, Start: start}}
		if _, _, done := p.Propose(v, nil, e, false, nil, 0); done {
			t.Fatal("a plan that only promises was refused")
		}
	}
	starts := func() (out []structs.LogTime) {
		for _, r := range p.Reservations() {
			out = append(out, r.Start)
		}
		return out
	}
	propose("a", 5)
	b, _ := p.Next()
	propose("b", 7)
	propose("a", 0)
	if got := fmt.Sprint(starts()); got != "[0 7]" {
		t.Errorf("promises %s, want that of a dropped and that of b", got)
	}
	p.Landed(b.Seq, 10, []*structs.PlanResult{{Index: 10}}, 9)
	if got := fmt.Sprint(starts()); got != "[0 7]" {
		t.Errorf("promises %s after the first landed", got)
	}
	b, _ = p.Next()
	p.Landed(b.Seq, 11, []*structs.PlanResult{{Index: 11}, {Index: 11}}, 9)
	p.Advance(11)
	if got := starts(); len(got) != 0 {
		t.Errorf("promises %v after the view has them", got)
	}
}

// TestPlansQueueByDefault: a planner without configured limits queues plans.
func TestPlansQueueByDefault(t *testing.T) {
	w, p := newWorld(1), New(Limits{})
	if p.Full() {
		t.Fatal("it is full before the first plan")
	}
	if _, a, done := p.Propose(w.view, w.job, w.plan(1, 1, 1), false, nil, 0); done || p.Full() {
		t.Errorf("after one plan: %+v, full %t", a, p.Full())
	}
}

// TestRefusedPartsFreePlaces: an answer says that places are free again if any refused part had some.
func TestRefusedPartsFreePlaces(t *testing.T) {
	w, p := newWorld(2), New(Limits{})
	e := w.plan(1, 1, 1)
	e.Parts = append(e.Parts, structs.PlanPart{Updates: []structs.PlanUpdate{{}}}) // the last part has none
	if _, a, done := p.Propose(w.view, w.job, e, false, nil, 0); done {
		t.Fatalf("refused: %+v", a)
	}
	b, _ := p.Next()
	as := p.Landed(b.Seq, 11, []*structs.PlanResult{{Index: 11, Accepted: make([]bool, len(b.Entries[0].Parts))}}, 0)
	if len(as) != 1 || as[0].Outcome != Refused || !as[0].Freed {
		t.Errorf("answered %+v, want that places are free", as)
	}
}
