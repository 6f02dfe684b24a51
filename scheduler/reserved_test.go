package scheduler_test

import (
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/suggest"
	"github.com/muster-sched/muster/structs"
)

// TestPromisedGPUsAreNamed: a gang has a reservation of both nodes from the time at which one of them becomes free. A
// job that could run on the free one, and would not have ended by then, waits for the reservation and not for GPUs:
// there are enough. A shorter limit starts it. The gang's own reservation does not block it.
func TestPromisedGPUsAreNamed(t *testing.T) {
	a, b := gpuNode(1, 4), gpuNode(2, 4)
	run := timed("run", 1, 10, 4, 2*time.Hour)
	held := holds(a, run, 1, time.Hour, []int{0, 1, 2, 3})
	both := timed("both", 2, 10, 4, time.Hour)
	both.Groups[0].Gang = &structs.Gang{}
	long := timed("long", 1, 10, 2, 3*time.Hour)
	for i, j := range []*structs.Job{both, long} {
		j.CreateIndex = structs.Index(10 + i)
	}
	in := scheduler.Input{View: model.NewView(1, []*structs.Node{a, b}, []*structs.Allocation{held}, nil), Now: bookNow, Config: rules(structs.BackfillEASY),
		Pending: []contend.Workload{load(both, 1), load(long, 2)}}
	in.Line = queue.NewLine(nil, in.Config, in.Pending, in.Now, 0)
	plan, rep := scheduler.Schedule(in, binpack)
	got, rs := placed(plan)
	if got != "" || len(rs) != 1 || rs[0].JobID != "both" {
		t.Fatalf("placed %q, reservations %+v", got, rs)
	}
	for _, w := range rep.Workloads {
		g := w.Groups[0]
		switch w.Key.ID {
		case "both":
			if g.Code != structs.ReasonGang {
				t.Errorf("the gang waits for %s", g.Code)
			}
		case "long":
			text := groupText(w.Groups)
			if !strings.Contains(text, "reserved for both") {
				t.Errorf("long waits for\n%s", text)
			}
		}
	}
	in.Reserved = rs
	for id, want := range map[string]string{"both": "4 GPUs", "long": "a run time limit of 54m0s"} {
		for i := range in.Pending {
			if in.Pending[i].Key.ID != id {
				continue
			}
			adv := suggest.Find(in, binpack, in.Pending[i])
			text := ""
			for _, c := range adv.Changes {
				text += c.Text + "\n"
			}
			if id == "long" && !strings.Contains(text, want) || strings.Contains(text, "room from") {
				t.Errorf("%s would start with\n%s", id, text)
			}
		}
	}
}
