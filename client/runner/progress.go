package runner

import (
	"context"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/taskenv"
	"github.com/muster-sched/muster/structs"
)

// A running task whose group declares a checkpoint is polled. The newest complete checkpoint is stored in the task's
// record, so that it survives the agent, and reported to the servers. A checkpoint is complete when two looks, a while
// apart, find it unchanged, or when the task says so.

const (
	settleFor        = 3 * time.Second  // how long a checkpoint must remain unchanged to count as complete
	savedReportEvery = time.Minute      // shortest interval between reports of an allocation's checkpoints, after the first
	savedReportGang  = 10 * time.Second // the same of a gang's member: a gang resumes from the newest one that all have reported
	savedSlack       = 50 * time.Millisecond
	lookPatience     = 20 * time.Second // limit of one look: the file system may hang
	hurried          = 200 * time.Millisecond
)

// progress follows the checkpoints of one run of a task.
type progress struct {
	t                 *task
	h                 driver.Task
	where             where
	allocDir, taskDir string // as paths inside the task
	settle            time.Duration

	mu     sync.Mutex
	urgent int           // callers that wait for the next checkpoint
	kick   chan struct{} // 1 deep: look now
	ended  chan struct{} // closed when the run is over
	over   sync.Once
	idle   chan struct{} // closed when its goroutine has ended

	// Used by the goroutine only; after it has ended, by the caller that waited for idle.
	procRoot *procRoot
	slow     chan *found // of a look that has not answered yet, or nil
	last     found       // the checkpoint last seen, and since when it has looked like that
	since    time.Time
	asked    time.Time     // when the task was last notified because of its interval, or when that was due
	turn     *periodicTurn // that the task waits for, or nil
}

// follow starts to poll a running task for checkpoints, if its group declares them.
func (t *task) follow(ctx context.Context, h driver.Task) {
	c := t.saves()
	if c == nil || h.Status().PID <= 0 {
		return
	}
	p := &progress{t: t, h: h, kick: make(chan struct{}, 1), ended: make(chan struct{}), idle: make(chan struct{}), settle: settleFor}
	if d := t.r.cfg.Policy.CheckpointSettle; d > 0 {
		p.settle = d
	}
	p.place(c)
	if s, err := openProcRoot(h.Status().PID); err == nil {
		p.procRoot = s // opened now because the task may end before the first look
	}
	t.mu.Lock()
	t.progress, t.noticed = p, 0
	t.mu.Unlock()
	if !t.r.cfg.Agent.Go(func() { p.run(ctx) }) {
		close(p.idle)
	}
}

// saves returns the group's checkpoint block if the task is a main task, else nil.
func (t *task) saves() *structs.Checkpoint {
	g, spec := t.r.group(), t.spec()
	if g == nil || g.Checkpoint == nil || spec == nil || spec.Lifecycle != nil {
		return nil
	}
	return g.Checkpoint
}

// following returns the poller of the task's current run, or nil.
func (t *task) following() *progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress
}

// newest returns the newest checkpoint of the task, or nil.
func (t *task) newest() *structs.Saved {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.Saved
}

// place resolves the paths of the checkpoint block.
func (p *progress) place(c *structs.Checkpoint) {
	r, spec := p.t.r, p.t.spec()
	in := taskenv.Input{Node: r.cfg.Host.Node(), Region: r.cfg.Servers.Region, Alloc: r.Alloc(), Task: spec, Inherit: []string{}}
	if r.dir != nil {
		d := r.dir.Task(spec.Name)
		in.AllocDir, in.TaskDir, in.SecretsDir = r.dir.SharedDir(), d.Local, d.Secrets
	}
	if drv := r.cfg.Host.Drivers[spec.Driver]; drv != nil {
		if e := elsewhere(drv); e != nil {
			in.AllocDir, in.TaskDir, in.SecretsDir = e.TaskDirs()
		}
	}
	env := taskenv.New(in)
	p.allocDir, p.taskDir = in.AllocDir, in.TaskDir
	w := where{done: env.Get(taskenv.CheckpointDone), home: "/"}
	if in.TaskDir != "" {
		w.home = path.Dir(in.TaskDir)
	}
	at := w.home
	if c.Dir != "" {
		at = env.Replace(c.Dir)
		if !path.IsAbs(at) {
			at = path.Join(w.home, at)
		}
	}
	switch what := env.Replace(c.Path); {
	case what == "" && c.Dir == "":
	case what == "":
		w.file = at
	default:
		if !path.IsAbs(what) {
			what = path.Join(at, what)
		}
		if strings.ContainsAny(path.Base(what), `*?[`) {
			w.dir, w.pattern = path.Dir(what), path.Base(what)
		} else {
			w.file = what
		}
	}
	p.where = w
}

