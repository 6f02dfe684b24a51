package policy

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Every policy is total: the score is in [0,1] for every node.
func TestPoliciesStayInRange(t *testing.T) {
	if err := Check("nonsense"); err == nil || !strings.Contains(err.Error(), "binpack") {
		t.Errorf("an unknown policy: %v", err)
	}
	for name, p := range Builtin {
		if p.Name() != name {
			t.Errorf("policy %q calls itself %q", name, p.Name())
		}
		for _, total := range []int64{0, 1, 4000, 1 << 40} {
			for _, used := range []int64{0, 1, 2000, 4000, 1 << 40, 1 << 41} {
				for dev := range int64(3) {
					u := search.Use{Total: structs.Vector{CPU: total, MemoryMiB: total}, Used: structs.Vector{CPU: used, MemoryMiB: used}, Devices: dev * 4, DevicesInUse: dev}
					if s := p.Fit(&u); s < 0 || s > model.Micro {
						t.Errorf("%s rates %+v with %d", name, u, s)
					}
				}
			}
		}
	}
	if For(&structs.NodePool{Algorithm: "spread"}, structs.SchedulerConfig{Algorithm: "first-fit"}).Name() != "spread" ||
		For(nil, structs.SchedulerConfig{Algorithm: "first-fit"}).Name() != "first-fit" || For(nil, structs.SchedulerConfig{}).Name() != structs.AlgorithmDefault {
		t.Error("the pool's policy goes before the cluster's, that before the default")
	}
}

