package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/structs"
)

// role is when a task runs relative to the others.
type role uint8

const (
	rolePre      role = iota // before the main tasks, until it ends
	rolePreSide              // from before the main tasks until after them
	roleMain                 //
	rolePost                 // once the main tasks run, until it ends
	rolePostSide             // once the main tasks run, until they have ended
	roleStop                 // after everything else
)

func roleOf(t *structs.Task) role {
	if t == nil || t.Lifecycle == nil {
		return roleMain
	}
	switch l := t.Lifecycle; {
	case l.Hook == "prestart" && l.Sidecar:
		return rolePreSide
	case l.Hook == "prestart":
		return rolePre
	case l.Hook == "poststart" && l.Sidecar:
		return rolePostSide
	case l.Hook == "poststart":
		return rolePost
	case l.Hook == "poststop":
		return roleStop
	}
	return roleMain
}

func (r role) sidecar() bool { return r == rolePreSide || r == rolePostSide }

// drive starts and ends tasks in their order until nothing is due, or until all have ended. It is a loop around step,
// which remembers nothing between two calls: a new agent can continue where a killed one was.
func (r *Runner) drive(ctx context.Context) {
	for ctx.Err() == nil {
		r.mu.Lock()
		if !r.dirty {
			r.to(resting)
			r.mu.Unlock()
			return
		}
		r.dirty = false
		r.mu.Unlock()
		if r.step(ctx) {
			r.finish(ctx)
			return
		}
		r.settleSuspension(ctx)
		r.armLimit(ctx)
	}
}

// armLimit arms the timer of the time limit, and disarms it while the allocation is suspended.
func (r *Runner) armLimit(ctx context.Context) {
	end, ok := r.timeEnds()
	r.mu.Lock()
	same, disarm := r.limit.end == end, r.limit.disarm
	r.mu.Unlock()
	if same {
		return
	}
	if disarm != nil {
		disarm()
	}
	var timers []*time.Timer
	defer func() {
		stop := func() {
			for _, t := range timers {
				t.Stop()
			}
		}
		r.mu.Lock()
		r.limit.end, r.limit.disarm = end, stop
		r.mu.Unlock()
		context.AfterFunc(ctx, stop)
	}()
	if !ok {
		return
	}
	left := max(0, time.Until(end.Time()))
	if g := r.group(); g.Checkpoint != nil && g.Checkpoint.Before > 0 {
		timers = append(timers, time.AfterFunc(max(0, left-g.Checkpoint.Before), func() { r.saveBefore(ctx) }))
	}
	timers = append(timers, time.AfterFunc(left, func() {
		if r.suspended() {
			return // suspended just now: the remaining time is armed on resume
		}
		r.mu.Lock()
		r.limit.passed = true
		r.mu.Unlock()
		r.Kill(fmt.Sprintf("the allocation has run for its wall-clock limit of %s", r.runLimit()), true)
	}))
}

// timeEnds returns when a running allocation reaches its time limit. ok is false without a limit and while the
// allocation is suspended.
func (r *Runner) timeEnds() (structs.LogTime, bool) {
	g := r.group()
	r.mu.Lock()
	started, stood, suspended := r.started, r.alloc.SuspendedFor(), r.alloc.Suspended()
	r.mu.Unlock()
	limit := r.runLimit()
	if g == nil || limit <= 0 || started == 0 || suspended {
		return 0, false
	}
	return started.Add(limit + stood), true
}

// member is a task as it was at the beginning of a step.
type member struct {
	*task
	role   role
	leader bool
	st     *structs.TaskState
	phase  agentstore.Phase
}

func (m member) dead() bool { return m.phase == agentstore.PhaseDead }

// begun reports whether the task's driver was ever asked to start it.
func (m member) begun() bool { return m.phase != agentstore.PhaseNew }

func (r *Runner) members() []member {
	out := make([]member, len(r.tasks))
	for i, t := range r.tasks {
		spec := t.spec()
		out[i] = member{task: t, role: roleOf(spec), leader: spec != nil && spec.Leader, st: t.state(), phase: t.phase()}
	}
	return out
}

// step does what is due and returns true when all tasks have ended.
func (r *Runner) step(ctx context.Context) bool {
	ms := r.members()
	// Tasks that an earlier agent left in progress continue first, even if they must end: only their own goroutines can
	// find and end them.
	for _, m := range ms {
		if m.phase == agentstore.PhaseStarting || m.phase == agentstore.PhaseBackoff {
			m.start(ctx)
		}
	}
	if why := r.whyEnd(ms); why != nil {
		if !r.endTasks(ctx, ms, why) {
			return false
		}
		return r.runStops(ctx, ms)
	}
	r.regroup(ms)
	if r.restartAll(ctx, ms) {
		return false
	}
	preDone, preUp, mainUp, mainLeft := true, true, true, false
	for _, m := range ms {
		switch m.role {
		case rolePre:
			preDone = preDone && m.dead()
		case rolePreSide:
			preUp = preUp && (m.st.State == stateRunning || m.dead())
		case roleMain:
			mainUp = mainUp && (m.st.State == stateRunning || m.dead())
		}
		if !m.role.sidecar() && m.role != roleStop && !m.dead() {
			mainLeft = true
		}
	}
	for _, m := range ms {
		switch m.role {
		case rolePre, rolePreSide:
			m.start(ctx)
		case roleMain:
			if preDone && preUp {
				m.start(ctx)
			}
		case rolePost, rolePostSide:
			if preDone && preUp && mainUp {
				m.start(ctx)
			}
		}
	}
	if mainLeft {
		return false
	}
	// Only sidecars are left.
	done := true
	for _, m := range ms {
		if m.role.sidecar() && !m.dead() {
			done = false
			m.ask(ctx, wish{wishKill, event(EventMainDead, "Main tasks in the group died")})
		}
	}
	return done && r.runStops(ctx, ms)
}

