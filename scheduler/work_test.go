package scheduler_test

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// What the scripts of job state need in addition to those of placement: gates, and the commands that hold and requeue.

// neighbours shows the world to scheduler.GateOf.
type neighbours struct{ w *world }

func (n neighbours) JobByKey(k structs.JobKey) *structs.Job {
	j := n.w.jobs[k]
	if j == nil {
		return nil
	}
	// The world keeps no status: a job is dead when nothing of it is open.
	c := *j
	c.Status = structs.JobDead
	for _, e := range n.w.evals {
		if e.JobKey() == k && !e.Terminal() {
			c.Status = structs.JobPending
		}
	}
	for _, a := range n.AllocsByJob(k) {
		if structs.Holds(a) {
			c.Status = structs.JobPending
			if a.StartedAt != 0 {
				c.Status = structs.JobRunning
				break
			}
		}
	}
	return &c
}

func (n neighbours) AllocsByJob(k structs.JobKey) (out []*structs.Allocation) {
	for _, a := range values(n.w.allocs, func(a *structs.Allocation) structs.AllocID { return a.ID }) {
		if a.JobKey() == k {
			out = append(out, a)
		}
	}
	return out
}

func (n neighbours) RostersByJob(k structs.JobKey) (out []*structs.Roster) {
	for _, r := range n.w.gangs {
		if r.Key().Job == k {
			out = append(out, r)
		}
	}
	return out
}

func (n neighbours) LastRecord(structs.JobKey) *structs.AcctRecord { return nil }

// gates fills in the gates of the pending work, as a server does.
func gates(w *world, in *scheduler.Input) {
	for i := range in.Pending {
		l := &in.Pending[i]
		if l.Job == nil || !l.Job.Placeable() {
			continue
		}
		g := scheduler.GateOf(l.Job, l.Queue, w.now, neighbours{w})
		l.Gate, l.Until, l.Met = g.Why, g.Until, g.Met
	}
}

// workloadCommand does what Apply does for CmdWorkload.
func workloadCommand(w *world, action string, key structs.JobKey) string {
	switch action {
	case structs.ActionRequeue:
		for _, a := range (neighbours{w}).AllocsByJob(key) {
			if !a.Terminal() {
				b := *a
				b.Transition.Requeue = true
				w.putAlloc(&b)
			}
		}
	default:
		q := structs.Workload{Namespace: key.Namespace, JobID: key.ID}
		if old := w.queue[key]; old != nil {
			q = *old
		}
		q.Held = action == structs.ActionHold
		w.queue[key] = &q
	}
	w.addEval(key, structs.TriggerHold)
	w.commit()
	return "ok"
}

// removed shows one dead job, whose only allocation is of an older version, and how its work ended at last.
type removed struct {
	job    *structs.Job
	alloc  *structs.Allocation
	record *structs.AcctRecord
}

func (r removed) JobByKey(structs.JobKey) *structs.Job { return r.job }
func (r removed) AllocsByJob(structs.JobKey) []*structs.Allocation {
	return []*structs.Allocation{r.alloc}
}
func (r removed) RostersByJob(structs.JobKey) []*structs.Roster { return nil }
func (r removed) LastRecord(structs.JobKey) *structs.AcctRecord { return r.record }

// TestStartedOnce: a job that has started has started, also if its last attempt ended before that.
func TestStartedOnce(t *testing.T) {
	o := &structs.Job{Namespace: "default", ID: "o", Version: 1, Status: structs.JobDead}
	w := &structs.Job{Namespace: "default", ID: "w", Depends: []structs.Dependency{{Name: "o", When: structs.WhenStarted}}}
	for started, want := range map[structs.LogTime]bool{0: false, 7: true} {
		g := scheduler.GateOf(w, nil, 100, removed{o, &structs.Allocation{Job: o, StartedAt: started, Client: structs.ClientComplete}, &structs.AcctRecord{Exit: structs.ExitLost}})
		if got := g.Why == nil; got != want {
			t.Errorf("an allocation started at %d: may start %t (%+v)", started, got, g.Why)
		}
	}
}

// TestMetInTime: a timeout ends the wait for a job that has not come as far, and for none that has.
func TestMetInTime(t *testing.T) {
	for _, met := range []bool{true, false} {
		for _, what := range []structs.OnTimeout{"", structs.OnTimeoutRun} {
			for _, now := range []structs.LogTime{100, 200} {
				w := &structs.Job{Namespace: "default", ID: "w", SubmitTime: 50, Depends: []structs.Dependency{{Name: "o", When: structs.WhenStarted, Timeout: 100, OnTimeout: what}}}
				o := &structs.Job{Namespace: "default", ID: "o", Status: structs.JobPending}
				a := &structs.Allocation{Job: o, Client: structs.ClientPending}
				if met {
					o.Status, a.StartedAt, a.Client = structs.JobRunning, 70, structs.ClientRunning
				}
				g := scheduler.GateOf(w, nil, now, removed{job: o, alloc: a})
				over := now == 200
				if starts := met || over && what == structs.OnTimeoutRun; (g.Why == nil) != starts {
					t.Errorf("met %t, on_timeout %q, at %d: may start %t (%+v)", met, what, now, g.Why == nil, g.Why)
				}
				if again := !met && !over; (g.Until == 150) != again || (g.Never != "") != (!met && over && what == "") {
					t.Errorf("met %t, on_timeout %q, at %d: looked at again at %d, never %q", met, what, now, g.Until, g.Never)
				}
			}
		}
	}
}

// TestRollingUpdateNamesItsNext: the evaluation of a rolling update names the one that continues it, which clients follow.
func TestRollingUpdateNamesItsNext(t *testing.T) {
	w := newWorld(t, 1, map[string]int{})
	w.now = 1_000_000_000_000
	for text := range strings.SplitSeq(threeNodes+updating, "\n\n") {
		if text = strings.TrimSpace(text); text != "" {
			runCommand(t, w, command(text))
		}
	}
	found := 0
	for _, e := range w.evals {
		if next := w.evals[e.NextEval]; next != nil && next.Trigger == structs.TriggerRollingUpdate {
			found++
		}
	}
	if found == 0 {
		t.Error("no evaluation names the next of its rolling update")
	}
}
