package gpuwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// migLooks is at how many looks in a row a task's MIG instance must be absent before the task is ended. Its GPU may
// already be granted to others as a whole.
const migLooks = 3

// report notes an error of a GPU at the tasks that have the GPU; one that a task's own process caused, at that task.
func (w *Watch) report(ctx context.Context, e gpu.Report) {
	kind, cause := eventFault, "a program's fault"
	if e.Device {
		kind, cause = structs.TaskEventGPUError, "the device's fault"
	}
	have := w.grants()
	if i := slices.IndexFunc(have, func(q gpu.Quota) bool { return q.Alloc == e.Alloc && q.Task == e.Task }); i >= 0 {
		have = slices.DeleteFunc(have, func(q gpu.Quota) bool { return q.Alloc != e.Alloc || q.Task != e.Task })
	}
	for _, q := range have {
		if a := w.node.Alloc(q.Alloc); a != nil && slices.Contains(e.Devices, q.GPU) {
			a.NoteGPU(ctx, q.Task, kind, fmt.Sprintf("GPU %s: %s, %s", q.GPU, e.Text, cause), "gpu", q.GPU, "xid", strconv.FormatInt(e.XID, 10))
		}
	}
}

// health notes at tasks that the health of their GPUs changed, and ends those whose MIG instance was destroyed.
func (w *Watch) health(ctx context.Context, have []gpu.Quota) {
	state := map[string]string{}
	for _, g := range w.node.Node().Resources.Devices {
		for _, in := range g.Instances {
			if state[in.ID] = in.HealthDesc; !in.Healthy && in.HealthDesc == "" {
				state[in.ID] = "unhealthy"
			}
		}
	}
	ill, missing := map[gpu.Quota]string{}, map[gpu.Quota]int{}
	for _, q := range have {
		now, known := state[q.GPU]
		if !known {
			now = "it is no longer on this node"
		}
		ill[q] = now
		a := w.node.Alloc(q.Alloc)
		if a == nil {
			continue
		}
		if !known && q.Backend == structs.BackendMIG && len(state) > 0 {
			if missing[q] = w.missing[q] + 1; missing[q] == migLooks {
				w.lose(a, q, errors.New("the MIG instance is no longer on this node"))
			}
		}
		if w.ill[q] == now {
			continue
		}
		msg := "GPU " + q.GPU + " is healthy again"
		if now != "" {
			msg = "GPU " + q.GPU + ": " + now
		}
		a.NoteGPU(ctx, q.Task, eventHealth, msg, "gpu", q.GPU)
	}
	w.ill, w.missing = ill, missing
}