// run polls until the run of the task ends.
func (p *progress) run(ctx context.Context) {
	defer close(p.idle)
	for {
		c := p.t.saves()
		if c == nil {
			c = &structs.Checkpoint{}
		}
		every := p.t.r.cfg.Policy.CheckpointPoll
		if every <= 0 {
			every = structs.CheckpointPollDefault
			if c.Poll > 0 {
				every = max(c.Poll, structs.CheckpointPollLeast)
			}
		}
		if !p.since.IsZero() { // a new checkpoint waits for its confirmation
			every = min(every, p.settle)
		}
		p.mu.Lock()
		if p.urgent > 0 {
			every = min(every, hurried)
		}
		p.mu.Unlock()
		timer := time.NewTimer(every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.ended:
			timer.Stop()
			return
		case <-p.kick:
		case <-timer.C:
		}
		timer.Stop()
		p.judge(ctx, p.look(ctx, p.ended), false)
		p.remind(ctx, c)
	}
}

// look looks once, and gives up when stop is closed. While an earlier look has not answered, it waits for that one.
func (p *progress) look(ctx context.Context, stop <-chan struct{}) *found {
	if p.slow == nil {
		if s, err := openProcRoot(p.h.Status().PID); err == nil && p.h.Status().Running {
			if p.procRoot != nil {
				p.procRoot.root.Close()
			}
			p.procRoot = s
		} else if err == nil {
			s.root.Close() // the pid may belong to another process by now
		}
		if p.procRoot == nil {
			return nil
		}
		p.slow = make(chan *found, 1)
		p.procRoot.look(p.where, p.slow)
	}
	timer := time.NewTimer(lookPatience)
	defer timer.Stop()
	select {
	case f := <-p.slow:
		p.slow = nil
		return f
	case <-timer.C:
	case <-stop:
	case <-ctx.Done():
	}
	return nil
}

// judge records a checkpoint if it is new and complete. finished means that no process writes it any more.
func (p *progress) judge(ctx context.Context, f *found, finished bool) {
	if f == nil || f.time < structs.LogTimeOf(p.h.Status().StartedAt.Add(-savedSlack)) {
		return // there is none, or it is older than the run
	}
	was := p.t.newest()
	s := f.saved(p.allocDir, p.taskDir)
	if was != nil && s.Newer(was) == was {
		p.since = time.Time{}
		return
	}
	switch {
	case f.over, finished:
	case p.since.IsZero() || *f != p.last:
		p.last, p.since = *f, time.Now()
		return
	case time.Since(p.since) < p.settle:
		return
	}
	p.since = time.Time{}
	p.t.record(ctx, s)
}

// record stores a checkpoint and schedules a report to the servers.
func (t *task) record(ctx context.Context, s *structs.Saved) {
	t.mu.Lock()
	if was := t.rec.Saved; was != nil && was.Newer(s) == was {
		t.mu.Unlock()
		return
	}
	if c := t.saves(); c != nil {
		s.Took = tookSave(t.rec.Saved, s, t.noticed, graceOf(c))
	}
	t.rec.Saved = s
	rec := t.rec
	t.recorded.send()
	t.mu.Unlock()
	t.r.persist(ctx, "checkpoint of task "+t.name, func() error { return t.r.cfg.Host.Store.PutTask(t.r.id, t.name, &rec) })
	t.r.reportSaved(ctx)
}

// tookSave returns how long a checkpoint took from the newest notice, at asked, until it was written; 0 if the notice did
// not cause it: the one before, was, is newer, or more time than the grace has passed.
func tookSave(was, s *structs.Saved, asked structs.LogTime, grace time.Duration) time.Duration {
	took := s.Time.Sub(asked)
	if asked == 0 || was != nil && was.Time > asked || took <= 0 || took > grace {
		return 0
	}
	return took
}

