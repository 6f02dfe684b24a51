package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// jobRun is what a property run counts of a job from the changes alone, to be compared with the record of its end.
type jobRun struct {
	from      structs.Index
	placed    int64
	held      int
	gpu, cpu  int64
	longest   time.Duration
	use       structs.GPUUse
	start     structs.LogTime
	collected bool
	unsure    bool // several commands in one entry: the order of what happened is not in the changes
}

func (r *run) accounting(before, after *state.Snapshot, cmd structs.Command, res structs.Result, d structs.Delta) {
	for _, c := range d.Workloads {
		if c.Before == nil {
			k := structs.JobKey{Namespace: c.After.Namespace, ID: c.After.JobID}
			late := slices.ContainsFunc(d.Acct, func(a structs.Changed[structs.AcctRecord]) bool { return a.After != nil && a.After.Key() == k })
			if old := r.runs[k]; !late && (old == nil || old.held == 0) {
				r.runs[k] = &jobRun{from: c.After.CreateIndex}
			} else { // a purged job of this name was not settled: charged up to now, and what follows is nobody's
				r.runs[k] = &jobRun{from: c.After.CreateIndex, unsure: true}
			}
		}
	}
	for _, c := range d.Allocs {
		a := c.After
		if a == nil {
			a = c.Before
		}
		x := r.runs[a.JobKey()]
		if x == nil || a.CreateIndex < x.from {
			continue
		}
		x.unsure = x.unsure || isA[*structs.BatchCommand](cmd)
		switch {
		case c.After == nil:
			x.collected = true
		case c.Before == nil:
			x.placed++
			x.held++
		}
		if c.After != nil && c.After.ClientTerminal() && (c.Before == nil || !c.Before.ClientTerminal()) {
			x.held--
			for _, u := range a.GPUUse {
				x.use = x.use.Add(u)
				r.check(slices.ContainsFunc(a.Grants, func(g structs.Grant) bool { return g.IsGPU() && g.Task == u.Task && g.Instance == u.GPU }) && u.SMMillis >= 0, "allocation %s used %+v of %+v", a.ID, u, a.Grants)
			}
			switch {
			case a.IsStandby():
				ran := max(a.FinishedAt.Sub(a.CreateTime), 0)
				x.gpu += structs.AmountOf(a).GPUMilli * ran.Milliseconds() / 1000
				x.cpu += a.Resources.CPU * ran.Milliseconds() / 1000
			case a.StartedAt != 0:
				ran := max(a.FinishedAt.Sub(a.StartedAt), 0)
				x.gpu += structs.AmountOf(a).GPUMilli * ran.Milliseconds() / 1000
				x.cpu += a.Resources.CPU * ran.Milliseconds() / 1000
				x.longest = max(x.longest, ran-a.Stood(a.FinishedAt)) // what it stood still is charged, and no run
				x.start = earliest(x.start, a.StartedAt)
			}
		}
	}
	ended := map[structs.JobKey]bool{}
	for _, c := range d.Acct {
		if c.After == nil {
			r.saw("accounting record dropped")
			continue
		}
		rec := c.After
		r.check(rec.CreateIndex == res.Index && rec.End == after.Time() && rec.Exit != "" && rec.Submit != 0 && rec.Queue != "", "record %+v", rec)
		r.saw("accounted")
		r.saw("accounted: " + rec.Exit)
		ended[rec.Key()] = true
		if rec.Preemptions > 0 {
			r.saw("accounted: preempted")
		}
		if rec.GPUSeconds > 0 {
			r.saw("accounted: GPU time")
		}
		x := r.runs[rec.Key()]
		if x == nil || x.unsure || isA[*structs.BatchCommand](cmd) || x.held > 0 {
			continue
		}
		delete(r.runs, rec.Key())
		want := fmt.Sprint(x.placed, x.gpu/1000, x.cpu/1000, x.longest)
		r.check(fmt.Sprint(rec.Allocs, rec.GPUSeconds, rec.CPUSeconds, rec.Longest) == want, "the record of %s at %d tells %d %d %d %s, its allocations used %s",
			rec.Key(), res.Index, rec.Allocs, rec.GPUSeconds, rec.CPUSeconds, rec.Longest, want)
		r.check(rec.GPUUse == x.use, "the record of %s tells that %+v was used of GPUs, its allocations %+v", rec.Key(), rec.GPUUse, x.use)
		if !rec.GPUUse.IsZero() {
			r.saw("accounted: use of GPUs")
		}
		r.check((rec.Start == 0) == (x.start == 0), "the record of %s has start %d, its allocations %d", rec.Key(), rec.Start, x.start)
		if x.collected {
			r.saw("accounted: collected before the end")
		}
	}
	for _, c := range d.Jobs {
		if c.Before != nil && c.After != nil && c.After.Status == structs.JobDead && c.Before.Status != structs.JobDead && !c.After.IsPeriodic() && !c.After.IsParameterized() {
			r.check(ended[c.After.Key()], "job %s ended at %d without a record", c.After.Key(), res.Index)
		}
	}
	rows := after.DecisionCount() - before.DecisionCount()
	accepted := 0
	for _, p := range append(slices.Clone(res.Plans), res.Plan) {
		if p != nil {
			for _, ok := range p.Accepted {
				if ok {
					accepted++
				}
			}
		}
	}
	promised, others := 0, 0
	for row := range after.DecisionsBack() {
		if row.Index != res.Index {
			break
		}
		switch row.Kind {
		case structs.DecidedReserve:
			promised++
		case structs.DecidedResize, structs.DecidedSuspend, structs.DecidedResume:
			others++
		}
	}
	rows -= others // any entry that changes members can resize a gang, and users suspend work
	if rows+accepted == 0 {
		return
	}
	r.check(rows == accepted+promised, "%d rows in the decision log for %d accepted parts", rows, accepted)
	r.saw("decision logged")
}

