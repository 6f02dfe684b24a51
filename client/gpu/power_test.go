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

// TestPowerLimit sets limits, hands a GPU from one user to the next, and puts back what was before the first of them, also in
// a later life of the agent; what somebody else has set meanwhile stays.
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
	must(n.RestorePower(ctx, map[string]bool{a: true, b: true}))
	want(350, 300)
	n.Close()

	n = watch(t, cfg) // another life
	g := until(t, n, "2 GPUs", func(g []structs.DeviceGroup) bool { return count(g) == 2 })
	if p := g[0].Attributes["power"]; p != number(700, "W") {
		t.Errorf("the attribute power is %+v while tasks have limits of their own", p)
	}
	must(n.RestorePower(ctx, map[string]bool{b: true}))
	want(700, 300)
	for range 2 {
		must(f.Edit(func(now *fakegpu.State) { now.GPUs[1].Limit = 500_000 }))
		must(n.RestorePower(ctx, nil))
		want(700, 500)
	}
}
