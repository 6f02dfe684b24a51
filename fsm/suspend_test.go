package fsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// suspended checks, after every suspension and resumption, that gangs are suspended and resumed as one, and that
// nothing ended.
func (r *run) suspended(before, after *state.Snapshot, c *structs.SuspendCommand, res structs.Result) {
	if res.Err != nil {
		r.saw("suspension refused")
		return
	}
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	if !c.Alloc.IsZero() {
		a := after.AllocByID(c.Alloc)
		k = a.JobKey()
		r.check(a.Suspended() != c.Resume, "allocation %s was told and is not", a.ID)
	} else if w := after.Workload(k); w == nil || (w.Suspended == 0) != c.Resume {
		r.check(false, "%s was told and its queue entry is %+v", k, w)
	}
	gang := map[structs.GroupName]bool{}
	for _, a := range after.AllocsByJob(k) {
		was := before.AllocByID(a.ID)
		r.check(a.Desired == was.Desired && a.Client == was.Client && a.StartedAt == was.StartedAt, "allocation %s is %+v, was %+v", a.ID, a, was)
		if a.Terminal() {
			r.check(a.Suspension == was.Suspension, "allocation %s had ended", a.ID)
			continue
		}
		if c.Alloc.IsZero() {
			r.check(a.Suspended() != c.Resume, "allocation %s was left out", a.ID)
		}
		g := a.Job.Group(a.Group)
		if g == nil || g.Gang == nil {
			continue
		}
		if still, seen := gang[a.Group]; seen {
			r.check(still == a.Suspended(), "gang %s of %s stands still in part", a.Group, k)
			r.saw("gang suspended or resumed")
		}
		gang[a.Group] = a.Suspended()
	}
	if r.saw("suspended"); c.Resume {
		r.saw("resumed")
	}
}

// TestSuspend goes through the refusals, and through what counts as time.
func TestSuspend(t *testing.T) {
	c := newCluster(t, 3)
	job := func(resume bool) *structs.SuspendCommand {
		return &structs.SuspendCommand{Namespace: key.Namespace, JobID: key.ID, Resume: resume, Reason: map[bool]string{false: "a leak"}[resume]}
	}
	c.refused(job(false), "not found")
	c.placeAll(c.register(service("1", 2)).EvalID, 0, 2)
	c.refused(job(false), "nothing of job \"web\" runs", "hold it")
	c.refused(job(true), "is not suspended")
	as := c.f.Snapshot().AllocsByJob(key)
	one := func(resume bool) *structs.SuspendCommand {
		return &structs.SuspendCommand{Alloc: as[0].ID, Resume: resume}
	}
	c.refused(one(false), "does not run yet")
	c.refused(&structs.SuspendCommand{Alloc: structs.AllocID{9}}, "Unknown allocation")
	c.observe(structs.ClientRunning)

	before := c.f.Snapshot()
	res := c.apply(job(false))
	s := c.f.Snapshot()
	if w := s.Workload(key); w.Suspended != s.Time() || w.Held {
		t.Errorf("queue entry %+v", w)
	}
	if e := s.EvalByID(res.EvalID); e == nil || e.Trigger != structs.TriggerHold {
		t.Errorf("evaluation %+v", e)
	}
	for _, a := range s.AllocsByJob(key) {
		if sus := a.Suspension; !a.Suspended() || sus.Since != s.Time() || sus.Reason != "a leak" || a.AllocIndex != res.Index || a.Desired != structs.DesiredRun {
			t.Errorf("allocation %+v, %+v", a, sus)
		}
	}
	if a, b := before.UsageOf("namespace", "default"), s.UsageOf("namespace", "default"); a.Resources != b.Resources {
		t.Errorf("it holds %+v, held %+v: what is suspended keeps all", b, a)
	}
	c.refused(job(false), "suspended already")
	c.refused(one(false), "suspended already")
	c.refused(one(true), "resume the job")

	since := s.Time()
	c.apply(job(true))
	s = c.f.Snapshot()
	if w := s.Workload(key); w.Suspended != 0 {
		t.Errorf("queue entry %+v", w)
	}
	for _, a := range s.AllocsByJob(key) {
		if want := s.Time().Sub(since); a.Suspended() || a.SuspendedFor() != 0 && a.SuspendedFor() != want {
			t.Errorf("allocation %+v, want %s in all", a.Suspension, want)
		}
	}

	c.apply(one(false))
	s = c.f.Snapshot()
	if s.AllocByID(as[1].ID).Suspended() || !s.AllocByID(as[0].ID).Suspended() || s.Workload(key).Suspended != 0 {
		t.Error("one allocation was to be suspended, and nothing else")
	}
	c.apply(&structs.SuspendCommand{Alloc: as[1].ID})
	c.apply(job(false)) // all are suspended, but new ones would not be
	c.apply(&structs.JobDeregisterCommand{Namespace: key.Namespace, JobID: key.ID})
	if w := c.f.Snapshot().Workload(key); w == nil || w.Suspended != 0 {
		t.Errorf("stopped, the job is %+v: started again it would wait for somebody to resume it", w)
	}
}

