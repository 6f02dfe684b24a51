package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/planner"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Passes are the leader service that decides. One goroutine owns broker and planner and never waits for anything but
// the next message; each pass computes on a goroutine of its own, and each log entry in flight has one that waits for
// its outcome.
//
//	applied batches --> owner --Take--> pass goroutine --decided--> owner --Propose, Next--> raft --landed--> owner
//
// The owner keeps the published state that the broker has been fed up to, and a pass decides on exactly that one: a
// pass on a newer state could block a job on capacity whose appearance the broker has not been told of.

// Limits of the decision path.
const (
	passSubscription = 1024            // applied batches that may wait for the owner; beyond it it reloads from state
	passSteps        = 8_000_000       // nodes that one pass may look at; what it does not reach is decided by the next
	failedChainMax   = 6               // failed evaluations in a row of one job, each following up on the last; without a bound they would go on for ever
	failedWaitMin    = 5 * time.Second // wait of the first follow-up of a failed evaluation, doubling
	failedWaitMax    = 5 * time.Minute
	lostPause        = 100 * time.Millisecond // mostly the term ends meanwhile; else decisions start over in it
)

// decider is the state of the scheduling service in one term. Its goroutine owns every field that has no comment on who
// else reads it.
type decider struct {
	s       *Server
	term    uint64
	broker  *broker.Broker
	planner *planner.Planner
	pub     *replica.Published // what the broker has been fed up to

	running    int // pass goroutines
	writes     int // goroutines that wait for a proposal
	decided    chan decided
	landed     chan landed
	specs      chan speculation
	asks       chan func()
	ended      chan struct{}         // closed when the owner takes no more questions
	open       map[uint64]*answering // by plan
	failing    map[structs.JobKey]bool
	cursors    map[structs.PoolName]structs.NodeID
	contenders *contenders
	strict     bool // in some queue nobody passes a blocked job: those that wait must be in the pass
	seed       uint64
	idle       atomic.Bool // nothing is being decided or written: read by ProposeJob
	lost       bool        // leadership is gone: nothing new is begun
	metrics    PassMetrics
	stale      bool      // metrics.Holding is to be filled in again
	counted    time.Time // when metrics.Holding was last filled in
}

// answering gathers what became of the plans of one job.
type answering struct {
	key     structs.JobKey
	waits   int
	refused bool
	at      structs.Index
}

// decided is the answer of a pass goroutine.
type decided struct {
	pass   broker.Pass
	input  *scheduler.Input
	plan   scheduler.Plan
	report scheduler.Report
	failed map[structs.JobKey]string // jobs whose decision panicked, and how
	took   time.Duration
}

// landed is the outcome of a proposal.
type landed struct {
	seq   uint64          // of a batch of plans; 0: a write about failed evaluations
	key   structs.JobKey  // of such a write
	ended *structs.JobKey // a job that was stopped because it can never start; nothing else is set
	res   structs.Result
	err   error
	began time.Time
}

// PassMetrics count what the service did since the process began, over all terms in which this server led.
type PassMetrics struct {
	Broker       broker.Counters
	Planner      planner.Counters
	Holding      broker.Len // at most a second old; zero while this server does not lead
	Panics       int64      // decisions that panicked
	Reloads      int64      // times the queue was rebuilt from state
	Backfilled   int64      // jobs that were placed while capacity was reserved for others
	Preempted    int64      // jobs that were preempted
	GangRestarts int64      // gangs that were started again
	Reservations reservationMetrics
}

// PassMetrics are the counts of this moment.
func (s *Server) PassMetrics() PassMetrics {
	if f := s.decide.metrics.Load(); f != nil {
		return *f
	}
	return PassMetrics{}
}

var errPassesLost = errors.New("leadership was lost while plans were in flight")

