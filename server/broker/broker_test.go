package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

func eval(n byte, job string, mod func(*structs.Evaluation)) *structs.Evaluation {
	e := &structs.Evaluation{ID: structs.EvalID{n}, Namespace: "default", JobID: job, Status: structs.EvalPending,
		Priority: 50, CreateIndex: structs.Index(n)}
	if mod != nil {
		mod(e)
	}
	return e
}

func blockedOn(cure structs.EventKind, snapshot structs.Index) func(*structs.Evaluation) {
	return func(e *structs.Evaluation) {
		e.Status, e.SnapshotIndex = structs.EvalBlocked, snapshot
		e.FailedGroups = []*structs.GroupReport{{Group: "g", Wanted: 1, Refusals: []structs.Refusal{{CuredBy: cure}}}}
	}
}

func made(at structs.Index, es ...*structs.Evaluation) *structs.Delta {
	d := &structs.Delta{Index: at}
	for _, e := range es {
		d.Evals = append(d.Evals, structs.Changed[structs.Evaluation]{After: e})
	}
	return d
}

// A checkpoint of running work makes those jobs ready that preempt no work because too much would be lost, and no others.
func TestSavedUnblocks(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", blockedOn(structs.EventSaved, 10)), eval(2, "b", blockedOn(structs.EventAllocStopped, 10)), eval(3, "c", blockedOn(structs.EventNone, 10))), 1)
	b.Feed(made(20, eval(1, "a", blockedOn(structs.EventSaved, 19)), eval(2, "b", blockedOn(structs.EventAllocStopped, 19)), eval(3, "c", blockedOn(structs.EventNone, 19))), 1)
	saved := func(at structs.Index, before, after *structs.Saved) []string {
		of := func(s *structs.Saved) *structs.Allocation {
			return &structs.Allocation{ID: structs.AllocID{9}, JobID: "x", NodeID: node1.ID, Client: structs.ClientRunning, Saved: s}
		}
		b.Feed(&structs.Delta{Index: at, Allocs: []structs.Changed[structs.Allocation]{{Before: of(before), After: of(after)}}}, 1)
		p, _ := b.Take(1)
		b.EndPass(p.ID)
		return keys(p)
	}
	first, second := &structs.Saved{Time: 1}, &structs.Saved{Time: 2}
	if got := saved(21, first, first); len(got) > 0 {
		t.Errorf("an allocation without a new checkpoint wakes %v", got)
	}
	if got := saved(22, first, second); len(got) != 1 || got[0] != "a" {
		t.Errorf("a new checkpoint wakes %v, want a", got)
	}
}

func freed(at structs.Index, node structs.NodeID) *structs.Delta {
	a := &structs.Allocation{NodeID: node, Client: structs.ClientRunning}
	b := *a
	b.Client = structs.ClientComplete
	return &structs.Delta{Index: at, Allocs: []structs.Changed[structs.Allocation]{{Before: a, After: &b}}}
}

func keys(p Pass) (s []string) {
	for _, it := range p.Items {
		s = append(s, it.Key.ID)
	}
	return s
}

var node1 = &structs.Node{ID: structs.NodeID{1}, Pool: "default", Status: structs.NodeReady, Eligibility: structs.NodeEligible}

// TestCapacityThatAppearedDuringThePass covers an unblock that Nomad missed twice: a pass has seen a full cluster, then
// an allocation stops, then the blocked evaluation is written.
func TestCapacityThatAppearedDuringThePass(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", nil)), 1)
	p, ok := b.Take(1)
	if !ok || fmt.Sprint(keys(p)) != "[a]" {
		t.Fatalf("took %v", keys(p))
	}
	b.EndPass(p.ID)
	b.Feed(freed(12, node1.ID), 1) // no job waits for it yet
	done := eval(1, "a", func(e *structs.Evaluation) { e.Status = structs.EvalComplete })
	b.Done(p.Items[0].Key, 13, 1)
	b.Feed(made(13, done, eval(2, "a", blockedOn(structs.EventAllocStopped, 11))), 1)
	if p, ok = b.Take(1); !ok || p.Items[0].Blocked == nil {
		t.Fatal("the blocked evaluation sleeps although capacity appeared after its decision")
	}
	b.EndPass(p.ID)
	b.Done(p.Items[0].Key, 0, 1) // still no capacity: nothing to commit
	if _, ok = b.Take(1); ok {
		t.Fatal("an evaluation that nothing cured runs again")
	}
	b.Feed(freed(14, structs.NodeID{9}), 1)
	if _, ok = b.Take(1); ok {
		t.Fatal("woken by an allocation of an unknown node")
	}
	b.Feed(freed(15, node1.ID), 1)
	if _, ok = b.Take(1); !ok {
		t.Fatal("not woken by the allocation that it waits for")
	}
}