// reportSaved reports a new checkpoint: the first one at once, later ones at most every savedReportEvery, or with the
// next report of any other change.
func (r *Runner) reportSaved(ctx context.Context) {
	gang := r.group().SavesAsOne()
	r.mu.Lock()
	wait := time.Duration(0)
	if !r.saved.last.IsZero() {
		every := savedReportEvery
		if gang {
			every = savedReportGang
		}
		wait = time.Until(r.saved.last.Add(every))
	}
	if r.saved.due {
		r.mu.Unlock()
		return
	}
	r.saved.due = wait > 0
	if wait <= 0 {
		r.saved.last = time.Now()
	}
	r.mu.Unlock()
	if wait <= 0 {
		r.changed()
		return
	}
	timer := time.AfterFunc(wait, func() {
		r.mu.Lock()
		r.saved.due, r.saved.last = false, time.Now()
		r.mu.Unlock()
		r.changed()
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
}

// newest returns the newest checkpoint of the allocation's tasks, or nil.
func (r *Runner) newest() (s *structs.Saved) {
	for _, t := range r.tasks {
		s = s.Newer(t.newest())
	}
	return s
}

// awaitNewer returns true once a checkpoint is recorded that is newer than was or written after told; false if ctx ends
// first.
func (t *task) awaitNewer(ctx context.Context, was *structs.Saved, told structs.LogTime) bool {
	p := t.following()
	if p == nil {
		<-ctx.Done()
		return false
	}
	p.hurry(1)
	defer p.hurry(-1)
	for {
		t.mu.Lock()
		s := t.rec.Saved
		if s != nil && (s.Time > told || was == nil || s.Time > was.Time) {
			t.mu.Unlock()
			return true
		}
		recorded := t.recorded.next()
		t.mu.Unlock()
		select {
		case <-recorded:
		case <-ctx.Done():
			return false
		}
	}
}

func (p *progress) hurry(n int) {
	p.mu.Lock()
	p.urgent += n
	p.mu.Unlock()
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// remind notifies a task to save its state when its last checkpoint is older than the group's interval.
func (p *progress) remind(ctx context.Context, c *structs.Checkpoint) {
	if c.Interval <= 0 || !c.Notified() || p.t.r.suspended() {
		return
	}
	last := p.h.Status().StartedAt
	if s := p.t.newest(); s != nil && s.Time.Time().After(last) {
		last = s.Time.Time()
	}
	if p.asked.After(last) {
		last = p.asked
	}
	if time.Since(last) < c.Interval || p.t.wanted().kind != wishNone {
		p.noTurn()
		return
	}
	due, now := p.hasTurn(ctx, c)
	if !now {
		return
	}
	p.asked = due
	nctx, cancel := context.WithTimeout(ctx, graceOf(c))
	defer cancel()
	go func() { // the notice must not outlive the run
		select {
		case <-p.ended:
			cancel()
		case <-nctx.Done():
		}
	}()
	if err := p.t.notifyToContinue(nctx, p.h, c); err != nil && nctx.Err() == nil {
		p.t.note(ctx, event(EventCheckpoint, "Could not be notified to save its state: "+err.Error(), "error", err.Error()))
	}
}

// rest stops the polling after a run has ended, with a last look. If the task succeeded, every checkpoint counts as
// complete.
func (t *task) rest(ctx context.Context, well bool) {
	t.mu.Lock()
	p := t.progress
	t.progress = nil
	t.mu.Unlock()
	if p == nil {
		return
	}
	p.over.Do(func() { close(p.ended) })
	<-p.idle
	if ctx.Err() != nil {
		return
	}
	lctx, cancel := context.WithTimeout(ctx, p.settle)
	defer cancel()
	f := p.look(lctx, nil)
	p.judge(ctx, f, well || f != nil && !p.since.IsZero() && *f == p.last)
	if p.procRoot != nil && p.slow == nil {
		p.procRoot.root.Close()
	}
}

// restored returns the checkpoint that the next start of the task resumes from: its own, or the one that the allocation
// was given. Members of a gang resume from the newest that is complete: when one of them was lost, what the others have
// saved after it is of no use. When the gang continues with other members for another reason, they have all saved their
// state for that just now, and the servers may not know it yet.
func (t *task) restored() *structs.Saved {
	a := t.r.Alloc()
	own := a.Lineage().Resume.Newer(a.Saved).Newer(t.newest())
	t.r.mu.Lock()
	ro := t.r.gang.roster
	t.r.mu.Unlock()
	if ro == nil || ro.Checkpoint == nil || ro.Checkpoint.Parts == 0 || !t.r.group().SavesAsOne() {
		return own
	}
	c := ro.Checkpoint
	switch {
	case c.Since == 0 || own != nil && own.Time > c.Since: // no member was lost since its own was written
		return own.Newer(c.Newest)
	case c.Newest != nil:
		return c.Newest
	}
	return a.Lineage().Resume
}
