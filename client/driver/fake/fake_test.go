package fake

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/client/driver"
)

func start(t *testing.T, d *Driver, id string, config map[string]any) driver.Task {
	t.Helper()
	task, err := d.Start(t.Context(), &driver.TaskConfig{TaskID: id, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func TestRunsForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		r, err := start(t, New(), "a", map[string]any{"command": "sleep", "args": []any{"x"}, "run_for": "90m", "exit_code": 3}).Wait(t.Context())
		if err != nil || r.ExitCode != 3 || time.Since(began) != 90*time.Minute {
			t.Fatalf("%+v after %s, %v", r, time.Since(began), err)
		}
	})
}

func TestRunsUntilStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := start(t, New(), "a", map[string]any{"kill_after": "10s"})
		time.Sleep(1000 * time.Hour)
		if !task.Status().Running {
			t.Fatal("ended by itself")
		}
		began := time.Now()
		if err := task.Stop(t.Context(), "SIGINT", 3*time.Second); err != nil {
			t.Fatal(err)
		}
		if r, _ := task.Wait(t.Context()); r.Signal != 9 || time.Since(began) != 3*time.Second {
			t.Fatalf("%+v after %s: want SIGKILL after the timeout", r, time.Since(began))
		}
		if err := task.Signal(t.Context(), "HUP"); !errors.Is(err, driver.ErrNotRunning) {
			t.Fatal(err)
		}
	})
}

func TestCallsAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task := start(t, New(), "a", map[string]any{"run_for": "10m"}).(driver.Ender)
		var old, calls atomic.Int32
		task.OnEnd(func() { old.Add(1) })
		task.OnEnd(func() { calls.Add(1) })
		time.Sleep(9 * time.Minute)
		if calls.Load() != 0 {
			t.Fatal("called while the task runs")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if calls.Load() != 1 || old.Load() != 0 {
			t.Fatalf("%d calls of the newest function, %d of the one before; want 1, 0", calls.Load(), old.Load())
		}
		if task.OnEnd(func() { calls.Add(1) }); calls.Load() != 2 {
			t.Fatal("not called at once for a task that has ended")
		}
	})
}

func TestRecoverKeepsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := start(t, New(), "a", map[string]any{"run_for": "10m"}).Status().State
		time.Sleep(4 * time.Minute)
		began := time.Now()
		task, err := New().Recover(t.Context(), state) // another agent process
		if err != nil {
			t.Fatal(err)
		}
		if _, err := task.Wait(t.Context()); err != nil || time.Since(began) != 6*time.Minute {
			t.Fatalf("ended after %s, %v", time.Since(began), err)
		}
		if _, err := New().Recover(t.Context(), []byte("junk")); !errors.Is(err, driver.ErrLost) {
			t.Fatal(err)
		}
	})
}

func TestStartIsIdempotentAndRefuses(t *testing.T) {
	d := New()
	if start(t, d, "a", nil) != start(t, d, "a", nil) {
		t.Fatal("two tasks with one id")
	}
	for want, c := range map[string]map[string]any{
		"want 0 to 255":            {"exit_code": 256},
		"boom":                     {"start_err": "boom"},
		`unknown signal "SIGNO"`:   {"exit_signal": "NO"},
		`did you mean "run_for"`:   {"runfor": "1s"},
		"want a duration such as ": {"run_for": "long"},
	} {
		t.Run(want, func(t *testing.T) {
			if _, err := d.Start(t.Context(), &driver.TaskConfig{TaskID: want, Config: c}); err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(want, "SIGNO", "NO")) {
				t.Errorf("%v: %v; want an error, %q in it", c, err, strings.ReplaceAll(want, "SIGNO", "NO"))
			}
		})
	}
}