// TestNoneOvertakes: room that becomes free while a job is being refused goes to no job behind it. The next pass begins when
// the refusal is committed, and takes both. Without an event, with one of another pool, or with a job that returns to none, nothing is held up.
func TestNoneOvertakes(t *testing.T) {
	other := &structs.Node{ID: structs.NodeID{2}, Pool: "other", Status: structs.NodeReady, Eligibility: structs.NodeEligible}
	for name, c := range map[string]struct {
		frees structs.NodeID
		wakes string // jobs of the pass before the refusal is committed
		ends  func(*Broker, structs.JobKey)
		then  string
	}{
		"committed": {node1.ID, "[]", func(b *Broker, k structs.JobKey) {
			b.Done(k, 14, 1)
			b.Feed(made(14, eval(2, "first", func(e *structs.Evaluation) { e.Status = structs.EvalComplete }), eval(3, "first", blockedOn(structs.EventAllocStopped, 11))), 1)
		}, "[first behind]"},
		"refused":         {node1.ID, "[]", func(b *Broker, k structs.JobKey) { b.Nack(k, 0, 1) }, "[first behind]"},
		"of another pool": {other.ID, "[]", func(b *Broker, k structs.JobKey) { b.Nack(k, 0, 1) }, "[first]"},
	} {
		b := New(Limits{}, Env{})
		b.Load(Image{Index: 10, Nodes: []*structs.Node{node1, other}}, 1)
		urgent := func(e *structs.Evaluation) { e.Priority = 90 }
		b.Feed(made(11, eval(1, "behind", blockedOn(structs.EventAllocStopped, 10)), eval(2, "first", urgent)), 1)
		p, ok := b.Take(1)
		if !ok || fmt.Sprint(keys(p)) != "[first]" {
			t.Fatalf("%s: took %v", name, keys(p))
		}
		b.EndPass(p.ID)
		b.Returns(p.Items[0].Key)
		b.Feed(made(12, eval(4, "new", nil)), 1)
		if p, _ := b.Take(1); fmt.Sprint(keys(p)) != "[new]" {
			t.Errorf("%s: a pass took %v although nothing became free, want the new job", name, keys(p))
		} else {
			b.EndPass(p.ID)
			b.Done(p.Items[0].Key, 0, 1)
			b.Feed(made(12, eval(4, "new", func(e *structs.Evaluation) { e.Status = structs.EvalComplete })), 1)
		}
		b.Feed(freed(13, c.frees), 1)
		if p, _ := b.Take(1); fmt.Sprint(keys(p)) != c.wakes {
			t.Errorf("%s: before the refusal is committed a pass takes %v, want %v", name, keys(p), c.wakes)
		}
		c.ends(b, p.Items[0].Key)
		if p, _ := b.Take(1); fmt.Sprint(keys(p)) != c.then || len(b.returning) != 0 {
			t.Errorf("%s: after it, a pass takes %v, want %v; %d are awaited", name, keys(p), c.then, len(b.returning))
		}
	}
}

// TestUncurableSleeps: an event of another kind wakes no job, and a node that joins wakes all of them.
func TestUncurableSleeps(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", blockedOn(structs.EventDriverHealthy, 10)), eval(2, "b", blockedOn(structs.EventAllocStopped, 10))), 1)
	b.Feed(freed(12, node1.ID), 1)
	p, _ := b.Take(1)
	if got := fmt.Sprint(keys(p)); got != "[b]" {
		t.Fatalf("woke %s, want [b]", got)
	}
	b.EndPass(p.ID)
	b.Done(p.Items[0].Key, 0, 1)
	n := *node1
	n.Epoch = 13
	b.Feed(&structs.Delta{Index: 13, Nodes: []structs.Changed[structs.Node]{{Before: node1, After: &n}}}, 1)
	if p, _ = b.Take(1); fmt.Sprint(keys(p)) != "[a b]" {
		t.Fatalf("woke %v, want both", keys(p))
	}
}

