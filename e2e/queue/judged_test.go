//go:build e2e

package queue

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// judged checks what a cluster decides and reports: it decides the newest pass again from its input, and compares the reasons with
// the cluster and with the answers to `job why`.
type judged struct {
	f     *harness.Fleet
	h     *histories.History
	judge *histories.Judge
	last  string // input of the newest pass that was checked
	same  int    // answers that were compared
}

func newJudged(t *testing.T, f *harness.Fleet, h *histories.History) *judged {
	return &judged{f: f, h: h, judge: histories.NewJudge(h.Queues, &h.Scheduler, func(format string, args ...any) {
		t.Helper()
		t.Fatalf("%s (%v)", fmt.Sprintf(format, args...), h.Is)
	})}
}

// input returns the input of the newest pass; "": there was none.
func (x *judged) input() (b string) {
	if err := x.f.API.Call("GET", "/v1/operator/scheduler/input", nil, &b); err != nil {
		return ""
	}
	return b
}

// look checks the newest pass, unless it was checked before.
func (x *judged) look(t *testing.T) {
	t.Helper()
	b := x.input()
	if b == "" || b == x.last {
		return
	}
	x.last = b
	in, pol, err := queue.Load([]byte(b))
	if err != nil {
		t.Fatal(err)
	}
	plan, rep := scheduler.Schedule(in, policy.For(nil, structs.SchedulerConfig{Algorithm: pol}))
	in, _, _ = queue.Load([]byte(b)) // a pass uses up its line
	x.judge.See(&in)
	x.judge.Counts["passes"]++
	if slices.ContainsFunc(plan.Entries, func(e *structs.PlanEntry) bool {
		return slices.ContainsFunc(e.Parts, func(p structs.PlanPart) bool { return len(p.Stops) > 0 })
	}) {
		return
	}
	x.judge.InOrder(&in, &plan, &rep)
	x.judge.Explained(histories.NewAfter(&in, &plan), &in, &rep, func(k structs.JobKey) structs.QueuePath { return x.waits(&in, &plan, k) })
	x.asked(t, b, &rep)
}

// waits returns the queue in which a job waits after a pass, "" if it does not wait.
func (x *judged) waits(in *scheduler.Input, plan *scheduler.Plan, k structs.JobKey) structs.QueuePath {
	var w *structs.Workload
	for i := range in.Pending {
		if in.Pending[i].Key == k {
			w = in.Pending[i].Queue
		}
	}
	for _, e := range plan.Entries {
		if e.Workload != nil && e.Namespace == k.Namespace && e.JobID == k.ID {
			w = e.Workload
		}
	}
	switch {
	case w != nil && w.Waiting > 0:
		return w.Queue
	case w == nil && in.Waits: // others wait that the pass was not asked about
		for _, j := range x.h.Jobs {
			if j.ID == k.ID {
				return j.QueueName()
			}
		}
	}
	return ""
}

// reportedWithin is after how many looks, 50 ms apart, the reports of a pass must have reached `job why`. The clock does not
// count: a machine that was suspended has not looked.
const reportedWithin = 40

// asked compares what `job why` says with the reports of the pass. It says nothing if another pass comes in between.
func (x *judged) asked(t *testing.T, input string, rep *scheduler.Report) {
	t.Helper()
	for looks := 0; ; time.Sleep(50 * time.Millisecond) {
		wrong, same := x.differs(rep)
		if x.input() != input {
			return
		}
		if wrong == "" {
			x.same += same
			return
		}
		if looks++; looks == reportedWithin {
			t.Fatalf("%s (%v); input of the pass, in base64:\n%s", wrong, x.h.Is, base64.StdEncoding.EncodeToString([]byte(input)))
		}
	}
}

// differs returns what is wrong with the first answer of `job why` that is not what a pass reports, and how many are right.
func (x *judged) differs(rep *scheduler.Report) (wrong string, same int) {
	for i := range rep.Workloads {
		r := &rep.Workloads[i]
		if !r.Failed {
			continue
		}
		var a nomadlike.Why
		if err := x.f.API.Call("GET", "/v1/job/"+r.Key.ID+"/why", nil, &a); err != nil {
			return err.Error(), same
		}
		for _, g := range r.Groups {
			at := slices.IndexFunc(a.Groups, func(o nomadlike.WhyGroup) bool { return o.Name == string(g.Group) })
			if g.Placed >= g.Wanted || len(g.Refusals) == 0 {
				continue
			}
			if at < 0 {
				return fmt.Sprintf("group %s of job %s waits for %s, and job why says nothing of it", g.Group, r.Key.ID, g.Code), same
			}
			if said := a.Groups[at]; said.Reason != g.Code || len(said.Refusals) == 0 || said.Refusals[0].Text != g.Refusals[0].Text() {
				return fmt.Sprintf("group %s of job %s waits for %s (%s), and job why says %s %+v", g.Group, r.Key.ID, g.Code, g.Refusals[0].Text(), said.Reason, said.Refusals), same
			}
			same++
		}
	}
	return "", same
}