// TestAcctOfARun follows one job through a failure, a collection before its end, and its end.
func TestAcctOfARun(t *testing.T) {
	c := newCluster(t, 2)
	j := benchJob("train", 2)
	j.Queue, j.Runtime = "research", structs.Runtime{Expected: time.Minute, Limit: time.Hour}
	j.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 2}}
	res := c.apply(&structs.JobRegisterCommand{Job: j, Eval: true})
	p := c.planFor("train", res.EvalID, 0, 2)
	for i := range p.Parts {
		p.Parts[i].Places[0].Expect = 50 * time.Second
		p.Parts[i].Places[0].Grants = []structs.Grant{{Task: "task", Device: "nvidia/gpu/H100", Instance: "GPU-1"}, {Task: "task", Device: "nvidia/gpu/H100", Instance: "GPU-2"}}
	}
	c.apply(p)
	second := structs.LogTime(time.Second)
	ids := []structs.AllocID{}
	for _, a := range c.f.Snapshot().AllocsByJob(structs.JobKey{Namespace: "default", ID: "train"}) {
		ids = append(ids, a.ID)
	}
	at := structs.LogTime(c.index) * 1e6
	observe := func(id structs.AllocID, st structs.ClientStatus, from, to structs.LogTime, use ...structs.GPUUse) {
		c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: id, Client: st, StartedAt: from, FinishedAt: to, GPUUse: use,
			TaskStates: structs.CompactTaskStates(map[string]*structs.TaskState{"task": {State: "dead", Events: []structs.TaskEvent{{Type: "Terminated", ExitCode: 3}}}})}}})
	}
	observe(ids[0], structs.ClientRunning, at, 0)
	observe(ids[1], structs.ClientRunning, at+second, 0)
	observe(ids[0], structs.ClientComplete, at, at+10*second, structs.GPUUse{Task: "task", GPU: "GPU-1", PeakMiB: 70, MiBSeconds: 700, SMMillis: 9, EnergyMJ: 3, Denied: 1},
		structs.GPUUse{Task: "task", GPU: "GPU-3", PeakMiB: 1 << 40}) // of which it was not given anything
	observe(ids[1], structs.ClientRunning, at+second, 0, structs.GPUUse{Task: "task", GPU: "GPU-2", PeakMiB: 90, MiBSeconds: 100})
	// The first is replaced by a scale-down's stop and collected; what it used must not be lost.
	stop := &structs.PlanEntry{Namespace: "default", JobID: "train", EvalID: res.EvalID, Parts: []structs.PlanPart{{Stops: []structs.PlanStop{{ID: ids[0], Desired: structs.DesiredStop}}}}}
	c.apply(stop)
	c.apply(&structs.CollectCommand{Allocs: []structs.AllocID{ids[0]}})
	if c.f.Snapshot().AllocByID(ids[0]) != nil {
		t.Fatal("not collected")
	}
	if n := c.f.Snapshot().AcctCount(); n != 0 {
		t.Fatalf("%d records before the end", n)
	}
	observe(ids[1], structs.ClientFailed, at+second, at+21*second)
	e := c.f.Snapshot().EvalsByJob(structs.JobKey{Namespace: "default", ID: "train"})
	var done []*structs.Evaluation
	for _, ev := range e {
		n := *ev
		n.Status = structs.EvalComplete
		done = append(done, &n)
	}
	c.apply(&structs.EvalUpsertCommand{Evals: done})
	recs := slices.Collect(c.f.Snapshot().Acct())
	if len(recs) != 1 {
		t.Fatalf("%d records, job is %s", len(recs), c.f.Snapshot().JobByKey(structs.JobKey{Namespace: "default", ID: "train"}).Status)
	}
	want := structs.AcctRecord{
		Namespace: "default", JobID: "train", Name: "train", Queue: "research", Domain: "default", Priority: 50, Type: structs.JobBatch,
		Submit: recs[0].Submit, Start: at, End: structs.LogTime(c.index) * 1e6, Allocs: 2, Asked: structs.Amount{GPUMilli: 4000, CPU: 20, MemoryMiB: 20},
		GPUUse: structs.GPUUse{PeakMiB: 90, MiBSeconds: 800, SMMillis: 9, EnergyMJ: 3, Denied: 1}, GPUSeconds: 2*10 + 2*20, CPUSeconds: (10*10 + 10*20) / 1000, Longest: 20 * time.Second, Limit: time.Hour, Expected: time.Minute, Predicted: 50 * time.Second,
		Exit: structs.ExitFailed, ExitCode: 3, CreateIndex: c.index, AllocTime: 30 * time.Second,
	}
	got := *recs[0]
	got.Start = want.Start // clamped between submission and end, which this test's clock does not keep apart
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestAcctRetention holds both limits of retention.
// TestAcctCountsLosses: an allocation that was lost with its node is counted in the record of its job's run, and the time
// that it ran; not while an older server may be in the cluster.
func TestAcctCountsLosses(t *testing.T) {
	for _, in := range []structs.Format{feature.Oldest, feature.Newest} {
		c := newCluster(t, 2)
		c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: in, By: "test"})
		c.register(benchJob("train", 2))
		c.apply(c.planFor("train", c.f.Snapshot().EvalsByJob(structs.JobKey{Namespace: "default", ID: "train"})[0].ID, 0, 2))
		as := c.f.Snapshot().AllocsByJob(structs.JobKey{Namespace: "default", ID: "train"})
		for i, a := range as {
			c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: structs.ClientRunning, StartedAt: 1e9}}})
			if i == 0 {
				c.apply(&structs.NodeStatusCommand{ID: a.NodeID, Status: structs.NodeDown})
				p := c.planFor("train", a.EvalID, 2, 0)
				p.Parts = []structs.PlanPart{{Stops: []structs.PlanStop{{ID: a.ID, Client: structs.ClientLost, Desc: "node is down"}}}}
				c.apply(p)
				continue
			}
			c.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: structs.ClientComplete, StartedAt: 1e9, FinishedAt: 61e9}}})
		}
		c.apply(&structs.JobDeregisterCommand{Namespace: "default", JobID: "train", Purge: true})
		lost, ran := int64(0), time.Duration(0)
		for r := range c.f.Snapshot().Acct() {
			lost, ran = lost+r.Lost, ran+r.AllocTime
		}
		if now := in > feature.Oldest; now && (lost != 1 || ran < time.Minute) || !now && (lost != 0 || ran != 0) {
			t.Errorf("format %d: %d lost in %v", in, lost, ran)
		}
	}
}