// TestStarved: what waits for room keeps gangs from growing, and what waits for something else does not: else a gang that has
// to grow before it ends would wait for the jobs that wait for its end.
func TestStarved(t *testing.T) {
	growth := func(e *structs.Evaluation) {
		blockedOn(structs.EventAllocStopped, 10)(e)
		e.FailedGroups[0].Refusals[0].Dimension = structs.DimensionGrowth
	}
	for name, c := range map[string]struct {
		wait func(*structs.Evaluation)
		want bool
	}{
		"room": {blockedOn(structs.EventAllocStopped, 10), true}, "a limit of its queue": {blockedOn(structs.EventQueueUsage, 10), true},
		"another job": {blockedOn(structs.EventJobEnded, 10), false}, "its time": {blockedOn(structs.EventTime, 10), false}, "its own growth": {growth, false},
	} {
		b := New(Limits{}, Env{})
		b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
		b.Feed(made(11, eval(1, "a", c.wait)), 1)
		if got := b.Starved(structs.NodePoolDefault); got != c.want {
			t.Errorf("a job waits for %s: the domain is starved: %v, want %v", name, got, c.want)
		}
	}
}

// TestPurgeWakes: after a node was purged, what it held no longer draws power, and no longer matters to affinities.
func TestPurgeWakes(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", blockedOn(structs.EventAllocPlaced, 10)), eval(2, "b", blockedOn(structs.EventAllocStopped, 10)), eval(3, "c", blockedOn(structs.EventDriverHealthy, 10))), 1)
	gone := freed(12, node1.ID)
	gone.Nodes = []structs.Changed[structs.Node]{{Before: node1}}
	b.Feed(gone, 1)
	if p, _ := b.Take(1); fmt.Sprint(keys(p)) != "[a b]" {
		t.Fatalf("woke %v, want [a b]", keys(p))
	}
}

// TestPriorityWakesOthers: when a job's priority changes, its reservation and places may go to other jobs.
func TestPriorityWakesOthers(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", blockedOn(structs.EventAllocStopped, 10))), 1)
	w := &structs.Workload{Namespace: "default", JobID: "runs", Domain: "default", Priority: 50}
	change := func(at structs.Index, to int) {
		n := *w
		n.Priority, n.ModifyIndex = to, at
		b.Feed(&structs.Delta{Index: at, Workloads: []structs.Changed[structs.Workload]{{Before: w, After: &n}}}, 1)
		w = &n
	}
	change(12, 50)
	if p, ok := b.Take(1); ok {
		t.Fatalf("woke %v, and no priority changed", keys(p))
	}
	change(13, 40)
	if p, _ := b.Take(1); fmt.Sprint(keys(p)) != "[a]" {
		t.Fatalf("woke %v, want [a]", keys(p))
	}
}

// TestElectionWakesTheBlocked: a new leader does not know what happened since blocked jobs were decided.
func TestElectionWakesTheBlocked(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}, Evals: []*structs.Evaluation{
		eval(1, "a", blockedOn(structs.EventAllocStopped, 10)),
		eval(2, "b", func(e *structs.Evaluation) { e.WaitUntil = 100 }),
	}}, 1)
	if p, _ := b.Take(1); fmt.Sprint(keys(p)) != "[a]" {
		t.Fatalf("took %v, want the blocked one", keys(p))
	}
	if at, ok := b.NextWake(); !ok || at != 100 {
		t.Fatalf("next wake at %d, want 100", at)
	}
}

// TestTimeThatCameDuringCommit: a blocked evaluation whose time comes between its decision and its delta is decided
// again, because no timer would wake it.
func TestTimeThatCameDuringCommit(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	until := func(e *structs.Evaluation) {
		blockedOn(structs.EventJobEnded, 10)(e)
		e.WaitUntil = 100
	}
	b.Feed(made(11, eval(1, "a", until)), 101)
	if p, _ := b.Take(101); fmt.Sprint(keys(p)) != "[a]" {
		t.Fatalf("took %v, want what was committed after its time: [a]", keys(p))
	}
	// A woken job is answered by the same evaluation with new content, which may arrive late again.
	b = New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", until)), 50)
	b.Feed(&structs.Delta{Index: 12, Config: true}, 99)
	p, _ := b.Take(99)
	if fmt.Sprint(keys(p)) != "[a]" {
		t.Fatalf("took %v, want [a]", keys(p))
	}
	b.Done(p.Items[0].Key, 13, 100)
	b.EndPass(p.ID)
	b.Feed(made(13, eval(1, "a", until)), 101)
	if p, _ := b.Take(101); fmt.Sprint(keys(p)) != "[a]" {
		t.Fatalf("took %v, want [a] again", keys(p))
	}
}