// TestSuspensionsAreLogged: who suspends or resumes running work, and why, is in the decision log; not while an older
// server may be in the cluster.
func TestSuspensionsAreLogged(t *testing.T) {
	for format, want := range map[structs.Format][]string{
		feature.Oldest: nil,
		feature.Newest: {"suspend 0/2 on 2 by bob: a leak", "resume 2/0 on 2 by carol: ", "suspend 0/1 on 1 by carol: one"},
	} {
		c := newCluster(t, 3)
		c.apply(&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: format, By: "test"})
		c.placeAll(c.register(service("1", 2)).EvalID, 0, 2)
		c.observe(structs.ClientRunning)
		first := c.f.Snapshot().AllocsByJob(key)[0]
		for _, s := range []struct {
			by string
			c  structs.SuspendCommand
		}{
			{"bob", structs.SuspendCommand{Namespace: key.Namespace, JobID: key.ID, Reason: "a leak"}},
			{"carol", structs.SuspendCommand{Namespace: key.Namespace, JobID: key.ID, Resume: true}},
			{"carol", structs.SuspendCommand{Alloc: first.ID, Reason: "one"}},
		} {
			if res, _, _ := c.f.ApplyBatch([]Entry{c.entryBy(&s.c, structs.Submitter{Name: s.by})}); res[0].Err != nil {
				t.Fatal(res[0].Err)
			}
		}
		var got []string
		for r := range c.f.Snapshot().Decisions(0) {
			if r.Kind == structs.DecidedSuspend || r.Kind == structs.DecidedResume {
				got = append(got, fmt.Sprintf("%s %d/%d on %d by %s: %s", r.Kind, r.Places, r.Stops, r.Nodes, r.Actor, r.Reason))
				if r.JobID != "web" || r.Node.IsZero() || r.Policy == "" {
					t.Errorf("format %d: row %+v", format, r)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("format %d: rows %q, want %q", format, got, want)
		}
	}
}

// TestSuspendAgain goes through what may be done to an allocation that was suspended before.
func TestSuspendAgain(t *testing.T) {
	c := newCluster(t, 3)
	job := func(resume bool) *structs.SuspendCommand {
		return &structs.SuspendCommand{Namespace: key.Namespace, JobID: key.ID, Resume: resume}
	}
	c.placeAll(c.register(service("1", 2)).EvalID, 0, 2)
	c.observe(structs.ClientRunning)
	as := c.f.Snapshot().AllocsByJob(key)
	one := func(resume bool) *structs.SuspendCommand {
		return &structs.SuspendCommand{Alloc: as[0].ID, Resume: resume}
	}
	c.apply(job(false))
	c.apply(job(true))
	c.apply(one(false))
	c.apply(&structs.AllocTransitionCommand{IDs: []structs.AllocID{as[0].ID}, Transition: structs.Transition{Migrate: true}})
	c.apply(one(true)) // not decided yet: it still runs
	c.apply(&structs.JobDeregisterCommand{Namespace: key.Namespace, JobID: key.ID})
	c.refused(job(false), "has ended or is stopped")
	c.refused(job(true), "has ended or is stopped")
	c.observe(structs.ClientComplete)
	c.refused(one(false), "has ended")

	cron := service("1", 1)
	cron.ID, cron.Name, cron.Type, cron.Periodic = "cron", "cron", structs.JobBatch, &structs.Periodic{Enabled: true, Specs: []string{"@hourly"}}
	c.register(cron)
	c.refused(&structs.SuspendCommand{Namespace: "default", JobID: "cron"}, "only makes other jobs")
}
