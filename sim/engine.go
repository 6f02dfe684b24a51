package sim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Config is one run: a cluster, a trace, and how decisions are made and accounted.
type Config struct {
	Nodes  []*structs.Node // ready nodes, in tie-breaking order; SetIDs sets their ids
	Pools  []*structs.NodePool
	Source Source

	Policy    search.Policy           // placement
	Scheduler structs.SchedulerConfig // ordering, backfilling and GPU fit of queues without their settings
	Queues    []*structs.Queue        // by path; nil: one queue with the defaults
	Tenants   []contend.Tenant        // namespaces with a quota, by name
	Line      func(*scheduler.Input) contend.Line
	Chooser   contend.Chooser // decides which running and waiting work should hold resources; nil: the order of the queues
	Predict   Predictor       // of run times; nil: none
	Mix       *model.Mix
	Seed      uint64

	First    []Kind // order of events at equal times; see Kind
	Each     bool   // a pass after every event; else one after all events of an instant
	Whole    bool   // every waiting job is in every pass; else only those for which room may have appeared
	Window   int    // jobs with equal requests in one pass, oldest of the highest priority first; 0: 64
	Silent   []Kind // events without a pass after them
	LeaveOut bool   // with Whole: no pass while no node has room for any waiting job
	Due      bool   // work predicted to end exactly at its end holds nothing after the Expired events of that instant
	Drop     bool   // a job that is not placed at once is dropped

	Restart      func(*Live) time.Duration                                             // the restart cost of a resumed unit, during which it makes no progress; nil: none
	Kept         func(l *Live, ran time.Duration) time.Duration                        // how much of the work since a unit began survives a preemption; nil: all
	Saves        time.Duration                                                         // work that may be preempted writes a checkpoint at this interval, and decisions know its age; 0: none. Kept says what survives
	Notice       bool                                                                  // stopped work that saves its state holds its resources meanwhile, in turns where saves are limited (Scheduler.CheckpointStorage)
	SaveTime     func(l *Live, a *structs.Allocation) time.Duration                    // how long a save takes, with Notice; nil: as long as the newest, else the whole grace
	Expire       func(l *Live, a *structs.Allocation, ran time.Duration) time.Duration // corrected prediction of a run that took longer than predicted; nil: not called
	Hooks        Hooks
	Failures     Failures
	Events       []NodeEvent
	Reservations []*structs.Reservation // of operators
	Capacity     int64                  // in thousandths of units, for the utilisation; 0: of the GPUs, or MHz if there are none
}

// Hooks are called on events. Any may be nil.
type Hooks struct {
	Event  func(e *Engine, k Kind, l *Live) // after an event took effect, before the pass; l is nil for nodes
	Placed func(e *Engine, l *Live, a *structs.Allocation)
	Ended  func(e *Engine, l *Live) // the job left the system, complete or dropped
	Passed func(e *Engine, in *scheduler.Input, plan *scheduler.Plan, rep *scheduler.Report)
}

// Predictor predicts the run times of jobs.
type Predictor interface {
	// Predict returns the run time of a job's next run, when the job arrives and when it is requeued; 0: unknown.
	Predict(l *Live, now structs.LogTime) time.Duration
	// Learn is called for every job that ended.
	Learn(l *Live, now structs.LogTime)
}

// roundsMax limits the passes at one instant, in case preemptions undo each other.
const roundsMax = 1000

const windowDefault = 64

// Engine is one run in progress. It is used by one goroutine.
type Engine struct {
	cfg    Config
	now    structs.LogTime
	view   *model.View
	index  structs.Index
	gave   []model.Freed // room that became free, oldest first
	agenda agenda
	stale  int // invalid events in the agenda
	cursor structs.NodeID
	nodes  []nodeState
	rows   map[structs.NodeID]int

	live    map[structs.JobKey]*Live
	runs    map[structs.AllocID]*run
	next    *Job            // read from the source, not yet submitted
	at      structs.LogTime // of the last submission
	seq     structs.Index
	evalSeq uint64

	shapes              []*shape // of waiting jobs, by seq
	byShape             map[shapeKey]*shape
	other               *shape // jobs that wait for something other than room
	fresh               []*Live
	picked              []*Live
	pend                []contend.Workload
	freed               []int // nodes that freed resources since the last pick
	marked              []bool
	most                mostFree
	reservations        []*structs.Reservation
	reserved            []*Live // jobs with a reservation in booked, in the order of the reservations' creation
	narrowable          bool    // a pass may look at the nodes that gave something back alone; a policy with prices then knows those of these nodes
	usage               usage
	lives               queue.Lifetimes
	lined               queue.Line      // of the last pass
	preemptible         int64           // jobs in the system that may be preempted
	always              bool            // the chooser is called at every event
	wake                structs.LogTime // when the pass asked to be called again; 0: not at all
	parts               int64           // refused by Verify
	allocTime           time.Duration   // that allocations ran which have ended
	changes             []structs.Changed[structs.Allocation]
	endings             []*run
	stopped             []*run // by the entry that is applied
	waiting             []*run // stopped, and not saving yet
	draws               draws
	draining            drains
	instant             uint64 // number of the round in which refused jobs are decided again
	holders, lastHolder *Live

	stats *Stats
}

