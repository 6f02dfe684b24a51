package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/procfile"
)

// Task is one container.
type Task struct {
	d     *Driver
	state taskState

	mu       sync.Mutex
	began    time.Time
	pid      int
	ended    bool
	exit     driver.ExitResult
	notify   func(string) // or nil; guarded by mu
	away     time.Time    // since when the engine has not responded; zero while it does
	notified bool         // reported that the engine does not respond; guarded by mu
	last     struct {     // the previous measurement
		at  time.Time
		cpu uint64
	}
}

// killedCode is the exit code of a container that SIGKILL ended: 128 and the signal's number.
const killedCode = 128 + 9

// see records the state that the engine reports.
func (t *Task) see(in *container.InspectResponse) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := in.State
	if s == nil {
		return
	}
	t.began, _ = time.Parse(time.RFC3339Nano, s.StartedAt)
	t.pid = s.Pid
	if s.Running || s.Paused || s.Restarting || !hasRun(s) {
		return
	}
	t.pid, t.ended = 0, true
	// The engine reports OOM for any process of the container; if the container continued successfully, it has not
	// failed.
	t.exit = driver.ExitResult{ExitCode: s.ExitCode, OOMKilled: s.OOMKilled && s.ExitCode != 0, Err: s.Error}
	if s.OOMKilled && s.ExitCode == killedCode {
		t.exit.Signal = 9
	}
	t.exit.EndedAt, _ = time.Parse(time.RFC3339Nano, s.FinishedAt)
	if t.exit.EndedAt.Year() <= 1 {
		t.exit.EndedAt = time.Now()
	}
}

// Status describes the task.
func (t *Task) Status() driver.TaskStatus {
	b, _ := json.Marshal(t.state)
	t.mu.Lock()
	defer t.mu.Unlock()
	return driver.TaskStatus{TaskID: t.state.TaskID, State: b, PID: t.pid, StartedAt: t.state.StartedAt, Running: !t.ended}
}

// Interval at which a wait checks for the return of an absent engine.
const (
	backMin = 100 * time.Millisecond
	backMax = 2 * time.Second
)

// awayPatience is how long an engine may be absent before an event says so: an engine restart takes less.
const awayPatience = 5 * time.Second

// SetNotify implements driver.Notifier.
func (t *Task) SetNotify(f func(string)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notify = f
}

// answered records whether the engine responds, and reports each change once.
func (t *Task) answered(err error) {
	t.mu.Lock()
	notify, message := t.notify, ""
	switch {
	case err == nil && t.notified:
		message = "The Docker Engine answers again"
		fallthrough
	case err == nil:
		t.away, t.notified = time.Time{}, false
	case t.away.IsZero():
		t.away = time.Now()
	case !t.notified && time.Since(t.away) > awayPatience:
		t.notified = true
		message = fmt.Sprintf("The Docker Engine does not answer (%v): how the task is doing shows when it does again", brief(err))
	}
	t.mu.Unlock()
	if message != "" && notify != nil {
		notify(message)
	}
}

// Wait waits for the container's end and for its logs. While the engine is absent it waits for its return.
func (t *Task) Wait(ctx context.Context) (driver.ExitResult, error) {
	logs := t.d.copyLogs(&t.state)
	pause := backMin
	for {
		in, err := t.d.inspect(ctx, t.state.Container)
		switch {
		case ctx.Err() != nil:
			return driver.ExitResult{}, ctx.Err()
		case gone(err):
			t.answered(nil)
			return driver.ExitResult{}, driver.ErrLost
		case err != nil:
			t.answered(err)
		default:
			t.answered(nil)
			if t.see(&in); t.over() {
				logs.finish(ctx)
				if ctx.Err() != nil {
					return driver.ExitResult{}, ctx.Err()
				}
				// The engine learns of an OOM and of the end by two paths: the first may come later.
				if exit := t.result(); exit.ExitCode != killedCode || exit.OOMKilled {
					return exit, nil
				}
				if in, err := t.d.inspect(ctx, t.state.Container); err == nil {
					t.see(&in)
				}
				return t.result(), nil
			}
			res := t.d.api.ContainerWait(ctx, t.state.Container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
			select {
			case <-res.Result:
				pause = backMin
				continue
			case <-res.Error:
			case <-ctx.Done():
				return driver.ExitResult{}, ctx.Err()
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return driver.ExitResult{}, ctx.Err()
		}
		pause = min(2*pause, backMax)
	}
}

// result returns how the task ended, as far as it was seen.
func (t *Task) result() driver.ExitResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.exit
}

func (t *Task) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended
}

// Signal sends a signal to the container's first process.
func (t *Task) Signal(ctx context.Context, name string) error {
	sig, err := driver.ParseSignal(name)
	if err != nil {
		return err
	}
	return t.kill(ctx, strconv.Itoa(int(sig)))
}

func (t *Task) kill(ctx context.Context, signal string) error {
	_, err := t.d.api.ContainerKill(ctx, t.state.Container, client.ContainerKillOptions{Signal: signal})
	if err != nil && (gone(err) || errdefs.IsConflict(err) || strings.Contains(err.Error(), "is not running")) {
		return driver.ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("docker: send signal %s: %w", signal, brief(err))
	}
	return nil
}