// TestSpanningJobHoldsAllDomains: a job for all pools waits until the running passes end, and no new one starts.
func TestSpanningJobHoldsAllDomains(t *testing.T) {
	pools := map[string]structs.PoolName{"a": "p1", "b": "p2", "s": DomainAll, "c": "p1"}
	b := New(Limits{}, Env{Lookup: func(k structs.JobKey) *structs.Workload {
		return &structs.Workload{Namespace: k.Namespace, JobID: k.ID, Domain: pools[k.ID], Priority: 50, SubmitIndex: structs.Index(k.ID[0])}
	}})
	b.Load(Image{Index: 1}, 1)
	b.Feed(made(2, eval(1, "a", nil), eval(2, "b", nil)), 1)
	p1, _ := b.Take(1)
	p2, _ := b.Take(1)
	if len(p1.Items) != 1 || len(p2.Items) != 1 || p1.Domain == p2.Domain {
		t.Fatalf("passes of %q and %q do not run side by side", p1.Domain, p2.Domain)
	}
	b.Feed(made(3, eval(3, "s", nil), eval(4, "c", nil)), 1)
	b.EndPass(p1.ID)
	if p, ok := b.Take(1); ok {
		t.Fatalf("pass of %q began although a job that spans pools waits", p.Domain)
	}
	b.EndPass(p2.ID)
	p, ok := b.Take(1)
	if !ok || p.Domain != DomainAll || fmt.Sprint(keys(p)) != "[c s]" {
		t.Fatalf("took %q %v, want all: [c s]", p.Domain, keys(p))
	}
	b.Feed(made(4, eval(5, "a", nil)), 1)
	if _, ok := b.Take(1); ok {
		t.Fatal("a pass began beside one that holds every domain")
	}
}

// TestUnansweredIsNotAHotLoop: a job whose pass is done without answering its evaluation is retried ever more slowly.
func TestUnansweredIsNotAHotLoop(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 1}, 1)
	b.Feed(made(2, eval(1, "a", nil)), 1)
	now, tries := structs.LogTime(1), 0
	for end := now.Add(time.Minute); now < end; {
		p, ok := b.Take(now)
		if !ok {
			at, ok := b.NextWake()
			if !ok {
				t.Fatal("given up")
			}
			now = at
			continue
		}
		tries++
		b.EndPass(p.ID)
		b.Done(p.Items[0].Key, 0, now)
	}
	if tries < 10 || tries > 30 {
		t.Errorf("%d tries in a minute, want 10 to 30", tries)
	}
}

// TestDroppedPlanWakesOnce: a plan that was dropped makes the jobs that its resources may help ready, those in flight too,
// because their passes have seen it. A decision that changes nothing adds nothing to the log, and ends it nevertheless.
func TestDroppedPlanWakesOnce(t *testing.T) {
	b := New(Limits{}, Env{})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(20, eval(1, "a", blockedOn(structs.EventAllocStopped, 19)), eval(2, "b", nil)), 1)
	p, _ := b.Take(1)
	if len(p.Items) != 1 || p.Items[0].Key.ID != "b" {
		t.Fatalf("the first pass takes %v, want b", keys(p))
	}
	b.EndPass(p.ID)
	b.Freed(structs.NodePoolDefault, 1) // while b is in flight
	b.Feed(made(21, eval(2, "b", blockedOn(structs.EventAllocStopped, 20))), 1)
	b.Done(p.Items[0].Key, 21, 1)
	decide := func(when string) {
		t.Helper()
		seen := map[string]int{}
		for range 10 {
			p, ok := b.Take(1)
			if !ok {
				break
			}
			b.EndPass(p.ID)
			for i := range p.Items {
				seen[p.Items[i].Key.ID]++
				b.Done(p.Items[i].Key, 0, 1)
			}
		}
		if seen["a"] != 1 || seen["b"] != 1 {
			t.Errorf("after a plan was dropped %s, jobs were decided %v times, want each once", when, seen)
		}
	}
	decide("while b was in flight")
	b.Freed(structs.NodePoolDefault, 1)
	decide("and nothing was logged since")
}

// TestPausedRemembers: a paused broker gives no passes. Afterwards it has lost nothing.
func TestPausedRemembers(t *testing.T) {
	b := New(Limits{}, Env{})
	b.SetPaused(true)
	b.Feed(made(2, eval(1, "a", nil)), 1)
	if _, ok := b.Take(1); ok {
		t.Fatal("a paused broker gave work")
	}
	b.SetPaused(false)
	if p, _ := b.Take(1); len(p.Items) != 1 {
		t.Fatalf("work was lost in the pause: got %v, want 1", len(p.Items))
	}
	if got := len(b.Queue(structs.NodePoolDefault)); got != 1 {
		t.Errorf("queue shows %d workloads, want 1", got)
	}
}

