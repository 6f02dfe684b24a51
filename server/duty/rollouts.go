package duty

import (
	"fmt"
	"time"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/structs"
)

// Rollouts ends rolling updates. A version whose allocations all run healthily is marked as stable. Allocations that are not
// healthy within healthy_deadline are replaced. An update that does not progress within progress_deadline stops: what runs of
// the older version continues. With auto_revert the newest stable version is then registered again, once: if that is not
// healthy either, nothing more follows.
//
//	submitted --all healthy--> stable
//	    `--no progress--> stopped --auto_revert--> submitted, the newest stable version
type Rollouts struct {
	queue *Queue[structs.JobKey]
	rests structs.LogTime // until then no job is looked at
}

// rolloutEvery is how often a job with a rolling update is looked at while its allocations change.
const rolloutEvery = time.Second

// Looking at a job costs time for each of its allocations. While much starts at once, nearly every job is due each second: a
// call of Due ends after rolloutsAtOnce allocations, and the duty rests rolloutRest for each such portion of what it looked at.
const (
	rolloutsAtOnce = 5000
	rolloutRest    = 100 * time.Millisecond
)

// NewRollouts returns the duty. Call Load first.
func NewRollouts() *Rollouts { return &Rollouts{queue: NewQueue(compareJobs)} }

// Load implements Duty.
func (r *Rollouts) Load(snap *state.Snapshot, now structs.LogTime) {
	r.queue.Clear()
	r.rests = 0
	for j := range snap.Jobs("", "") {
		r.look(j, now)
	}
}

// look queues a job whose update may have to be ended.
func (r *Rollouts) look(j *structs.Job, at structs.LogTime) {
	if j == nil || j.Stop || j.Stable || !reconcile.Rolls(j) {
		return
	}
	k := j.Key()
	r.queue.Set(k, earlier(at, r.queue.At(k)))
}

// Feed implements Duty.
func (r *Rollouts) Feed(snap *state.Snapshot, d *structs.Delta, now structs.LogTime) {
	for i := range d.Jobs {
		at := now.Add(rolloutEvery)
		if j := d.Jobs[i].After; j != nil && j.UpdateFailed != "" {
			at = now // those who follow the update look for the version that returns a second after it has stopped
		}
		r.look(d.Jobs[i].After, at)
	}
	for i := range d.Allocs {
		if a := d.Allocs[i].After; a != nil && (a.JobType() == structs.JobService || a.JobType() == structs.JobSystem) {
			at := now.Add(rolloutEvery)
			if was := r.queue.At(a.JobKey()); was == 0 || was > at {
				r.look(snap.JobByKey(a.JobKey()), at)
			}
		}
	}
}

// Due implements Duty.
func (r *Rollouts) Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime) {
	if !snap.Has(feature.UpdateDeadlines) {
		return nil, now.Add(time.Minute)
	}
	if now < r.rests {
		return nil, max(r.rests, r.queue.Next())
	}
	looked := 0
	for looked < rolloutsAtOnce {
		k, _, ok := r.queue.Take(now)
		if !ok {
			break
		}
		looked++
		j := snap.JobByKey(k)
		if j != nil && j.UpdateFailed != "" {
			if c := revert(snap, j); c != nil {
				cmds = append(cmds, *c)
			}
			continue
		}
		allocs := snap.AllocsByJob(k)
		looked += len(allocs)
		x, rolling := reconcile.RolloutOf(j, allocs, now)
		if !rolling {
			continue
		}
		c := Command{Subject: "job " + k.String(), Command: structs.Command{By: structs.Submitter{Name: "rolling update"}}}
		mark := &structs.JobStableCommand{Namespace: k.Namespace, JobID: k.ID, Version: j.Version}
		switch {
		case x.Settled:
			mark.Stable = true
			c.Body = mark
		case x.Failed != "":
			mark.Failed = x.Failed + RevertNote(snap, j)
			c.Body, c.Done = mark, "a rolling update stopped"
		case len(x.Late) > 0:
			t := &structs.AllocTransitionCommand{Transition: structs.Transition{Reschedule: true}, Trigger: structs.TriggerRetryFailed}
			for _, a := range x.Late {
				t.IDs = append(t.IDs, a.ID)
			}
			c.Body = t
		default:
			r.queue.Set(k, x.Next)
			continue
		}
		cmds = append(cmds, c)
		r.queue.Set(k, x.Next)
	}
	r.rests = now.Add(time.Duration(looked) * rolloutRest / rolloutsAtOnce)
	next = r.queue.Next()
	if next != 0 {
		next = max(next, r.rests)
	}
	return cmds, next
}

// Reverts reports whether a job wants to go back to an earlier version when an update stops, and returns the newest version
// that is stable and differs; nil if there is none.
func Reverts(snap *state.Snapshot, j *structs.Job) (good *structs.Job, wants bool) {
	for _, g := range j.Groups {
		u := reconcile.RollingUpdate(j, g)
		wants = wants || u != nil && u.AutoRevert
	}
	if !wants {
		return nil, false
	}
	for _, v := range snap.JobVersions(j.Key()) {
		if v.Stable && v.Version != j.Version && v.CreateIndex == j.CreateIndex && (good == nil || v.Version > good.Version) {
			good = v
		}
	}
	if good != nil && fsm.SameSpec(good, j) {
		good = nil
	}
	return good, true
}

// RevertNote says what follows when an update stops; "" for a job without auto_revert.
func RevertNote(snap *state.Snapshot, j *structs.Job) string {
	switch good, wants := Reverts(snap, j); {
	case good != nil:
		return fmt.Sprintf("; auto_revert: version %d is registered again", good.Version)
	case wants:
		return "; auto_revert: there is no other stable version to go back to"
	}
	return ""
}

// revert returns the command that registers the newest stable version of a job whose update stopped; nil if the job does not
// want that, has no such version, or is one itself.
func revert(snap *state.Snapshot, j *structs.Job) *Command {
	good, _ := Reverts(snap, j)
	if good == nil || !j.Placeable() {
		return nil
	}
	k := j.Key()
	in := *good
	in.Stop, in.VersionTag = false, nil
	return &Command{Subject: "job " + k.String(), Done: "a rolling update stopped; the newest stable version is back",
		Command: structs.Command{By: j.Submitter, Body: &structs.JobRegisterCommand{Job: &in, Eval: true, EnforceIndex: true, SpecIndex: j.SpecIndex,
			Submission: snap.JobSubmission(k, good.Version)}}}
}