// Stop ends the task: with a signal, and by force after the timeout.
func (t *Task) Stop(ctx context.Context, name string, timeout time.Duration) error {
	sig, timeout, err := driver.HowToStop(name, timeout, t.state.KillSignal, t.state.KillTimeout)
	if err != nil {
		return err
	}
	if timeout > 0 {
		if err := t.kill(ctx, strconv.Itoa(int(sig))); errors.Is(err, driver.ErrNotRunning) {
			return nil
		} else if err != nil {
			return err
		}
		if done, err := t.ends(ctx, timeout); done || err != nil {
			return err
		}
	}
	for {
		if err := t.kill(ctx, "KILL"); errors.Is(err, driver.ErrNotRunning) {
			return nil
		} else if err != nil {
			return err
		}
		if done, err := t.ends(ctx, 10*time.Second); done || err != nil {
			return err
		}
	}
}

// ends waits up to d for the container's end.
func (t *Task) ends(ctx context.Context, d time.Duration) (bool, error) {
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	res := t.d.api.ContainerWait(within, t.state.Container, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-res.Result:
		return true, nil
	case err := <-res.Error:
		switch {
		case ctx.Err() != nil:
			return false, ctx.Err()
		case within.Err() != nil:
			return false, nil
		case gone(err):
			return true, nil
		}
		return false, fmt.Errorf("docker: wait for the container's end: %w", brief(err))
	case <-within.Done():
		return false, ctx.Err()
	}
}

// Destroy removes the container.
func (t *Task) Destroy(ctx context.Context) error {
	t.d.stopCopying(t.state.Container)
	if err := t.d.remove(ctx, t.state.Container, t.state.TaskID); err != nil {
		return fmt.Errorf("docker: remove the container: %w", brief(err))
	}
	if err := t.d.unguard(ctx, t.state.TaskID, t.state.Guarded); err != nil {
		return fmt.Errorf("docker: end the guard of the container: %w", err)
	}
	return nil
}

// Stats measures the task.
func (t *Task) Stats(ctx context.Context) (driver.Stats, error) {
	if t.over() {
		return driver.Stats{}, driver.ErrNotRunning
	}
	res, err := t.d.api.ContainerStats(ctx, t.state.Container, client.ContainerStatsOptions{})
	if gone(err) {
		return driver.Stats{}, driver.ErrNotRunning
	}
	if err != nil {
		return driver.Stats{}, fmt.Errorf("docker: measure the container: %w", brief(err))
	}
	defer res.Body.Close()
	var s container.StatsResponse
	if err := json.NewDecoder(res.Body).Decode(&s); err != nil {
		return driver.Stats{}, fmt.Errorf("docker: measure the container: %w", err)
	}
	if s.CPUStats.CPUUsage.TotalUsage == 0 && s.MemoryStats.Usage == 0 {
		return driver.Stats{}, driver.ErrNotRunning // the engine answers with zeros
	}
	m := s.MemoryStats
	first := func(names ...string) uint64 {
		for _, n := range names {
			if v, ok := m.Stats[n]; ok {
				return v
			}
		}
		return 0
	}
	now := time.Now()
	out := driver.Stats{
		Time: now, CPUTotalNS: s.CPUStats.CPUUsage.TotalUsage, CPUUserNS: s.CPUStats.CPUUsage.UsageInUsermode, CPUSystemNS: s.CPUStats.CPUUsage.UsageInKernelmode,
		ThrottledNS: s.CPUStats.ThrottlingData.ThrottledTime, RSSBytes: first("total_rss", "rss", "anon"), CacheBytes: first("total_cache", "cache", "file"),
		UsageBytes: m.Usage, MaxUsage: m.MaxUsage, SwapBytes: first("total_swap", "swap"), PidsCount: s.PidsStats.Current, MemoryLimit: m.Limit,
		MeasuredKeys: []string{"RSS", "Cache", "Swap", "Usage"},
	}
	if m.MaxUsage > 0 {
		out.MeasuredKeys = append(out.MeasuredKeys, "Max Usage")
	}
	t.mu.Lock()
	pid := t.pid
	if el := now.Sub(t.last.at); !t.last.at.IsZero() && el > 0 && out.CPUTotalNS >= t.last.cpu {
		out.CPUPercent = float64(out.CPUTotalNS-t.last.cpu) / float64(el) * 100
	}
	t.last.at, t.last.cpu = now, out.CPUTotalNS
	t.mu.Unlock()
	out.PerProcess = processes(pid)
	return out, nil
}

// processesMax limits the list of a task's processes.
const processesMax = 256

// processes returns the processes in the control group of a container's first process, by host pid; nil if there are
// too many or the engine is on another machine.
func processes(pid int) map[int]driver.ProcStats {
	if pid <= 0 {
		return nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[2] == "/" || strings.HasPrefix(f[2], "/..") {
			continue
		}
		for _, point := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/" + f[1]} {
			list, err := os.ReadFile(filepath.Join(point, f[2], "cgroup.procs"))
			if err != nil {
				continue
			}
			pids := strings.Fields(string(list))
			if len(pids) > processesMax {
				return nil
			}
			out := make(map[int]driver.ProcStats, len(pids))
			for _, p := range pids {
				if n, err := strconv.Atoi(p); err == nil {
					if st, err := procfile.StatOf(n); err == nil {
						out[n] = driver.ProcStats{CPUTotalNS: uint64(st.CPU), RSSBytes: st.RSS}
					}
				}
			}
			return out
		}
	}
	return nil
}
