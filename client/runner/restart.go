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

// verdict is the restart policy's decision about an ended task.
type verdict struct {
	again  bool
	fail   bool // if again is false: the task failed
	delay  time.Duration
	reason string // for the event
	counts bool   // this restart counts against the policy
}

// decide applies a restart policy at the time at. recent are the restarts that count, oldest first. success says how
// the task ended, onSuccess that it is restarted even then, and permanent that another attempt cannot help.
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
		// The next attempt is due when the oldest restart no longer counts.
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

// backoff returns growing pauses with jitter, for unlimited retries.
type backoff struct {
	d        time.Duration
	min, max time.Duration
}

func (b *backoff) reset() { b.d = 0 }

func (b *backoff) next() time.Duration {
	b.d = min(max(2*b.d, b.min), b.max)
	return b.d/2 + rand.N(b.d/2+1)
}

// rebooted reports whether the machine was restarted since the run began. It is false for members of a gang: the
// servers decide how a gang continues without a member.
func (t *task) rebooted() bool {
	if g := t.r.group(); g == nil || g.Gang != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rec.BootID != "" && t.r.cfg.Host.BootID != "" && t.rec.BootID != t.r.cfg.Host.BootID
}

// resume restarts a task that was ended by a reboot. The restart does not count in the restart policy.
func (t *task) resume(ctx context.Context, h driver.Task, e structs.TaskEvent) {
	at := now()
	t.close(ctx, h, before, func(rec *agentstore.TaskRecord, st *structs.TaskState) {
		rec.Phase, rec.ResumeAt = agentstore.PhaseBackoff, at
		rec.Attempt++
		st.State, st.LastRestart = statePending, at
		st.Restarts++
	}, e, restarting(0, "The node was restarted"))
}

// conclude applies the restart policy to an ended run.
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