// The preference of each policy among an idle, a half used and an almost full node.
func TestPreferences(t *testing.T) {
	use := func(used int64) *search.Use {
		total := structs.Vector{CPU: 1000, MemoryMiB: 1000}
		return &search.Use{Total: total, Used: structs.Vector{CPU: used, MemoryMiB: used}}
	}
	for name, want := range map[string]int{"binpack": 1, "spread": -1, "worst-fit": -1, "first-fit": 0, "next-fit": 0} {
		t.Run(name, func(t *testing.T) {
			idle, half, full := Builtin[name].Fit(use(100)), Builtin[name].Fit(use(500)), Builtin[name].Fit(use(900))
			if got := sign(full - half); got != want || sign(half-idle) != want {
				t.Errorf("%s rates 10, 50 and 90 %% in use with %d, %d, %d", name, idle, half, full)
			}
		})
	}
	// GPUs count for groups that ask for some: the node with fewer left is the better fit.
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

// The integer thresholds of fgd agree with the formula in floating point, away from the steps themselves.
func TestLogisticCut(t *testing.T) {
	if got := percent(0, 7); got != 50 {
		t.Errorf("no change scores %d", got)
	}
	for _, den := range []int64{1, 3, 1000, 1 << 34} {
		for x := -9000.0; x <= 9000; x += 7.3 {
			num := int64(x * float64(den))
			exact := 100 / (1 + math.Exp(-float64(num)/float64(den)/1000))
			if want := int64(exact); exact-math.Trunc(exact) > 1e-4 && exact-math.Trunc(exact) < 1-1e-4 && percent(num, den) != want {
				t.Fatalf("percent(%d, %d) = %d, want %d", num, den, percent(num, den), want)
			}
		}
	}
}

// The fragmentation of a node, by hand: 2 GPUs with 600 and 1000 thousandths free, and a mix of halves and whole GPUs.
func TestFragments(t *testing.T) {
	mix := model.NewMix([]model.Shape{{CPU: 1, GPUs: 1, Milli: 500, Count: 2}, {CPU: 1, GPUs: 1, Milli: 1000, Count: 1}, {CPU: 1, Count: 1}})
	if mix.Total != 4 || len(mix.Shapes) != 3 {
		t.Fatalf("mix %+v", mix)
	}
	g := &model.GPUState{FreeCPU: 10, Free: []int64{600, 1000}, Suits: []bool{true, true, true}}
	// halves: 0; whole: the 600 are too little; without GPUs: all 1600.
	if got := model.Fragments(g, mix); got != 2*0+600+1600 {
		t.Errorf("fragments %d", got)
	}
	g.FreeCPU = 0
	if got := model.Fragments(g, mix); got != 4*1600 {
		t.Errorf("without CPU: %d", got)
	}
}

// The default policy leaves work without GPUs where binpack would put it.
func TestStrandWithoutGPUs(t *testing.T) {
	for used := int64(0); used <= 1000; used += 50 {
		u := search.Use{Total: structs.Vector{CPU: 1000, MemoryMiB: 1000}, Used: structs.Vector{CPU: used, MemoryMiB: 1000 - used/2}}
		if a, b := Builtin[structs.AlgorithmDefault].Fit(&u), Builtin["binpack"].Fit(&u); a != b {
			t.Errorf("%+v is rated %d, by binpack %d", u, a, b)
		}
	}
	if got := Builtin[structs.AlgorithmDefault].Weights(); got != Builtin["binpack"].Weights() {
		t.Errorf("the weights differ from those of binpack: got %v, want %v", got, Builtin["binpack"].Weights())
	}
}

// What is left of a node when it is full, by hand.
func TestStrandedValue(t *testing.T) {
	mix := model.NewMix([]model.Shape{{CPU: 4, GPUs: 1, Milli: 600, Count: 1}})
	s := newStranded(mix)
	for _, c := range []struct {
		cpu  int64
		free []int64
		want int64
	}{
		{100, []int64{1000, 1000}, 800}, // one on each
		{100, []int64{1000, 500}, 900},
		{7, []int64{1000, 1000}, 1400}, // CPU for one only
		{3, []int64{1000, 1000}, 2000}, // for none
		{100, []int64{0, 0}, 0},
	} {
		t.Run(fmt.Sprintf("cpu=%v want=%v", c.cpu, c.want), func(t *testing.T) {
			if got := s.Value(&model.GPUState{FreeCPU: c.cpu, Free: c.free, Suits: []bool{true}}); got != c.want {
				t.Errorf("with CPU %d and %v free %d is left, want %d", c.cpu, c.free, got, c.want)
			}
		})
	}
	if got := s.Value(&model.GPUState{FreeCPU: 100, Free: []int64{1000}, Suits: []bool{false}}); got != 1000 {
		t.Errorf("of another model %d is left", got)
	}
	if s.Score(100, 100) <= s.Score(100, 101) || s.Score(0, 1<<40) != 0 || s.Score(1<<40, 0) != model.Micro {
		t.Error("what leaves more is rated lower, within [0,1]")
	}
}

// Scarce models cost rent, and blocks of idle GPUs cost what they are needed for.
func TestStrandedPrices(t *testing.T) {
	mix := model.NewMix([]model.Shape{{CPU: 1, GPUs: 1, Milli: 1000, Count: 6}, {CPU: 1, GPUs: 1, Milli: 1000, Model: "A", Count: 2}, {CPU: 1, GPUs: 8, Milli: 1000, Count: 1}})
	s := newStranded(mix)
	all, onlyA := []bool{true, true, true}, []bool{true, false, true}
	m := search.Market{Mix: mix, Free: 100_000, Classes: []search.MarketClass{{Suits: all, Free: 25_000}, {Suits: onlyA, Free: 75_000}}, Wide: []int{2}, Blocks: []int64{12}}
	p := s.Prices(&m)
	// 2 of 16 GPUs are requested as A: 12,500 of 100,000; 25,000 of A are free.
	if len(p.Rent) != 2 || p.Rent[0] != 500_000 || p.Rent[1] != 0 {
		t.Errorf("rents %v", p.Rent)
	}
	// Half of the demand is for 8: 6.25 blocks until all is full, with a deviation of 2.7, and there are 12.
	if p.Wide[0] < 50 || p.Wide[0] > 200 {
		t.Errorf("a block costs %d", p.Wide[0])
	}
	m.Blocks[0] = 100
	if p := s.Prices(&m); p.Wide[0] != 0 {
		t.Errorf("with blocks in plenty one costs %d", p.Wide[0])
	}
	m.Blocks[0] = 0
	if p := s.Prices(&m); p.Wide[0] < 7900 {
		t.Errorf("the last block costs %d", p.Wide[0])
	}
	for _, n := range []int64{0, 1, 2, 3, 4, 15, 16, 17, 1 << 40, math.MaxInt64} {
		if r := isqrt(n); r*r > n || (r+1) < 3_037_000_500 && (r+1)*(r+1) <= n {
			t.Errorf("isqrt(%d) = %d", n, r)
		}
	}
	for i, want := range tail {
		if exact := 0.5 * math.Erfc(float64(i)/10/math.Sqrt2) * 1e6; math.Abs(exact-float64(want)) > 1 {
			t.Errorf("tail[%d] = %d, is %f", i, want, exact)
		}
	}
}
