package scheduler_test

import (
	"fmt"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// powerNode is a node of pool hot with GPUs of 400 W that can be set to 200 to 500 W.
func powerNode(n, gpus int, budget int64) *structs.Node {
	out := limitNode(n, gpus)
	watts := func(w int64) structs.Attribute { return structs.Attribute{Kind: "int", Int: w, Unit: "W"} }
	out.Resources.Devices[0].Attributes = map[string]structs.Attribute{"power": watts(400), "power_min": watts(200), "power_max": watts(500)}
	out.Pool, out.PowerBudgetW = "hot", budget
	return out
}

func powerJob(name string, count int, watts int64) *structs.Job {
	j := limitJob(name, "", count, 1)
	j.NodePool = "hot"
	j.Groups[0].Tasks[0].Resources.GPU[0].PowerLimitW = watts
	return j
}

// TestPowerLimitNotOffered names the range of the existing GPUs.
func TestPowerLimitNotOffered(t *testing.T) {
	dark := powerNode(2, 2, 0)
	dark.Resources.Devices[0].Attributes = nil
	v := model.NewView(7, []*structs.Node{powerNode(1, 2, 0), dark, node(3)}, nil, nil)
	for _, c := range []struct {
		watts int64
		want  string
	}{
		{150, "[power_limit = 150: nvidia/gpu/H100 can be set to 200 to 500 W power_limit = 150: the driver of nvidia/gpu tells no range of power limits]"},
		{600, "[power_limit = 600: nvidia/gpu/H100 can be set to 200 to 500 W power_limit = 600: the driver of nvidia/gpu tells no range of power limits]"},
	} {
		_, rep := scheduler.Schedule(scheduler.Input{View: v, Pending: []contend.Workload{load(powerJob("a", 1, c.watts), 1)}}, binpack)
		var got []string
		for _, r := range rep.Workloads[0].Groups[0].Refusals {
			got = append(got, r.Text())
		}
		if s := fmt.Sprint(got); s != c.want {
			t.Errorf("%d W: %s\nwant %s", c.watts, s, c.want)
		}
	}
}

// TestPowerBudgetOfLimits counts the power limits that tasks set: 1000 W are enough for two GPUs of 400 W, five limited
// to 200 W, or two set to 500 W. Verify accepts the plan, and no larger one.
func TestPowerBudgetOfLimits(t *testing.T) {
	v := model.NewView(7, []*structs.Node{powerNode(1, 4, 1000), powerNode(2, 4, 1000)}, nil, nil)
	for _, c := range []struct {
		watts int64
		want  int
	}{{0, 2}, {200, 5}, {300, 3}, {500, 2}} {
		plan, _ := scheduler.Schedule(scheduler.Input{View: v, Power: true, Pending: []contend.Workload{load(powerJob("a", 8, c.watts), 1)}}, binpack)
		placed, flight := 0, model.Overlay{}
		for i, e := range plan.Entries {
			for _, p := range e.Parts {
				placed += len(p.Places)
			}
			if x := verify.Verify(v, flight, e); !x.All() {
				t.Errorf("%d W: %+v", c.watts, x.Refused)
			}
			flight = flight.Add(uint64(i+1), e, nil)
		}
		if placed != c.want {
			t.Errorf("%d W: %d placed, want %d", c.watts, placed, c.want)
		}
		// In addition, the rest of the budget.
		rest := (1000 - int64(placed)*max(c.watts, 400*boolTo(c.watts == 0))) / 400
		plan, _ = scheduler.Schedule(scheduler.Input{View: v, Flight: flight, Power: true, Pending: []contend.Workload{load(powerJob("b", 8, 0), 2)}}, binpack)
		more := int64(0)
		for _, e := range plan.Entries {
			for _, p := range e.Parts {
				more += int64(len(p.Places))
			}
		}
		if more != rest {
			t.Errorf("beside %d held to %d W: %d more, want %d", placed, c.watts, more, rest)
		}
	}
}

func boolTo(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
