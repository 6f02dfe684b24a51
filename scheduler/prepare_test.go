package scheduler_test

import (
	"reflect"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// TestPreparedDecisionsAreTheSame: plan and report of each step of a stream are the same with caches that were prepared at any
// time, and with empty ones.
func TestPreparedDecisionsAreTheSame(t *testing.T) {
	s := newShareStream(t, 300)
	steps := 200
	if testing.Short() {
		steps = 60
	}
	refused, last, mixes := 0, (*model.Mix)(nil), 0
	for step := range steps {
		for range s.r.IntN(3) {
			s.leave()
		}
		if s.r.IntN(3) > 0 {
			s.prepare(t)
		}
		if m := s.v.LiveMix(); m != last {
			last, mixes = m, mixes+1
		}
		j := s.job(s.draw(step))
		if s.r.IntN(4) == 0 {
			j.Type = structs.JobService
		}
		j.Groups[0].Count = 1 + s.r.IntN(1+s.r.IntN(5))
		decide := func(v *model.View) (scheduler.Plan, scheduler.Report) {
			return scheduler.Schedule(scheduler.Input{View: v, Now: 1, Pending: []contend.Workload{load(j, s.jobs)}}, policy.Builtin[structs.AlgorithmDefault])
		}
		plan, report := decide(s.v)
		coldPlan, coldReport := decide(rebuilt(s))
		if !reflect.DeepEqual(plan, coldPlan) || !reflect.DeepEqual(report, coldReport) {
			t.Fatalf("step %d: decided\n%+v %+v, with empty caches\n%+v %+v", step, plan, report, coldPlan, coldReport)
		}
		if report.Workloads[0].Failed {
			refused++
			continue
		}
		s.land(j, plan.Entries[0])
	}
	if t.Logf("%d steps, %d refused, %d mixes", steps, refused, mixes); refused == steps || mixes < 5 {
		t.Error("that proves nothing")
	}
}
