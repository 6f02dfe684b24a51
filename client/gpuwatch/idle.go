package gpuwatch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// taskOf names a task of an allocation.
type taskOf struct {
	alloc structs.AllocID
	name  string
}

// idle notifies tasks that have computed nothing on their GPUs for Config.Idle. A task is notified again only after it has
// computed.
func (w *Watch) idle(ctx context.Context) {
	if w.cfg.Idle <= 0 {
		return
	}
	idling := w.newlyIdle(w.Uses(), func(t taskOf) bool {
		a := w.node.Alloc(t.alloc)
		return a != nil && a.Active(t.name)
	})
	for t, gpus := range idling {
		if a := w.node.Alloc(t.alloc); a != nil {
			a.NoteGPU(ctx, t.name, eventIdle, fmt.Sprintf("GPU %s: nothing has been computed for %s", strings.Join(gpus, ", "), w.cfg.Idle), "gpu", strings.Join(gpus, ","))
		}
	}
}

// newlyIdle returns the GPUs to notify each task of. Time during which a task is not active, because it has not started or
// is suspended, does not count: it could not compute.
func (w *Watch) newlyIdle(uses []gpu.TaskUsage, active func(taskOf) bool) map[taskOf][]string {
	idled, paused, out := map[gpu.Quota]bool{}, map[gpu.Quota]time.Time{}, map[taskOf][]string{}
	for _, u := range uses {
		t := taskOf{u.Alloc, u.Task}
		if u.Idle.IsZero() {
			continue
		}
		if !active(t) {
			paused[u.Quota], idled[u.Quota] = u.Measured, w.idled[u.Quota]
			continue
		}
		since := u.Idle
		if p := w.paused[u.Quota]; !p.IsZero() {
			if paused[u.Quota] = p; p.After(since) {
				since = p
			}
		}
		if !w.idled[u.Quota] && u.Measured.Sub(since) < w.cfg.Idle {
			continue
		}
		if idled[u.Quota] = true; !w.idled[u.Quota] {
			out[t] = append(out[t], u.GPU)
		}
	}
	w.idled, w.paused = idled, paused
	return out
}