// whyEnd returns why the tasks must end early, or nil.
func (r *Runner) whyEnd(ms []member) *stopReason {
	if s := r.stopReason(); s != nil {
		return s
	}
	for _, m := range ms {
		if m.role != roleStop && m.dead() && m.st.Failed {
			return &stopReason{event: event(EventSiblingFailed, fmt.Sprintf("Task's sibling %q failed", m.name), "failed_sibling", m.name)}
		}
	}
	for _, m := range ms {
		if m.leader && m.dead() {
			return &stopReason{event: event(EventLeaderDead, "Leader Task in Group dead")}
		}
	}
	return nil
}

// endTasks asks the tasks to end: the leader first, then the others, sidecars last. It returns true when all have ended.
func (r *Runner) endTasks(ctx context.Context, ms []member, why *stopReason) bool {
	if g := r.group(); g != nil && g.ShutdownDelay > 0 && !r.groupDelay(ctx, g.ShutdownDelay, ms) {
		return false
	}
	waves := []func(member) bool{
		func(m member) bool { return m.leader },
		func(m member) bool { return !m.role.sidecar() },
		func(m member) bool { return true },
	}
	if r.lapsed() {
		waves = waves[2:]
	}
	for _, in := range waves {
		left := false
		for _, m := range ms {
			if m.role == roleStop || !in(m) || m.task.dead() {
				continue
			}
			left = true
			m.ask(ctx, wish{wishKill, why.event})
		}
		if left {
			// A task that was never started is dead by now.
			for _, m := range ms {
				if m.role != roleStop && in(m) && !m.task.dead() {
					return false
				}
			}
		}
	}
	return true
}

// groupDelay waits out the group's shutdown_delay, once, if a task runs. It returns true when the delay is over.
func (r *Runner) groupDelay(ctx context.Context, d time.Duration, ms []member) bool {
	running := false
	for _, m := range ms {
		running = running || m.st.State == stateRunning
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stopping
	if !running || s == nil || s.force || s.fail || r.alloc.Transition.NoShutdownDelay {
		return true
	}
	if r.delayUntil.IsZero() {
		r.delayUntil = time.Now().Add(d)
		timer := time.AfterFunc(d, r.changed)
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	return !time.Now().Before(r.delayUntil)
}

// runStops runs the poststop tasks and returns true when they have ended. They do not run if no other task ever did.
func (r *Runner) runStops(ctx context.Context, ms []member) bool {
	if r.lapsed() {
		return r.endStops(ctx, ms)
	}
	ran := false
	for _, m := range ms {
		if m.role != roleStop && m.st.StartedAt != 0 {
			ran = true
		}
	}
	done := true
	for _, m := range ms {
		if m.role != roleStop || m.task.dead() {
			continue
		}
		if !ran && !m.begun() {
			m.finish(ctx)
			continue
		}
		done = false
		m.start(ctx)
	}
	return done
}

// restartAll carries out a request to restart all tasks: they end, then their records are reset. It returns true while that
// is in progress.
func (r *Runner) restartAll(ctx context.Context, ms []member) bool {
	r.mu.Lock()
	e := r.again
	r.mu.Unlock()
	if e == nil {
		return false
	}
	why := "Restart requested"
	if e.Type == EventGang {
		why = e.Message
	}
	for _, m := range ms {
		if m.role != roleStop && !m.task.dead() {
			m.ask(ctx, wish{wishKill, *e})
		}
	}
	for _, m := range ms {
		if m.role != roleStop && (!m.task.dead() || m.isActive()) {
			return true
		}
	}
	for _, m := range ms {
		if m.role == roleStop {
			continue
		}
		m.task.mu.Lock()
		m.task.want = nil
		m.task.mu.Unlock()
		m.change(ctx, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase, rec.ResumeAt, rec.Handle, rec.Epoch = agentstore.PhaseNew, 0, nil, 0
			rec.Attempt++
			st.State, st.Failed, st.FinishedAt, st.LastRestart = statePending, false, 0, now()
			st.Restarts++
		}, restarting(0, why))
	}
	r.mu.Lock()
	r.again = nil
	r.mu.Unlock()
	r.changed()
	return true
}
