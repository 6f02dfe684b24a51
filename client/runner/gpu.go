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

// shimDir is where the files of backend "shim" are, below the directory that the tasks of an allocation share, one
// directory a task. It belongs to the agent.
const shimDir = "gpu"

// ShimDir is where the library and the shares of a task are that backend "shim" holds; "" without directories.
func (r *Runner) ShimDir(task string) string {
	if r.dir == nil {
		return ""
	}
	return filepath.Join(r.dir.SharedDir(), shimDir, task)
}

// limitGPUs makes the task's shares of GPU memory hold before it starts.
func limitGPUs(ctx context.Context, a *attempt) error {
	r := a.task.r
	for uuid, watts := range r.PowerLimits(a.spec.Name) {
		if r.cfg.LimitPower == nil {
			return fmt.Errorf("this node cannot set the power limit of GPUs: the agent must be root's")
		}
		if err := r.cfg.LimitPower(ctx, uuid, watts); err != nil {
			return fmt.Errorf("hold a GPU to %d W: %w", watts, err)
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
			return driver.Permanent(fmt.Errorf("the allocation's directory %s cannot be named in %s", r.dir.Root, shim.Env))
		}
		if err := shim.Place(dir, bytes); err != nil {
			return err
		}
		seen := dir
		if as := a.config.Env["NOMAD_ALLOC_DIR"]; as != "" { // where the task sees it
			seen = filepath.Join(as, shimDir, a.spec.Name)
		}
		a.config.Env[shim.Env] = shim.Preload(seen, a.config.Env[shim.Env])
	}
	if len(dmem) > 0 {
		if r.cfg.LimitGPUs == nil {
			return fmt.Errorf("this node cannot limit the GPU memory of a control group any more")
		}
		a.task.mu.Lock()
		id := a.task.id(a.task.rec.Attempt)
		a.task.mu.Unlock()
		return r.cfg.LimitGPUs(ctx, id, dmem)
	}
	return nil
}

// GPURequest is what a task's grants of GPUs fulfil; nil when it has none, or asked for devices.
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

// PowerLimits are the watts that a task wants its GPUs to be held to, by UUID; of all tasks for "".
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

// ExceedGPU ends the allocation because one of its tasks holds more of a GPU's memory than its share.
func (r *Runner) ExceedGPU(task, uuid string, quotaMiB, usedMiB int64) {
	if r.Final() != nil {
		return
	}
	msg := fmt.Sprintf("task %q holds %d MiB of GPU %s; its share is %d MiB", task, usedMiB, uuid, quotaMiB)
	r.stop(&stopReason{event: failing(event(EventGPUMemory, msg, "gpu", uuid, "quota_mib", strconv.FormatInt(quotaMiB, 10), "used_mib", strconv.FormatInt(usedMiB, 10))), fail: true, desc: msg})
}

// LoseGPU ends the allocation because what it was promised of a GPU is not there any more: the GPU itself, or what holds
// its share. The work goes elsewhere.
func (r *Runner) LoseGPU(task, uuid, why string) {
	if r.Final() != nil {
		return
	}
	msg := fmt.Sprintf("task %q cannot go on with GPU %s: %s", task, uuid, why)
	r.stop(&stopReason{event: failing(event(structs.TaskEventGPUError, msg, "gpu", uuid, "reason", why)), fail: true, desc: msg})
}

// TellGPU notes something about a task's GPU that does not end it.
func (r *Runner) TellGPU(ctx context.Context, task, kind, msg string, details ...string) {
	for _, t := range r.tasks {
		if t.name == task && !t.dead() {
			t.note(ctx, event(kind, msg, details...))
		}
	}
}

// Started reports whether a task runs and has been started by its driver.
func (r *Runner) Started(task string) bool { return r.RunID(task) != "" }

// Goes reports whether a task runs and is not to stand still.
func (r *Runner) Goes(task string) bool { return r.Started(task) && !r.suspended() }

// StartedAt is when a task that runs began its present run; 0 while it does not run.
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

// RunID is the id towards its driver of a task that runs; "" while it does not.
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
