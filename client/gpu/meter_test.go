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
		m.Measure(at, []Sample{{UUID: "G", EnergyMJ: energy, UtilPercent: 80}}, uses, have, func(Quota) structs.LogTime { return 0 })
		at = at.Add(2 * time.Second)
	}
	look(1000)
	look(2000, TaskUse{a, "t", "G", 10 << 30, false, 60}, TaskUse{b, "t", "G", 1 << 30, false, 20})
	m.Booked(have[0], 15<<30, 3, at)
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

// TestMeterKept is about what an agent writes down and takes up again in its next life.
func TestMeterKept(t *testing.T) {
	q := Quota{structs.AllocID{1}, "t", "G", 20 << 10, "shim"}
	at := time.Unix(1000, 0)
	look := func(m *Meter, energy int64) {
		m.Measure(at, []Sample{{UUID: "G", EnergyMJ: energy}}, []TaskUse{{q.Alloc, "t", "G", 1 << 30, false, 50}}, []Quota{q}, func(Quota) structs.LogTime { return structs.LogTimeOf(time.Unix(990, 0)) })
	}
	first := &Meter{}
	look(first, 1000) // the task has run for ten seconds
	at = at.Add(10 * time.Second)
	look(first, 3000)
	rows := first.Rows()
	at = at.Add(100 * time.Second)
	total := func(m *Meter) structs.GPUUse { return structs.SumGPUUse(m.Totals(q.Alloc, at)) }
	if got, want := total(first), (structs.GPUUse{PeakMiB: 1024, MiBSeconds: 1024 * 30, SMMillis: 10000, EnergyMJ: 2000}); got != want {
		t.Errorf("a task that is not seen any more counts as %+v, want %+v", got, want)
	}

	// The tasks went on while there was no agent.
	went := &Meter{}
	went.Restore(rows, true, at)
	look(went, 9000)
	if got, want := total(went), (structs.GPUUse{PeakMiB: 1024, MiBSeconds: 1024 * 120, SMMillis: 60000, EnergyMJ: 8000}); got != want {
		t.Errorf("after a restart of the agent %+v, want %+v", got, want)
	}
	// The machine was rebooted: no process held a GPU meanwhile.
	anew := &Meter{}
	anew.Restore(rows, false, at)
	look(anew, 500)
	if got, want := total(anew), (structs.GPUUse{PeakMiB: 1024, MiBSeconds: 1024 * 20, SMMillis: 10000, EnergyMJ: 2000}); got != want {
		t.Errorf("after a reboot %+v, want %+v", got, want)
	}
	// What a task writes into its books is believed up to its share.
	anew.Booked(q, 1<<50, 7, at)
	if got := total(anew); got.PeakMiB != 20<<10 || got.Denied != 7 {
		t.Errorf("the books say %+v", got)
	}
}