// runScheduler is the service. It ends with an error when the outcome of a plan became unknown; it then starts again from
// state, after a barrier, so that what was in the log is in the state too.
func (s *Server) runScheduler(ctx context.Context, term uint64) error {
	if s.decide.passTerm.Swap(term) == term {
		if err := s.replica.Barrier(); err != nil {
			return fmt.Errorf("barrier before deciding: %w", err)
		}
	}
	p := &decider{
		s: s, term: term, planner: planner.New(planner.Limits{}),
		decided: make(chan decided), landed: make(chan landed), specs: make(chan speculation, 256), asks: make(chan func(), 64),
		ended: make(chan struct{}),
		open:  map[uint64]*answering{}, failing: map[structs.JobKey]bool{}, cursors: map[structs.PoolName]structs.NodeID{}, metrics: s.PassMetrics(),
	}
	p.planner.Counters = p.metrics.Planner
	sub := s.Subscribe("passes", passSubscription)
	defer s.Unsubscribe(sub)
	p.load(s.Published())
	s.decide.decider.Store(p)
	defer close(p.ended)
	defer s.decide.decider.CompareAndSwap(p, nil)
	err := p.run(ctx, sub)
	p.counted, p.metrics.Holding = time.Now(), broker.Len{}
	p.publish()
	if err != nil {
		pause(ctx, lostPause)
	}
	for p.running+p.writes > 0 { // what was begun ends by itself; its answers no longer matter
		select {
		case <-p.decided:
			p.running--
		case <-p.landed:
			p.writes--
		}
	}
	return err
}

// now is the log time of this moment.
func (p *decider) now() structs.LogTime {
	return p.s.replica.Now()
}

// load builds the queue from a state.
func (p *decider) load(pub *replica.Published) {
	p.pub = pub
	p.metrics.Reloads++
	if p.broker != nil {
		p.metrics.Broker = p.broker.Counters
	}
	p.contenders = loadContenders(pub.Snapshot)
	p.strict = nobodyPasses(pub.Snapshot)
	p.broker = broker.New(broker.Limits{}, broker.Env{
		Lookup:      func(k structs.JobKey) *structs.Workload { return p.pub.Snapshot.Workload(k) },
		Links:       links{p},
		Choose:      p.choice,
		Competition: func(domain structs.PoolName) bool { return p.strict || p.contenders.has(domain) },
		Reserved:    p.reservedJobs,
	})
	p.broker.Counters = p.metrics.Broker
	im := broker.Image{Index: pub.Index}
	for n := range pub.Snapshot.Nodes() {
		im.Nodes = append(im.Nodes, n)
	}
	for e := range pub.Snapshot.Evals() {
		if !e.Terminal() {
			im.Evals = append(im.Evals, e)
		}
	}
	p.broker.Load(im, p.now())
	p.s.decide.predictor.load(pub.Snapshot)
	p.s.decide.history.load()
	p.broker.SetPaused(pub.Snapshot.SchedulerConfig().PauseBroker)
}

func (p *decider) run(ctx context.Context, sub *replica.Subscription) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := p.now()
		p.begin(now)
		p.send()
		p.publish()
		entries, queued := p.planner.Depth()
		p.idle.Store(entries+queued+p.running == 0)
		wait := time.Hour
		if at, ok := p.broker.NextWake(); ok && !p.broker.Paused() {
			wait = max(at.Sub(now), time.Millisecond)
		}
		if p.stale {
			wait = min(wait, time.Second)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Wake():
			if !p.feed(sub) {
				return errPassesLost
			}
		case d := <-p.decided:
			p.running--
			p.propose(d)
		case l := <-p.landed:
			p.writes--
			p.answer(l)
			if p.lost {
				return errPassesLost
			}
		case sp := <-p.specs:
			p.speculate(sp)
		case f := <-p.asks:
			f()
		case <-timer.C:
		}
	}
}

