package policy

import (
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// Every policy is total: the score is in [0,1] whatever the node looks like.
func TestPoliciesStayInRange(t *testing.T) {
	if _, err := ByName("nonsense"); err == nil || !strings.Contains(err.Error(), "binpack") {
		t.Errorf("an unknown policy: %v", err)
	}
	for name, p := range Builtin {
		if p.Name() != name {
			t.Errorf("policy %q calls itself %q", name, p.Name())
		}
		for _, total := range []int64{0, 1, 4000, 1 << 40} {
			for _, used := range []int64{0, 1, 2000, 4000, 1 << 40, 1 << 41} {
				for dev := range int64(3) {
					u := scheduler.Use{Total: structs.Vector{CPU: total, MemoryMiB: total}, Used: structs.Vector{CPU: used, MemoryMiB: used}, Devices: dev * 4, DevicesInUse: dev}
					if s := p.Fit(&u); s < 0 || s > scheduler.Micro {
						t.Errorf("%s rates %+v with %d", name, u, s)
					}
				}
			}
		}
	}
	if For(&structs.NodePool{Algorithm: "spread"}, structs.SchedulerConfig{Algorithm: "first-fit"}).Name() != "spread" ||
		For(nil, structs.SchedulerConfig{Algorithm: "first-fit"}).Name() != "first-fit" || For(nil, structs.SchedulerConfig{}).Name() != "binpack" {
		t.Error("the pool's policy goes before the cluster's, that before the default")
	}
}

// What each policy prefers of an idle, a half used and an almost full node.
func TestPreferences(t *testing.T) {
	use := func(used int64) *scheduler.Use {
		total := structs.Vector{CPU: 1000, MemoryMiB: 1000}
		return &scheduler.Use{Total: total, Used: structs.Vector{CPU: used, MemoryMiB: used}}
	}
	for name, want := range map[string]int{"binpack": 1, "spread": -1, "worst-fit": -1, "first-fit": 0, "next-fit": 0} {
		idle, half, full := Builtin[name].Fit(use(100)), Builtin[name].Fit(use(500)), Builtin[name].Fit(use(900))
		if got := sign(full - half); got != want || sign(half-idle) != want {
			t.Errorf("%s rates 10, 50 and 90 %% in use with %d, %d, %d", name, idle, half, full)
		}
	}
	// GPUs count for those who ask for some: the node with fewer left is the better fit.
	few, many := use(500), use(500)
	few.Devices, few.DevicesInUse, many.Devices, many.DevicesInUse = 8, 7, 8, 2
	if Builtin["binpack"].Fit(few) <= Builtin["binpack"].Fit(many) {
		t.Error("binpack does not look at GPUs")
	}
}

func sign(n int64) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
