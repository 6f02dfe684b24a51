package runner

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/structs"
)

// shimDir is the directory for the files of the backend "shim", within the directory that the tasks of an allocation
// share. It has one directory for each task and is owned by the agent.
const shimDir = "gpu"

// ShimDir returns the directory with the library and the shares of a task under the backend "shim"; "" for an
// allocation without directories.
func (r *Runner) ShimDir(task string) string {
	if r.dir == nil {
		return ""
	}
	return filepath.Join(r.dir.SharedDir(), shimDir, task)
}

// awaitGPUs waits until the memory of the task's GPUs is seen free of what has ended (D19).
func awaitGPUs(ctx context.Context, a *attempt) error {
	_, grants := a.task.r.GPURequest(a.spec.Name)
	if len(grants) == 0 {
		return nil
	}
	uuids := make([]string, len(grants))
	for i := range grants {
		uuids[i] = grants[i].Instance
	}
	return a.interruptibly(ctx, func(ctx context.Context) error {
		return a.task.r.cfg.Host.GPUs.AwaitFree(ctx, uuids, func(sentence string) { a.note(event(EventGPUWait, sentence)) })
	})
}

// limitGPUs sets the power limits and the shares of GPU memory before a task starts.
func limitGPUs(ctx context.Context, a *attempt) error {
	r := a.task.r
	for uuid, watts := range r.PowerLimits(a.spec.Name) {
		if err := r.cfg.Host.GPUs.LimitPower(ctx, uuid, watts); err != nil {
			return fmt.Errorf("limit a GPU to %d W: %w", watts, err)
		}
	}
	bytes := map[string]int64{}
	var dmem []structs.Grant
	for _, g := range r.Alloc().Grants {
		if g.Task != a.spec.Name || !g.IsGPU() || g.MemoryMiB <= 0 {
			continue
		}
		switch g.Backend {
		case structs.BackendShim:
			bytes[g.Instance] = g.MemoryMiB << 20
		case structs.BackendDmem:
			dmem = append(dmem, g)
		}
	}
	if len(bytes) > 0 && r.dir != nil {
		dir := r.ShimDir(a.spec.Name)
		if strings.ContainsAny(dir, ": \t\n") {
			return driver.Permanent(fmt.Errorf("the allocation's directory %s cannot be written in %s", r.dir.Root, shim.Env))
		}
		if err := shim.Place(dir, bytes); err != nil {
			return err
		}
		seen, env := dir, a.environment()
		if as := env["NOMAD_ALLOC_DIR"]; as != "" { // the path inside the task
			seen = filepath.Join(as, shimDir, a.spec.Name)
		}
		env[shim.Env] = shim.Preload(seen, env[shim.Env])
	}
	if len(dmem) > 0 {
		a.task.mu.Lock()
		id := a.task.id(a.task.rec.Attempt)
		a.task.mu.Unlock()
		return r.cfg.Host.GPUs.LimitMemory(ctx, id, dmem)
	}
	return nil
}

// GPURequest returns the request behind a task's GPU grants, and the grants. The request is nil if the task has no GPU
// grant, or asked for devices.
func (r *Runner) GPURequest(task string) (*structs.GPURequest, []structs.Grant) {
	var mine []structs.Grant
	for _, g := range r.Alloc().Grants {
		if g.Task == task && g.IsGPU() {
			mine = append(mine, g)
		}
	}
	if g := r.group(); g != nil {
		for i := range g.Tasks {
			if g.Tasks[i].Name == task {
				return structs.GPURequestOf(g.Tasks[i].Resources.GPU, mine), mine
			}
		}
	}
	return nil, nil
}

// PowerLimits returns the power limits in watts that a task asks for, by GPU. An empty name returns those of all tasks.
func (r *Runner) PowerLimits(task string) map[string]int64 {
	out := map[string]int64{}
	for _, t := range r.tasks {
		if task != "" && t.name != task {
			continue
		}
		if q, grants := r.GPURequest(t.name); q != nil && q.PowerLimitW > 0 {
			for i := range grants {
				out[grants[i].Instance] = q.PowerLimitW
			}
		}
	}
	return out
}

// ExceedGPU ends the allocation because one of its tasks uses more than its share of a GPU's memory.
func (r *Runner) ExceedGPU(task, uuid string, quotaMiB, usedMiB int64) {
	if r.Final() != nil {
		return
	}
	msg := fmt.Sprintf("task %q holds %d MiB of GPU %s; its share is %d MiB", task, usedMiB, uuid, quotaMiB)
	r.stop(&stopReason{event: failing(event(EventGPUMemory, msg, "gpu", uuid, "quota_mib", strconv.FormatInt(quotaMiB, 10), "used_mib", strconv.FormatInt(usedMiB, 10))), fail: true, desc: msg})
}

// LoseGPU ends the allocation because a GPU, or the process that enforces a task's share of it, is lost. The servers
// place the work on another node.
func (r *Runner) LoseGPU(task, uuid, why string) {
	if r.Final() != nil {
		return
	}
	msg := fmt.Sprintf("task %q cannot continue with GPU %s: %s", task, uuid, why)
	r.stop(&stopReason{event: failing(event(structs.TaskEventGPUError, msg, "gpu", uuid, "reason", why)), fail: true, desc: msg})
}

// NoteGPU adds an event about a GPU to a task that has not ended.
func (r *Runner) NoteGPU(ctx context.Context, task, kind, msg string, details ...string) {
	for _, t := range r.tasks {
		if t.name == task && !t.dead() {
			t.note(ctx, event(kind, msg, details...))
		}
	}
}

// Active reports whether a task runs and the allocation is not suspended.
func (r *Runner) Active(task string) bool { return r.RunID(task) != "" && !r.suspended() }

// StartedAt returns the start of a task's current run; 0 while it does not run.
func (r *Runner) StartedAt(task string) structs.LogTime {
	for _, t := range r.tasks {
		if t.name == task {
			if st := t.state(); st.State == stateRunning {
				return max(st.StartedAt, st.LastRestart)
			}
		}
	}
	return 0
}

// RunID returns the driver's id of a running task; "" while the task does not run.
func (r *Runner) RunID(task string) string {
	for _, t := range r.tasks {
		if t.name != task {
			continue
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.handle == nil || t.rec.State.State != stateRunning {
			return ""
		}
		return t.handle.Status().TaskID
	}
	return ""
}