// Feed takes over what was applied. It reports false when plans in flight can no longer be matched with the state.
func (p *decider) feed(sub *replica.Subscription) bool {
	for {
		a, ok := sub.TryNext()
		if !ok {
			return true
		}
		if a.Lost || a.Delta.Restored {
			if p.running+p.writes == 0 && p.planner.Idle() {
				p.load(a.Published)
				continue
			}
			return false // in flight things refer to the old queue: start over
		}
		if a.Index <= p.pub.Index {
			continue
		}
		p.pub = a.Published
		p.planner.Advance(a.Index)
		if a.Delta.Config {
			p.broker.SetPaused(a.Snapshot.SchedulerConfig().PauseBroker)
		}
		p.contenders.feed(&a.Delta, a.Snapshot)
		if len(a.Delta.Queues) > 0 || a.Delta.Config {
			p.strict = nobodyPasses(a.Snapshot)
		}
		p.broker.Feed(&a.Delta, p.now())
		p.s.decide.predictor.feed(&a.Delta, a.Snapshot)
		p.s.decide.history.feed(&a.Delta)
		p.metrics.feed(&a.Delta)
		p.metrics.Reservations.feed(&a.Delta, func(k structs.JobKey) bool {
			w := a.Snapshot.Workload(k)
			return w != nil && w.Waiting > 0
		})
		p.s.decide.reports.prune(&a.Delta)
	}
}

// begin starts every pass that may run.
func (p *decider) begin(now structs.LogTime) {
	// An operator who paused decisions counts on it as soon as the write is answered, before it has come here.
	if p.s.Published().Snapshot.SchedulerConfig().PauseBroker {
		return
	}
	for !p.lost && !p.planner.Full() {
		pass, ok := p.broker.Take(now)
		if !ok {
			return
		}
		in := p.input(pass, now)
		p.running++
		p.s.decide.inputs.keep(pass.Domain, in)
		go func() {
			began := time.Now()
			d := p.decide(pass, in)
			d.took = time.Since(began)
			p.decided <- d
		}()
	}
}

// input gathers everything that the pass may depend on.
func (p *decider) input(pass broker.Pass, now structs.LogTime) *scheduler.Input {
	snap := p.pub.Snapshot
	p.seed++
	pending := make([]contend.Workload, len(pass.Items))
	for i := range pass.Items {
		it := &pass.Items[i]
		w := contend.Workload{Key: it.Key, Job: snap.JobByKey(it.Key), Evals: it.Evals, Blocked: it.Blocked,
			Queue: it.Workload, Allocs: snap.AllocsByJob(it.Key), Rosters: snap.RostersByJob(it.Key)}
		if it.Spec != nil {
			w.Job, w.Evals = it.Spec.Job, []*structs.Evaluation{it.Spec.Eval}
		}
		p.s.decide.predictor.tell(&w)
		p.gate(&w, it.Spec == nil, now)
		pending[i] = w
	}
	k := p.known(pass.Domain, now)
	in := p.s.passInput(&k, pending, now, uint64(p.pub.Index)<<16^p.seed)
	in.Steps = passSteps
	if learns(policy.For(in.View.Pool(pass.Domain), in.Config), pending) {
		in.History = p.s.decide.history.at(snap)
	}
	return in
}

// passKnown is what the decisions about a node pool depend on beside the work that is decided.
type passKnown struct {
	pub          *replica.Published
	flight       model.Overlay
	cursor       structs.NodeID
	reservations []*structs.Reservation
	starved      bool // somebody waits for capacity there
	contenders   scheduler.Input
}

// known gathers what the owner knows of a node pool.
func (p *decider) known(domain structs.PoolName, now structs.LogTime) passKnown {
	k := passKnown{pub: p.pub, flight: p.planner.Overlay(), cursor: p.cursors[domain], reservations: p.reservationsOf(p.pub.Snapshot, domain, now),
		starved: p.broker.Starved(domain)}
	p.contenders.fill(&k.contenders, domain)
	return k
}

