package gpuwatch

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// freePatience is how long a task waits for the memory of a GPU that an ended one has not released. A driver takes
// seconds to free the memory of a killed process; after this time something is wrong, and the start fails.
const freePatience = 30 * time.Second

// freePolls are the shortest and the longest time between two looks.
const freePollMin, freePollMax = 100 * time.Millisecond, time.Second

// AwaitFree waits until nothing that has ended holds memory of the GPUs (D19): no process of an allocation that has
// ended, and none that is dead. note is called with a sentence when what is waited for changes.
//
// Live processes outside of tasks, such as a display server, are not waited for: they would delay every start. Nor is a
// driver that does not answer, which the health check reports. Of a GPU in MIG mode, the processes of the granted
// instances are waited for: the driver lists them at the GPU, each with its instance.
func (w *Watch) AwaitFree(ctx context.Context, gpus []string, note func(sentence string)) error {
	if w.cfg.Device.Samples == nil || len(gpus) == 0 {
		return nil
	}
	owner := w.watcher.Owner
	if owner == nil {
		owner = gpu.OwnerOf
	}
	parts := w.parts(gpus)
	noted := ""
	end := time.Now().Add(freePatience)
	for wait := freePollMin; ; wait = min(2*wait, freePollMax) {
		within, cancel := context.WithTimeout(ctx, driverPatience)
		samples, err := w.cfg.Device.Samples(within)
		cancel()
		if err != nil {
			return ctx.Err()
		}
		held := leftovers(samples, parts, owner, w.ended)
		if held == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s; it was not released within %s", held, freePatience)
		}
		if held != noted {
			noted = held
			note("Waiting for GPU memory: " + held)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

// part is a whole GPU (gi -1) or one of its MIG instances, with the UUID that was granted.
type part struct {
	gi   int64
	uuid string
}

// parts returns what was granted, by the UUID of the GPU.
func (w *Watch) parts(granted []string) map[string][]part {
	out := map[string][]part{}
	for _, uuid := range granted {
		p, of := part{-1, uuid}, uuid
		if w.cfg.Device.Instance != nil {
			if parent, gi, ok := w.cfg.Device.Instance(uuid); ok {
				p.gi, of = gi, parent
			}
		}
		out[of] = append(out[of], p)
	}
	return out
}

// ended reports whether an allocation has ended, or is not known here.
func (w *Watch) ended(id structs.AllocID) bool {
	a := w.node.Alloc(id)
	return a == nil || a.Ended()
}

// leftovers returns a sentence about a process that has ended, or whose allocation has, and holds memory of one of the
// parts; "" if there is none.
func leftovers(samples []gpu.Sample, parts map[string][]part, owner func(pid int) (structs.AllocID, string, bool), ended func(structs.AllocID) bool) string {
	for i := range samples {
		for _, p := range samples[i].Processes {
			k := slices.IndexFunc(parts[samples[i].UUID], func(x part) bool { return x.gi < 0 || x.gi == p.GI })
			if k < 0 {
				continue
			}
			uuid, amount := parts[samples[i].UUID][k].uuid, "memory"
			if p.Bytes >= 0 {
				amount = fmt.Sprintf("%d MiB", p.Bytes>>20)
			}
			id, task, ok := owner(p.PID)
			if !ok && dead(p.PID) {
				return fmt.Sprintf("GPU %s has not released %s of process %d, which is dead", uuid, amount, p.PID)
			}
			if ok && ended(id) {
				return fmt.Sprintf("process %d of task %q of allocation %s, which has ended, holds %s of GPU %s", p.PID, task, id.Short(), amount, uuid)
			}
		}
	}
	return ""
}

// dead reports whether a process does not exist, or is a zombie.
func dead(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return os.IsNotExist(err)
	}
	i := strings.LastIndex(string(b), ") ") // the end of the program's name, which may have one, too
	return i >= 0 && (strings.HasPrefix(string(b[i+2:]), "Z") || strings.HasPrefix(string(b[i+2:]), "X"))
}