func BenchmarkFeedAndTake(b *testing.B) {
	br := New(Limits{}, Env{})
	br.Load(Image{Nodes: []*structs.Node{node1}}, 1)
	at := structs.Index(1)
	for i := range 100_000 { // blocked jobs that the events below do not cure
		at++
		e := eval(0, fmt.Sprint("blocked-", i), blockedOn(structs.EventDriverHealthy, at))
		e.ID = structs.DeriveID[structs.EvalID](structs.Seed{}, "b", "", uint64(i))
		br.Feed(made(at, e), 1)
	}
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		at++
		e := eval(0, "j", nil)
		e.ID = structs.DeriveID[structs.EvalID](structs.Seed{}, "e", "", uint64(i))
		br.Feed(made(at, e), 1)
		br.Feed(freed(at, node1.ID), 1)
		p, _ := br.Take(1)
		br.EndPass(p.ID)
		done := *e
		done.Status = structs.EvalComplete
		at++
		br.Done(p.Items[0].Key, at, 1)
		br.Feed(made(at, &done), 1)
	}
}

// TestPromisesGone: a job that others' reservations hold back is decided again when a reservation is gone or an
// operator's reservation changes, but not when the reservation of a job moves.
func TestPromisesGone(t *testing.T) {
	own := &structs.Reservation{ID: "job/default/x", JobID: "x", Domain: "default"}
	operators := &structs.Reservation{ID: "demo", Domain: "default"}
	for _, c := range []struct {
		name  string
		delta structs.Changed[structs.Reservation]
		woken string
	}{
		{"a promise is made", structs.Changed[structs.Reservation]{After: own}, "[]"},
		{"a promise moves", structs.Changed[structs.Reservation]{Before: own, After: own}, "[]"},
		{"a promise is gone", structs.Changed[structs.Reservation]{Before: own}, "[a]"},
		{"an operator makes one", structs.Changed[structs.Reservation]{After: operators}, "[]"},
		{"an operator changes one", structs.Changed[structs.Reservation]{Before: operators, After: operators}, "[a]"},
		{"an operator deletes one", structs.Changed[structs.Reservation]{Before: operators}, "[a]"},
		{"in all pools", structs.Changed[structs.Reservation]{Before: &structs.Reservation{ID: "all", Domain: structs.NodePoolAll}}, "[a]"},
		{"in another pool", structs.Changed[structs.Reservation]{Before: &structs.Reservation{ID: "far", Domain: "far"}}, "[]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := New(Limits{}, Env{})
			b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
			b.Feed(made(11, eval(1, "a", blockedOn(structs.EventNone, 10)), eval(2, "b", blockedOn(structs.EventAllocStopped, 10))), 1)
			b.Feed(&structs.Delta{Index: 12, Reserved: []structs.Changed[structs.Reservation]{c.delta}}, 1)
			p, _ := b.Take(1)
			if got := fmt.Sprint(keys(p)); got != c.woken {
				t.Errorf("%s: woke %s, want %s", c.name, got, c.woken)
			}
		})
	}
}

// links are the dependencies of jobs by their IDs. Nothing has changed since any decision.
type links map[string][]structs.JobKey

func (l links) DependsOn(k structs.JobKey) []structs.JobKey { return l[k.ID] }
func (l links) ChangedAt(structs.JobKey) structs.Index      { return 1 }

// TestFormerDependencyWakesNoJob: a job that waits for another job than before is not looked at when the former one changes.
func TestFormerDependencyWakesNoJob(t *testing.T) {
	on := links{"a": {{Namespace: "default", ID: "first"}}}
	b := New(Limits{}, Env{Links: on})
	b.Load(Image{Index: 10, Nodes: []*structs.Node{node1}}, 1)
	b.Feed(made(11, eval(1, "a", blockedOn(structs.EventJobEnded, 10))), 1)
	on["a"] = []structs.JobKey{{Namespace: "default", ID: "second"}}
	b.Feed(made(12, eval(1, "a", blockedOn(structs.EventJobEnded, 11))), 1)
	ends := func(id string, at structs.Index) []string {
		before := &structs.Job{Namespace: "default", ID: id, Status: structs.JobRunning, ModifyIndex: 5}
		after := *before
		after.Status, after.ModifyIndex = structs.JobDead, at
		b.Feed(&structs.Delta{Index: at, Jobs: []structs.Changed[structs.Job]{{Before: before, After: &after}}}, 1)
		p, _ := b.Take(1)
		b.EndPass(p.ID)
		return keys(p)
	}
	if got := ends("first", 13); len(got) > 0 {
		t.Errorf("the end of the job that it waited for before wakes %v", got)
	}
	if got := ends("second", 14); fmt.Sprint(got) != "[a]" {
		t.Errorf("the end of the job that it waits for wakes %v", got)
	}
}