type nodeState struct {
	node   *structs.Node
	gpus   int64            // in all
	free   int64            // GPUs without any allocation
	inUse  map[string]int32 // allocations by device instance; nil: none
	runs   int64
	failed bool // by Config.Failures
	level  int8 // filled() when last accounted
	list   []*run
	total  structs.Vector
	used   structs.Vector
}

// Now returns the current virtual time.
func (e *Engine) Now() structs.LogTime { return e.now }

// View returns the cluster as decisions see it.
func (e *Engine) View() *model.View { return e.view }

// Stats returns the metrics so far.
func (e *Engine) Stats() *Stats { return e.stats }

// Jobs calls f for every job in the system, in undefined order; decisions must not depend on it.
func (e *Engine) Jobs(f func(*Live)) {
	for _, l := range e.live {
		f(l)
	}
}

// countModel counts one more GPU of a model, by model.
func countModel(all []structs.GPUCount, name string) []structs.GPUCount {
	at, found := slices.BinarySearchFunc(all, name, func(m structs.GPUCount, name string) int { return strings.Compare(m.Model, name) })
	if !found {
		all = slices.Insert(all, at, structs.GPUCount{Model: name})
	}
	all[at].Count++
	return all
}

// NewEngine prepares a run.
func NewEngine(cfg Config) *Engine {
	if cfg.Window <= 0 {
		cfg.Window = windowDefault
	}
	table := contend.QueueTable{Queues: cfg.Queues, Tenants: cfg.Tenants}
	for _, q := range append([]*structs.Queue{{Path: structs.QueueDefault}}, cfg.Queues...) {
		if table.Settings(q.Path, &cfg.Scheduler).Backfill == structs.BackfillNone {
			cfg.Whole = true // the first job may keep out the rest, so it must be in every pass
		}
	}
	e := &Engine{cfg: cfg, now: Epoch, index: 1, live: map[structs.JobKey]*Live{}, runs: map[structs.AllocID]*run{}, rows: map[structs.NodeID]int{},
		byShape: map[shapeKey]*shape{}, other: &shape{}, marked: make([]bool, len(cfg.Nodes))}
	e.agenda.setRank(cfg.First)
	_, e.always = cfg.Chooser.(interface{ Always() })
	e.view = model.NewView(e.index, cfg.Nodes, nil, cfg.Pools)
	for i, n := range cfg.Nodes {
		s := nodeState{node: n}
		for k := range n.Resources.Devices {
			if n.Resources.Devices[k].Type == "gpu" {
				s.gpus += int64(len(n.Resources.Devices[k].Instances))
				for _, in := range n.Resources.Devices[k].Instances {
					table.Models = countModel(table.Models, n.Resources.Devices[k].Name)
					table.Total.GPUMilli += 1000
					table.Total.GPUMemoryMiB += in.MemoryMiB
				}
			}
		}
		s.free = s.gpus
		_, s.total, _ = e.view.Usage(n.ID)
		table.Total.CPU += s.total.CPU
		table.Total.MemoryMiB += s.total.MemoryMiB
		e.nodes = append(e.nodes, s)
		e.rows[n.ID] = i
	}
	e.usage.table = table
	e.stats = newStats(e)
	e.narrowable = cfg.Policy != nil && !cfg.Policy.Rotates()
	return e
}

// SetIDs gives nodes ids in their order, so that ties go to the first.
func SetIDs(nodes []*structs.Node) {
	for i, n := range nodes {
		binary.BigEndian.PutUint32(n.ID[:4], uint32(i)+1)
	}
}

// Run replays the trace to its end: until every job has ended, or no event is left that could change anything.
func (e *Engine) Run(ctx context.Context) error {
	if err := e.pull(); err != nil {
		return err
	}
	e.startFailures()
	e.startOperated()
	e.stats.begin(time.Now())
	for n := 0; ; n++ {
		if n&0xff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		top := e.upcoming()
		if top == nil {
			break
		}
		if e.next == nil && len(e.live) == 0 && !e.pending(top) {
			break // only node failures are left
		}
		ev := e.agenda.take()
		e.pass(ev.at)
		if err := e.happen(&ev); err != nil {
			return err
		}
		if ev.kind == Saved || slices.Contains(e.cfg.Silent, ev.kind) {
			continue
		}
		if top = e.upcoming(); !e.cfg.Each && top != nil && top.at == e.now {
			continue
		}
		if err := e.decide(); err != nil {
			return err
		}
	}
	e.stats.end(e.now, time.Now())
	if len(e.live) > 0 {
		e.stats.Left = int64(len(e.live))
	}
	return nil
}

