//go:build linux && cgo

package gpu

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/internal/fakegpu"
	"github.com/muster-sched/muster/structs"
)

func wanted(m map[string]bool) func() map[string]bool { return func() map[string]bool { return m } }

// TestPowerLimit sets limits, hands a GPU from one user to the next, and restores the limit from before the first of
// them, also after an agent restart; a limit that another program set meanwhile stays.
func TestPowerLimit(t *testing.T) {
	f, dir := fake(t, "2xH100")
	cfg := quick(f, dir)
	cfg.PowerFile = filepath.Join(t.TempDir(), "power.json")
	n := watch(t, cfg)
	until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	s, _ := f.Read()
	a, b := s.GPUs[0].UUID, s.GPUs[1].UUID
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	want := func(first, second int64) {
		t.Helper()
		if s, _ := f.Read(); s.GPUs[0].Limit != 1000*first || s.GPUs[1].Limit != 1000*second {
			t.Errorf("limits are %d and %d mW, want %d and %d W", s.GPUs[0].Limit, s.GPUs[1].Limit, first, second)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(n.LimitPower(ctx, a, 400))
	must(n.LimitPower(ctx, b, 300))
	must(n.LimitPower(ctx, a, 350))
	want(350, 300)
	if err := n.LimitPower(ctx, a, 100); err == nil || !strings.Contains(err.Error(), "it takes 210 to 700 W") {
		t.Errorf("100 W: %v", err)
	}
	want(350, 300)
	must(n.RestorePower(ctx, wanted(map[string]bool{a: true, b: true})))
	want(350, 300)
	n.Close()

	n = watch(t, cfg) // another life
	g := until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	if p := g[0].Attributes["power"]; p != number(700, "W") {
		t.Errorf("the attribute power is %+v while tasks have limits of their own", p)
	}
	must(n.RestorePower(ctx, wanted(map[string]bool{b: true})))
	want(700, 300)
	for range 2 {
		must(f.Edit(func(now *fakegpu.State) { now.GPUs[1].Limit = 500_000 }))
		must(n.RestorePower(ctx, wanted(nil)))
		want(700, 500)
	}
}

// TestPowerLimitCutOff: what is put back is right also when a change was written down and never made, as when the agent ends or the
// driver hangs in between.
func TestPowerLimitCutOff(t *testing.T) {
	f, dir := fake(t, "1xH100")
	cfg := quick(f, dir)
	cfg.PowerFile = filepath.Join(t.TempDir(), "power.json")
	n := watch(t, cfg)
	until(t, n, "1 GPU", func(g []structs.DeviceGroup) bool { return count(g) == 1 })
	s, _ := f.Read()
	a := s.GPUs[0].UUID
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := n.LimitPower(ctx, a, 400); err != nil {
		t.Fatal(err)
	}
	if err := f.Edit(func(now *fakegpu.State) {
		now.Faults = append(now.Faults, fakegpu.Fault{Kind: "hang", Symbol: "nvmlDeviceSetPowerManagementLimit"})
	}); err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	if err := n.LimitPower(short, a, 300); err == nil {
		t.Fatal("a driver that hangs has set a limit")
	}
	n.Close()
	if err := f.Heal("nvmlDeviceSetPowerManagementLimit"); err != nil {
		t.Fatal(err)
	}
	n = watch(t, cfg) // another life
	until(t, n, "1 GPU", func(g []structs.DeviceGroup) bool { return count(g) == 1 })
	if err := n.RestorePower(ctx, wanted(nil)); err != nil {
		t.Fatal(err)
	}
	if s, _ := f.Read(); s.GPUs[0].Limit != 700_000 {
		t.Errorf("the limit is %d mW, want 700 W", s.GPUs[0].Limit)
	}
}