func TestAcctRetention(t *testing.T) {
	c := newCluster(t, 1)
	for i := range 30 {
		id := fmt.Sprint("j", i)
		c.apply(&structs.JobRegisterCommand{Job: benchJob(id, 1), Eval: true})
		c.apply(&structs.JobDeregisterCommand{Namespace: "default", JobID: id, Purge: true})
	}
	all := slices.Collect(c.f.Snapshot().Acct())
	if len(all) != 30 || all[0].Exit != structs.ExitStopped || all[0].Start != 0 {
		t.Fatalf("%d records, the first %+v", len(all), all[0])
	}
	c.apply(&structs.AcctCollectCommand{Before: all[10].End})
	if n := c.f.Snapshot().AcctCount(); n != 20 {
		t.Errorf("by time: %d left, want 20", n)
	}
	c.apply(&structs.AcctCollectCommand{Keep: 5})
	rest := slices.Collect(c.f.Snapshot().Acct())
	if len(rest) != 5 || rest[0] != all[25] {
		t.Errorf("by count: %d left, want the newest 5", len(rest))
	}
}

// TestDecisionRing holds the number of rows, their order, and reading from the middle.
func TestDecisionRing(t *testing.T) {
	c := newCluster(t, 50)
	made := 0
	for i := 0; made < structs.DecisionsKept+5000; i++ {
		n := 997
		if i%3 == 0 {
			n = 1
		}
		c.place(fmt.Sprint("j", i), n)
		made += n
	}
	s := c.f.Snapshot()
	n := s.DecisionCount()
	if n > structs.DecisionsKept || n <= structs.DecisionsKept-997 {
		t.Errorf("%d rows are kept, want about %d", n, structs.DecisionsKept)
	}
	first := uint64(made - n + 1)
	seq := first
	for r := range s.Decisions(0) {
		if r.Seq != seq || r.Kind != structs.DecidedPlace || r.Places != 1 || r.Nodes != 1 || r.Node.IsZero() || r.Time == 0 || r.JobID == "" || r.Queue != structs.QueueDefault {
			t.Fatalf("row %+v, want number %d", r, seq)
		}
		seq++
	}
	if seq != uint64(made)+1 {
		t.Errorf("the last row is number %d, want %d", seq-1, made)
	}
	for from := range s.Decisions(first + 777) {
		if from.Seq != first+777 {
			t.Errorf("reading from %d gives %d", first+777, from.Seq)
		}
		break
	}
	back := uint64(made)
	for r := range s.DecisionsBack() {
		if r.Seq != back {
			t.Fatalf("backwards %d, want %d", r.Seq, back)
		}
		back--
	}
}
