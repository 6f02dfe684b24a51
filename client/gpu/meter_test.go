package gpu

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestMeter adds up what two tasks use of one GPU over four seconds.
func TestMeter(t *testing.T) {
	a, b := structs.AllocID{1}, structs.AllocID{2}
	have := []Quota{{a, "t", "G", 20 << 10, "shim"}, {b, "t", "G", 10 << 10, "shim"}}
	at := time.Unix(1000, 0)
	m := &Meter{}
	look := func(energy int64, uses ...TaskUse) {
		m.Measure(at, []Sample{{UUID: "G", EnergyMJ: energy, UtilPercent: 80}}, uses, have)
		at = at.Add(2 * time.Second)
	}
	look(1000)
	look(2000, TaskUse{a, "t", "G", 10 << 30, false, 60}, TaskUse{b, "t", "G", 1 << 30, false, 20})
	m.Booked(have[0], 15<<30, 3)
	look(2400, TaskUse{a, "t", "G", 5 << 30, false, -1}, TaskUse{b, "t", "G", 1 << 30, true, -1})
	want := map[structs.AllocID]TaskUsage{
		a: {UsedBytes: 5 << 30, PeakBytes: 15 << 30, MiBSeconds: 30 << 10, SMMillis: 1200 + 800, EnergyMJ: 750 + 200, Denied: 3},
		b: {UsedBytes: -1, PeakBytes: 1 << 30, MiBSeconds: 2 << 10, SMMillis: 400 + 800, EnergyMJ: 250 + 200},
	}
	for id, w := range want {
		got := m.Of(id)
		if len(got) != 1 {
			t.Fatalf("%d entries of %s", len(got), id)
		}
		g := got[0]
		g.Quota, g.Since, g.Measured = Quota{}, time.Time{}, time.Time{}
		if g != w {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
	have = have[1:]
	look(2500)
	if len(m.Of(a)) != 0 || m.Of(b)[0].UsedBytes != 0 {
		t.Errorf("after a's end: %+v %+v", m.Of(a), m.Of(b))
	}
}
