package duty_test

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// TestCatchUpIsOnce: of several missed launches only the newest is due, once.
func TestCatchUpIsOnce(t *testing.T) {
	d := duty.NewPeriodic(allowed, func(k structs.JobKey, err error) { t.Errorf("%s: %v", k, err) })
	w := newWorld(t, d)
	j := newJob("p", structs.JobBatch, 1)
	j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"*/10 * * * *"}, TimeZone: "UTC"}
	w.register(j)
	w.now = began.Add(5*time.Hour + 3*time.Minute)
	d.Load(w.snap(), w.now)
	cmds, _ := d.Due(w.snap(), w.now)
	if len(cmds) != 1 {
		t.Fatalf("%d launches are due, want 1", len(cmds))
	}
	got := cmds[0].Body.(*structs.PeriodicLaunchCommand)
	if want := began.Add(5 * time.Hour); got.Launch != want || got.Forced {
		t.Fatalf("due at %s (forced %v), want the newest missed time %s", got.Launch.Time(), got.Forced, want.Time())
	}
	if res := w.try(cmds[0].Command); res.Err != nil {
		t.Fatal(res.Err)
	}
	if res := w.try(cmds[0].Command); structs.CodeOf(res.Err) != structs.CodeConflict {
		t.Fatalf("launching twice for one time: %v, want a conflict", res.Err)
	}
	d.Load(w.snap(), w.now)
	if cmds, next := d.Due(w.snap(), w.now); len(cmds) != 0 || next <= w.now {
		t.Errorf("due again: %d commands, next at %s", len(cmds), next.Time())
	}
}

// TestInvalidSchedule: a job whose cron expression cannot be read is reported, and other jobs launch.
func TestInvalidSchedule(t *testing.T) {
	var bad []string
	d := duty.NewPeriodic(allowed, func(k structs.JobKey, err error) { bad = append(bad, k.ID) })
	w := newWorld(t, d)
	for id, spec := range map[string]string{"good": "* * * * *", "bad": "every minute"} {
		j := newJob(id, structs.JobBatch, 1)
		j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{spec}}
		w.register(j)
	}
	if len(bad) != 1 || bad[0] != "bad" {
		t.Errorf("reported %q, want the one bad job", bad)
	}
	launched := 0
	w.told = func(_ duty.Command, res structs.Result) { launched++ }
	w.runUntil(began.Add(90 * time.Second))
	if launched != 1 {
		t.Errorf("%d launches in 90 s, want 1", launched)
	}
}

// allowed is a namespace without limits.
func allowed(*state.Snapshot, *structs.Job) error { return nil }

// TestRefusedLaunch: a job that its namespace refuses launches nothing, which is reported. When the namespace allows it
// again, it launches at the next time, and what was refused is not made up for.
func TestRefusedLaunch(t *testing.T) {
	refusal := structs.Errorf(structs.CodeInvalid, "not in this pool")
	var err error = refusal
	reported := 0
	d := duty.NewPeriodic(func(*state.Snapshot, *structs.Job) error { return err }, func(_ structs.JobKey, got error) {
		if got != error(refusal) {
			t.Errorf("reported %v", got)
		}
		reported++
	})
	w := newWorld(t, d)
	j := newJob("p", structs.JobBatch, 1)
	j.Periodic = &structs.Periodic{Enabled: true, Specs: []string{"* * * * *"}}
	w.register(j)
	children := func() (n int) {
		for range w.snap().ChildrenOf(j.Key()) {
			n++
		}
		return n
	}
	w.runUntil(began.Add(150 * time.Second))
	if n := children(); n != 0 || reported != 2 {
		t.Errorf("%d children and %d reports while the namespace refuses the job, want 0 and 2", n, reported)
	}
	err = nil
	d.Load(w.snap(), w.now)
	w.runUntil(began.Add(210 * time.Second))
	if n := children(); n != 1 {
		t.Errorf("%d children in the first minute after the namespace allowed the job again, want 1", n)
	}
}