// passInput is the input of a pass, for deciding in earnest and for telling what would be decided.
func (s *Server) passInput(k *passKnown, pending []contend.Workload, now structs.LogTime, seed uint64) *scheduler.Input {
	snap := k.pub.Snapshot
	in := &scheduler.Input{
		View: k.pub.View, Flight: k.flight, Config: *snap.SchedulerConfig(), Now: now, Seed: seed, Cursor: k.cursor, Pending: pending,
		Evicted: slices.Collect(snap.Preempted()), Waits: growing(pending) && k.starved, Queues: s.queueTable(snap), Reserved: k.reservations,
		Power: hasPowerBudget(snap), Running: k.contenders.Running, Chooser: k.contenders.Chooser,
	}
	in.Line = queue.NewLine(in.Queues, in.Config, in.Pending, now, in.Seed)
	return in
}

// hasPowerBudget reports whether some node pool has one.
func hasPowerBudget(snap *state.Snapshot) bool {
	for p := range snap.Pools() {
		if p.PowerBudgetW > 0 {
			return true
		}
	}
	return false
}

// growing reports whether some job may grow beyond its minimum.
func growing(ws []contend.Workload) bool {
	return slices.ContainsFunc(ws, func(w contend.Workload) bool {
		return w.Job != nil && slices.ContainsFunc(w.Job.Groups, func(g *structs.Group) bool {
			return (g.Gang != nil || g.Elastic != nil) && g.Most() > g.Least()
		})
	})
}

// decide runs on the pass's goroutine. A panic fails the evaluation that caused it and nothing else: the pass is then
// decided job by job, each seeing the plans before it.
func (p *decider) decide(pass broker.Pass, in *scheduler.Input) decided {
	d := decided{pass: pass, input: in}
	pol := policy.For(in.View.Pool(pass.Domain), in.Config)
	before := p.s.cfg.Testing.BeforeSchedule
	var why string
	if d.plan, d.report, why = schedule(*in, pol, before); why == "" {
		return d
	}
	d.plan, d.report, d.failed = scheduler.Plan{Cursor: in.Cursor}, scheduler.Report{}, map[structs.JobKey]string{}
	alone := *in
	alone.Line = nil // Pending is cut into jobs, in the order of submission
	for i := range in.Pending {
		alone.Pending = in.Pending[i : i+1]
		plan, report, why := schedule(alone, pol, before)
		if why != "" {
			d.failed[in.Pending[i].Key] = why
			continue
		}
		for _, e := range plan.Entries {
			alone.Flight = alone.Flight.Add(^uint64(0)-uint64(len(d.plan.Entries)), e, nil)
			d.plan.Entries = append(d.plan.Entries, e)
		}
		d.plan.Deferred = append(d.plan.Deferred, plan.Deferred...)
		d.plan.Cursor, alone.Cursor = plan.Cursor, plan.Cursor
		d.report.Workloads = append(d.report.Workloads, report.Workloads...)
		d.report.Steps += report.Steps
	}
	return d
}

// schedule is scheduler.Schedule with a panic turned into its text. before is the tests' knob, or nil.
func schedule(in scheduler.Input, pol search.Policy, before func(scheduler.Input)) (plan scheduler.Plan, report scheduler.Report, why string) {
	defer func() {
		if r := recover(); r != nil {
			why = fmt.Sprintf("%v\n%s", r, debug.Stack())
		}
	}()
	if before != nil {
		before(in)
	}
	plan, report = scheduler.Schedule(in, pol)
	return plan, report, ""
}