// upcoming returns the next event that still holds, or nil. Those that do not are dropped here: one that was left at an
// instant would keep the pass after the last event of that instant from being made.
func (e *Engine) upcoming() *event {
	for {
		ev := e.agenda.peek()
		switch {
		case ev == nil:
			return nil
		case ev.unit != nil && ev.gen != ev.unit.gen:
			e.stale--
		case ev.kind == Woken && ev.node == byPass && ev.at != e.wake:
		case ev.kind == Woken && ev.node == byDrain && ev.at != e.draining.look:
		default:
			return ev
		}
		e.agenda.take()
	}
}

func (e *Engine) pending(top *event) bool {
	return top.kind != NodeDown && top.kind != NodeUp && top.kind != Operated
}

// pass advances virtual time.
func (e *Engine) pass(to structs.LogTime) {
	if to > e.now {
		e.stats.advance(e.now, to)
		e.now = to
	}
}

// pull reads the next job of the trace and schedules its arrival.
func (e *Engine) pull() error {
	j, err := e.cfg.Source.Next()
	switch {
	case errors.Is(err, io.EOF):
		e.next = nil
		return nil
	case err != nil:
		return err
	}
	at := Epoch.Add(j.At)
	if at < e.at {
		return fmt.Errorf("job %q is submitted at %v, before the one above it at %v: sort the trace by time of submission", j.Job.ID, j.At, Since(e.at))
	}
	e.next, e.at = j, at
	e.agenda.add(event{at: at, kind: Submitted})
	return nil
}

// happen processes one event.
func (e *Engine) happen(ev *event) error {
	var l *Live
	switch ev.kind {
	case Submitted:
		l = e.submit(e.next)
		if err := e.pull(); err != nil {
			return err
		}
	case Ended:
		l = ev.unit.live
		e.finish(ev.unit)
	case Expired:
		l = ev.unit.live
		e.expire(ev.unit)
	case Killed:
		if r := ev.run; e.runs[r.alloc.ID] == r {
			l = r.live
			e.evict(r)
		}
	case Woken:
		if ev.do != nil {
			ev.do()
		}
	case NodeDown:
		e.fail(ev.node)
	case NodeUp:
		e.repair(ev.node)
	case Operated:
		ev.do()
	case Saved:
		l = ev.unit.live
		e.saved(ev.unit)
	}
	if e.cfg.Hooks.Event != nil {
		e.cfg.Hooks.Event(e, ev.kind, l)
	}
	return nil
}

// submit adds a job to the system.
func (e *Engine) submit(j *Job) *Live {
	e.seq++
	job := j.Job
	if job.Namespace == "" {
		job.Namespace = structs.NamespaceDefault
	}
	job.SubmitTime, job.CreateIndex, job.SpecIndex, job.ModifyIndex = e.now, e.seq, e.seq, e.seq
	job.Join()
	l := &Live{Job: j, Key: job.Key(), Submit: e.now, bucket: job.Priority, pos: -1}
	if old := e.live[l.Key]; old != nil { // two jobs of the same name: the later one is renamed
		job.ID = fmt.Sprintf("%s~%d", job.ID, e.seq)
		l.Key = job.Key()
	}
	l.newUnits()
	key := shapeOf(job)
	l.shape = e.byShape[key]
	if l.shape == nil {
		l.shape = &shape{need: key.need, gpus: key.gpus, shared: key.shared, domain: key.domain, count: key.count, seq: len(e.byShape) + 1}
		e.byShape[key] = l.shape
	}
	domain := job.NodePool
	if domain == "" {
		domain = structs.NodePoolDefault
	}
	l.work = contend.Workload{Key: l.Key, Job: job, Queue: &structs.Workload{Namespace: job.Namespace, JobID: job.ID, Domain: domain,
		SubmitIndex: e.seq, SubmitTime: e.now, Priority: job.Priority, Queue: job.Queue, CreateIndex: e.seq}}
	l.work.Least = contend.LeastOf(job)
	e.live[l.Key] = l
	switch {
	case job.Preemptible && e.cfg.Kept == nil:
		l.assumed = saving(job, structs.Checkpoint{Signal: "SIGUSR1", Cost: 1}) // when it is asked to, at no cost and at once
	case e.cfg.Saves > 0 && job.MayPreempt():
		cost := time.Duration(1)
		if e.cfg.Restart != nil {
			cost = max(cost, e.cfg.Restart(l))
		}
		saving(job, structs.Checkpoint{Cost: cost}) // by itself
	}
	if job.MayPreempt() {
		e.preemptible++
		e.cfg.Whole = true // the choice needs all waiting jobs
	}
	e.stats.arrived(l)
	if e.cfg.Predict != nil {
		l.work.Expect = e.cfg.Predict.Predict(l, e.now)
		l.Predicted = l.work.Expect
	}
	if len(j.Held) > 0 {
		e.resume(l)
		return l
	}
	e.ask(l, structs.TriggerJobRegister)
	return l
}

