package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// verdict is what the restart policy says about a task that ended.
type verdict struct {
	again  bool
	fail   bool // with again false: the task failed
	delay  time.Duration
	reason string // for the event
	counts bool   // this restart counts against the policy
}

// decide applies a restart policy. recent are the restarts that counted, oldest first; they are compared with at.
// success says how the task ended, onSuccess whether a task like it is started again even then, and permanent that
// another attempt cannot help.
func decide(p structs.Restart, recent []structs.LogTime, at structs.LogTime, success, onSuccess, permanent bool, jitter float64) verdict {
	switch {
	case success && !onSuccess:
		return verdict{}
	case permanent:
		return verdict{fail: true, reason: "Error was unrecoverable"}
	case p.Attempts == 0 && p.Mode != "delay":
		return verdict{fail: !success, reason: "Policy allows no restarts"}
	}
	used := 0
	var oldest structs.LogTime
	for _, t := range recent {
		if at.Sub(t) < p.Interval {
			if used == 0 {
				oldest = t
			}
			used++
		}
	}
	delay := p.Delay + time.Duration(float64(p.Delay)*jitter/4)
	if used < p.Attempts {
		return verdict{again: true, delay: delay, counts: true, reason: "Restart within policy"}
	}
	if p.Mode == "delay" {
		// The next attempt is due when the interval has moved past the oldest one.
		wait := max(delay, p.Interval-at.Sub(oldest))
		if used == 0 {
			wait = max(delay, p.Interval)
		}
		return verdict{again: true, delay: wait, counts: true, reason: "Exceeded allowed attempts, applying a delay"}
	}
	return verdict{fail: true, reason: fmt.Sprintf("Exceeded allowed attempts %d in interval %s and mode is \"fail\"", p.Attempts, p.Interval)}
}

// prune drops restarts that no longer count.
func prune(recent []structs.LogTime, at structs.LogTime, interval time.Duration) []structs.LogTime {
	i := 0
	for i < len(recent) && at.Sub(recent[i]) >= interval {
		i++
	}
	const most = 1000
	if len(recent)-i > most {
		i = len(recent) - most
	}
	return recent[i:]
}

// backoff gives growing pauses with jitter for retries that have no end of their own.
type backoff struct {
	d        time.Duration
	min, max time.Duration
}

func (b *backoff) reset() { b.d = 0 }

func (b *backoff) next() time.Duration {
	b.d = min(max(2*b.d, b.min), b.max)
	return b.d/2 + rand.N(b.d/2+1)
}

// rebooted reports whether the machine was started anew since the run began. What a gang does about a member that is gone
// is for the servers to say.
func (t *task) rebooted() bool {
	if g := t.r.group(); g == nil || g.Gang != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.BootID != "" && t.r.cfg.Host.BootID != "" && t.rec.BootID != t.r.cfg.Host.BootID
}

// resume runs a task again that a restart of the machine has ended. It is not the task's fault, and does not count.
func (t *task) resume(ctx context.Context, h driver.Task, e structs.TaskEvent) {
	at := now()
	t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, at
		rec.Attempt++
		st.State, st.LastRestart = statePending, at
		st.Restarts++
	}, e, restarting(0, "The node was restarted"))
}

// conclude lets the restart policy decide.
func (t *task) conclude(ctx context.Context, h driver.Task, success, permanent bool, e structs.TaskEvent) {
	at := now()
	policy := t.restartPolicy()
	t.mu.Lock()
	recent := prune(t.rec.Recent, at, policy.Interval)
	t.mu.Unlock()
	v := decide(policy, recent, at, success, t.restartsOnSuccess(), permanent, rand.Float64())
	if v.again {
		t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
			rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, at.Add(v.delay)
			rec.Attempt++
			rec.Recent = append(slices.Clip(recent), at)
			st.State, st.LastRestart = statePending, at
			st.Restarts++
		}, e, restarting(v.delay, v.reason))
		return
	}
	events := []structs.TaskEvent{e}
	if v.reason != "" {
		n := event(EventNotRestarting, v.reason, detailRestartReason, v.reason)
		n.Fails = v.fail
		events = append(events, n)
	}
	t.close(ctx, h, soon, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase = agentstore.PhaseDead
		st.State, st.FinishedAt = stateDead, e.Time
		st.Failed = v.fail
	}, events...)
}