// propose hands what a pass decided to the planner.
func (p *decider) propose(d decided) {
	now := p.now()
	p.s.metrics.pass.Observe(d.took.Seconds())
	p.cursors[d.pass.Domain] = d.plan.Cursor
	p.broker.EndPass(d.pass.ID)
	p.broker.WakeAt(d.pass.Domain, wakeAt(&d, now))
	p.s.decide.reports.keep(&d.report)
	for i := range d.report.Workloads {
		if d.report.Workloads[i].Passed {
			p.metrics.Backfilled++
		}
	}
	spec := map[structs.JobKey]bool{}
	jobs := make(map[structs.JobKey]*answering, len(d.pass.Items))
	for i := range d.pass.Items {
		key := d.pass.Items[i].Key
		spec[key] = d.pass.Items[i].Spec != nil
		jobs[key] = &answering{key: key}
	}
	var seen *replica.Published
	var bound []*structs.Reservation
	for _, e := range d.plan.Entries {
		key := structs.JobKey{Namespace: e.Namespace, ID: e.JobID}
		a := jobs[key]
		if a == nil {
			p.s.log.Error("a pass decided about a job that it was not given; its plan is dropped", "job", key)
			continue
		}
		if spec[key] {
			e.JobCreate = 0
		}
		view := p.s.Published()
		if view != seen {
			seen, bound = view, p.binding(view.Snapshot, d.pass, now)
		}
		id, ans, done := p.planner.ProposeReserved(view.View, view.Snapshot.JobByKey(key), e, spec[key], bound, now)
		if done {
			a.refused, a.at = true, max(a.at, ans.Index)
			p.refusedLog(ans)
			continue
		}
		a.waits++
		p.open[id] = a
	}
	deferred := make(map[structs.JobKey]bool, len(d.plan.Deferred))
	for _, k := range d.plan.Deferred {
		deferred[k] = true
	}
	for i := range d.pass.Items {
		it := &d.pass.Items[i]
		a := jobs[it.Key]
		why, failed := d.failed[it.Key]
		switch {
		case failed:
			p.fail(it, why)
		case a.waits > 0: // answered when its plans are
		case a.refused:
			p.broker.Nack(it.Key, a.at, now)
		case deferred[it.Key]:
			p.broker.Defer(it.Key, now)
		default:
			p.broker.Done(it.Key, 0, now)
		}
	}
}

func (p *decider) refusedLog(a planner.Answer) {
	p.s.log.Debug("plan refused; its job is decided again", "job", a.Job, "why", a.Why, "index", a.Index)
}

// send puts waiting plans into the log.
func (p *decider) send() {
	for !p.lost {
		b, ok := p.planner.Next()
		if !ok {
			return
		}
		depth, _ := p.planner.Depth()
		p.s.metrics.planDepth.Observe(float64(depth))
		p.s.metrics.planPlans.Observe(float64(len(b.Entries)))
		cmd := structs.Command{By: structs.Submitter{Name: "scheduler"}, Body: &structs.PlansCommand{Entries: b.Entries}}
		p.write(landed{seq: b.Seq}, cmd)
	}
}

// write proposes a command and has its outcome sent to the owner.
func (p *decider) write(l landed, cmd structs.Command) {
	l.began = time.Now()
	prop := p.s.Propose(replica.LanePriority, cmd)
	p.writes++
	go func() {
		<-prop.Done()
		l.res, l.err = prop.Result()
		p.landed <- l
	}()
}