// saving gives the groups of a job that have no checkpoint block the one that the run assumes, and returns it.
func saving(job *structs.Job, as structs.Checkpoint) *structs.Checkpoint {
	job.Groups = slices.Clone(job.Groups)
	for i, g := range job.Groups {
		if g.Checkpoint == nil {
			c := *g
			c.Checkpoint = &as
			job.Groups[i] = &c
		}
	}
	return &as
}

// resume restores a job that was running when the simulation began, on its nodes.
func (e *Engine) resume(l *Live) {
	l.units = l.units[:0]
	for range l.Held {
		l.units = append(l.units, unit{live: l, need: 1, left: l.Run})
	}
	l.left, l.allocs = len(l.Held), len(l.Held)
	e.changes = e.changes[:0]
	for i, a := range l.Held {
		node, known := e.rows[a.NodeID]
		if !known {
			l.left--
			continue
		}
		u := &l.units[i]
		a.CreateTime, a.WaitsOn = e.now, nil
		a.Namespace, a.JobID, a.Job = l.Key.Namespace, l.Key.ID, l.Job.Job
		r := &run{live: l, alloc: a, node: node, gpus: gpusOf(a), unit: u}
		r.units = e.unitsOf(r)
		e.runs[a.ID] = r
		u.runs = append(u.runs, r)
		l.work.Allocs = append(l.work.Allocs, a)
		e.hold(r, 1)
		e.start(r)
		e.changes = append(e.changes, structs.Changed[structs.Allocation]{After: a})
	}
	e.commit()
}

// ask makes an evaluation of a job, as a server does when a decision about it is needed.
func (e *Engine) ask(l *Live, why structs.Trigger) {
	if len(l.work.Evals) == 0 {
		e.evalSeq++
		ev := &structs.Evaluation{Namespace: l.Key.Namespace, JobID: l.Key.ID, Type: l.Job.Job.Type, Priority: l.Job.Job.Priority, Trigger: why, Status: structs.EvalPending,
			JobSpecIndex: l.Job.Job.SpecIndex, CreateTime: e.now, ModifyTime: e.now, CreateIndex: e.index}
		ev.ID[0] = 0xe0
		binary.BigEndian.PutUint64(ev.ID[8:], e.evalSeq)
		l.work.Evals = append(l.work.Evals, ev)
	}
	if !l.dirty || !slices.Contains(e.fresh, l) { // the pass that decides about it may also take its places
		l.dirty = true
		e.fresh = append(e.fresh, l)
	}
	e.enqueue(l)
}

// Delay adds to the remaining work of a running job.
func (e *Engine) Delay(l *Live, d time.Duration) {
	for i := range l.units {
		if u := &l.units[i]; u.on {
			e.settle(u)
			u.left += d
			e.schedule(u)
		}
	}
}

// SetExpect changes the predicted run time of a job's next run.
func (e *Engine) SetExpect(l *Live, d time.Duration) { l.work.Expect = d }

// settle updates a unit's remaining work and restart cost.
func (e *Engine) settle(u *unit) {
	if !u.on {
		return
	}
	ran := e.now.Sub(u.since)
	paid := min(ran, u.debt)
	u.debt -= paid
	u.left -= ran - paid
	u.since = e.now
}

// schedule adds the end of a running unit to the agenda.
func (e *Engine) schedule(u *unit) {
	e.void(u)
	if u.left < 0 && u.live.Run < 0 {
		return // it never ends
	}
	e.agenda.add(event{at: e.now.Add(u.debt + max(u.left, 0)), kind: Ended, unit: u, gen: u.gen})
}

// void invalidates a unit's events on the agenda.
func (e *Engine) void(u *unit) {
	u.gen++
	e.stale++
	if e.stale < 4096 || e.stale < len(e.agenda.heap)/2 {
		return
	}
	old := e.agenda.heap
	e.agenda.heap = make([]event, 0, len(old))
	for i := range old {
		if ev := &old[i]; ev.unit == nil || ev.gen == ev.unit.gen {
			seq := e.agenda.seq
			e.agenda.seq = ev.seq - 1 // keeps its order among equals
			e.agenda.add(*ev)
			e.agenda.seq = seq
		}
	}
	e.stale = 0
}
