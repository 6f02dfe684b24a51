//go:build linux && cgo

package gpu

import (
	"math"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/internal/fakegpu/lib"
	"github.com/muster-sched/muster/structs"
)

// TestActivity measures an H100, a partitioned H100, and an A100, which does not report activity.
func TestActivity(t *testing.T) {
	f, dir := fake(t, "2xH100,1xA100")
	if err := f.Edit(func(s *fakegpu.State) {
		s.Split(1, 2)
		for i := range s.GPUs {
			s.GPUs[i].Active, s.GPUs[i].Occupied, s.GPUs[i].Tensor, s.GPUs[i].DRAM = 437, 250, 120, 80
		}
	}); err != nil {
		t.Fatal(err)
	}
	s, _ := f.Read()
	saw := func(n *NVIDIA, what string, ok func() bool) {
		t.Helper()
		for over := time.Now().Add(30 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
			if time.Now().After(over) {
				samples, _ := n.Samples()
				t.Fatalf("%s: never; %+v", what, samples)
			}
		}
	}
	n := watch(t, quick(f, dir))
	saw(n, "the GPU tells", func() bool { _, ok := figure(n, s.GPUs[0].UUID, "DCGM_FI_PROF_SM_ACTIVE"); return ok })
	for name, want := range map[string]float64{
		"DCGM_FI_PROF_SM_ACTIVE": 0.437, "DCGM_FI_PROF_SM_OCCUPANCY": 0.25, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.12, "DCGM_FI_PROF_DRAM_ACTIVE": 0.08, "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1,
	} {
		t.Run(name, func(t *testing.T) {
			if v, ok := figure(n, s.GPUs[0].UUID, name); !ok || math.Abs(v-want) > 1e-9 {
				t.Errorf("%s is %v, %v; want %v", name, v, ok, want)
			}
			if v, ok := figure(n, s.GPUs[2].UUID, name); ok {
				t.Errorf("an A100 says that %s is %v", name, v)
			}
		})
	}
	parts := 0
	for _, x := range samples(n) {
		if x.Name == "DCGM_FI_PROF_SM_ACTIVE" && x.Value == 0.437 && x.Values[len(x.Values)-1] != "" {
			parts++
		}
	}
	if parts != 2 {
		t.Errorf("%d MIG instances tell their activity, want 2", parts)
	}
	_ = f.Edit(func(s *fakegpu.State) { s.GPUs[0].Active = 5 })
	saw(n, "it is less", func() bool { v, _ := figure(n, s.GPUs[0].UUID, "DCGM_FI_PROF_SM_ACTIVE"); return v == 0.005 })
	_ = f.Edit(func(s *fakegpu.State) { s.Faults = []fakegpu.Fault{{Kind: "fail", Symbol: "nvmlGpmSampleGet", Arg: 3}} })
	saw(n, "what cannot be asked is not known", func() bool { _, ok := figure(n, s.GPUs[0].UUID, "DCGM_FI_PROF_SM_ACTIVE"); return !ok })
	if v := n.Verdicts()[s.GPUs[0].UUID]; v.State != Healthy {
		t.Errorf("%+v; want v.State = %v", v, Healthy)
	}
	_ = f.Heal("nvmlGpmSampleGet")
	saw(n, "it is known again", func() bool { _, ok := figure(n, s.GPUs[0].UUID, "DCGM_FI_PROF_SM_ACTIVE"); return ok })

	for _, absent := range [][]string{active, {"nvmlGpmMigSampleGet"}} {
		old := t.TempDir()
		needCompiler(t, lib.Build(old, absent...))
		n := watch(t, quick(f, old))
		until(t, n, "the GPUs of an older driver", func(g []structs.DeviceGroup) bool { return count(g) == 4 })
		time.Sleep(3 * activityEvery) // three readings find nothing
		if v, ok := figure(n, s.GPUs[0].UUID, "DCGM_FI_PROF_SM_ACTIVE"); ok {
			t.Errorf("without %v: %v", absent, v)
		}
		n.Close()
	}
}

// TestMeanActivity gives tasks a whole GPU, a MIG instance and a share, and lets them idle.
func TestMeanActivity(t *testing.T) {
	m := &Meter{}
	at := time.Unix(1_000_000, 0)
	whole := Quota{Alloc: structs.AllocID{1}, Task: "t", GPU: "GPU-a"}
	part := Quota{Alloc: structs.AllocID{2}, Task: "t", GPU: "MIG-a", Backend: structs.BackendMIG}
	share := Quota{Alloc: structs.AllocID{3}, Task: "t", GPU: "GPU-c", MiB: 1024}
	old := Quota{Alloc: structs.AllocID{4}, Task: "t", GPU: "GPU-d"}
	began := structs.LogTimeOf(at)
	look := func(sm, util, process int64) {
		at = at.Add(5 * time.Second)
		m.Measure(at, []Sample{
			{UUID: "GPU-a", UtilPercent: util, EnergyMJ: -1, Active: &Activity{SM: sm}}, {UUID: "GPU-b", UtilPercent: -1, EnergyMJ: -1, MIGMode: "Enabled", Parts: []Activity{{UUID: "MIG-a", SM: 2 * sm}}},
			{UUID: "GPU-c", UtilPercent: 90, EnergyMJ: -1, Active: &Activity{SM: sm}}, {UUID: "GPU-d", UtilPercent: util, EnergyMJ: -1},
		}, []TaskUse{{Alloc: share.Alloc, Task: "t", GPU: "GPU-c", SM: process}}, []Quota{whole, part, share, old}, func(Quota) structs.LogTime { return began })
	}
	of := func(q Quota) TaskUsage {
		for _, u := range m.All() {
			if u.Quota == q {
				return u
			}
		}
		t.Fatal("not measured")
		return TaskUsage{}
	}
	look(400, 100, 30)
	look(200, 100, 0)
	for q, want := range map[Quota][2]int64{whole: {3000, 10000}, part: {6000, 10000}, share: {0, 0}, old: {0, 0}} {
		if u := of(q); u.ActiveMillis != want[0] || u.KnownMillis != want[1] {
			t.Errorf("%s: active %d of %d ms, want %v", q.GPU, u.ActiveMillis, u.KnownMillis, want)
		}
	}
	if got := m.Totals(whole.Alloc, at)[0]; got.SMActiveMillis != 3000 || got.SMKnownMillis != 10000 {
		t.Errorf("the record says %+v", got)
	}
	idle := func(q Quota) time.Duration {
		if u := of(q); !u.Idle.IsZero() {
			return at.Sub(u.Idle)
		}
		return 0
	}
	if idle(whole) != 0 || idle(part) != 0 || idle(share) != 5*time.Second || idle(old) != 0 {
		t.Errorf("idle for %s, %s, %s, %s", idle(whole), idle(part), idle(share), idle(old))
	}
	look(4, 100, 0) // one multiprocessor spins: the utilization says that all is well
	look(4, 0, 10)
	if idle(whole) != 10*time.Second || idle(part) != 10*time.Second || idle(share) != 0 || idle(old) != 5*time.Second {
		t.Errorf("idle for %s, %s, %s, %s", idle(whole), idle(part), idle(share), idle(old))
	}
	look(500, 1, 10)
	if idle(whole) != 0 || idle(part) != 0 || idle(old) != 0 {
		t.Errorf("work again: idle for %s, %s, %s", idle(whole), idle(part), idle(old))
	}
}