// answer takes over the outcome of a write.
func (p *decider) answer(l landed) {
	now := p.now()
	if l.ended != nil {
		delete(p.failing, *l.ended)
		return
	}
	if l.seq == 0 {
		p.answerFailed(l, now)
		return
	}
	p.s.metrics.commit.Observe(time.Since(l.began).Seconds())
	var answers []planner.Answer
	switch code := structs.CodeOf(l.err); {
	case l.err == nil && l.res.Err == nil:
		answers = p.planner.Landed(l.seq, l.res.Index, l.res.Plans, p.pub.Index)
	case l.err == nil, code == structs.CodeBusy, code == structs.CodeTooLarge, code == structs.CodeInvalid:
		// Nothing of it was written.
		err := l.err
		if err == nil {
			err = l.res.Err
		}
		p.s.log.Error("plans were not written", "error", err)
		answers = p.planner.Rejected(l.seq, err.Error())
	default:
		answers = p.planner.Lost(l.seq)
		p.lost = true
	}
	for _, a := range answers {
		if a.Outcome != planner.Accepted {
			p.refusedLog(a)
		}
		j := p.open[a.ID]
		delete(p.open, a.ID)
		if j == nil {
			continue
		}
		if a.Freed {
			if w := p.pub.Snapshot.Workload(a.Job); w != nil && w.Domain != "" {
				p.broker.Freed(w.Domain, now)
			} else {
				p.broker.Freed(broker.DomainAll, now)
			}
		}
		j.waits--
		j.refused = j.refused || a.Outcome != planner.Accepted
		j.at = max(j.at, a.Index)
		if j.waits > 0 {
			continue
		}
		if j.refused {
			p.broker.Nack(j.key, j.at, now)
		} else {
			p.broker.Done(j.key, j.at, now)
		}
	}
}

// fail ends the evaluation of a job whose decision panicked, and asks for another one later, a bounded number of times
// in a row.
func (p *decider) fail(it *broker.Item, why string) {
	p.metrics.Panics++
	e := it.Deciding()
	p.s.log.Error("deciding about a job panicked; its evaluation fails", "job", it.Key, "eval", e.ID, "panic", why)
	if it.Spec != nil { // the committed path meets it again
		p.broker.Nack(it.Key, 0, p.now())
		return
	}
	chain := 0
	for prev := e; prev != nil && prev.Trigger == structs.TriggerFailedFollowUp && chain < failedChainMax; chain++ {
		prev = p.pub.Snapshot.EvalByID(prev.PreviousEval)
	}
	failed := *e
	failed.Status, failed.StatusDesc = structs.EvalFailed, "deciding failed by a fault of the server; its log has the detail"
	evals := []*structs.Evaluation{&failed}
	for _, old := range it.Evals {
		if old.ID != e.ID {
			c := *old
			c.Status, c.Successor = structs.EvalCanceled, e.ID
			evals = append(evals, &c)
		}
	}
	if chain < failedChainMax {
		wait := min(failedWaitMin<<chain, failedWaitMax)
		next := &structs.Evaluation{
			ID:        structs.DeriveID[structs.EvalID](structs.Seed(e.ID), "failed-follow-up", it.Key.String(), uint64(p.pub.Index)),
			Namespace: e.Namespace, JobID: e.JobID, Type: e.Type, Priority: e.Priority, Trigger: structs.TriggerFailedFollowUp,
			JobSpecIndex: e.JobSpecIndex, Status: structs.EvalPending, Wait: wait, WaitUntil: p.now().Add(wait), PreviousEval: e.ID,
		}
		failed.NextEval = next.ID
		evals = append(evals, next)
	} else {
		failed.StatusDesc += fmt.Sprintf("; it failed %d times in a row and is not tried again before the job changes", chain)
	}
	p.write(landed{key: it.Key}, structs.Command{By: structs.Submitter{Name: "scheduler"}, Body: &structs.EvalUpsertCommand{Evals: evals}})
}

func (p *decider) answerFailed(l landed, now structs.LogTime) {
	switch code := structs.CodeOf(l.err); {
	case l.err == nil && l.res.Err == nil:
		p.broker.Done(l.key, l.res.Index, now)
	case l.err == nil, code == structs.CodeBusy:
		p.broker.Nack(l.key, 0, now)
	default:
		p.lost = true
	}
}

// publish makes the counts visible.
func (p *decider) publish() {
	if p.stale = time.Since(p.counted) < time.Second; !p.stale { // it looks at every entry
		p.counted, p.metrics.Holding = time.Now(), p.broker.Len()
	}
	f := p.metrics
	f.Broker, f.Planner = p.broker.Counters, p.planner.Counters
	p.s.decide.metrics.Store(&f)
}
