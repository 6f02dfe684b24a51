package wire

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// deviceTarget returns the name of a target that is about a device: "ids" of "${device.ids}".
func deviceTarget(target string) (string, bool) {
	name, ok := strings.CutPrefix(target, "${")
	if name, ok = strings.CutSuffix(name, "}"); !ok {
		return "", false
	}
	return strings.CutPrefix(strings.TrimSpace(name), "device.")
}

// deviceConditions checks the targets of conditions on the devices of one block: they see nothing else.
func (v *validator) deviceConditions(w string, cs []*Constraint, as []*Affinity) {
	eachTarget(w, cs, as, func(w, target string) {
		if _, ok := deviceTarget(target); !ok && strings.HasPrefix(target, "${") {
			v.errorf(w, "%.64q is not about a device: here are ${device.model}, ${device.vendor}, ${device.type}, ${device.ids}, ${device.rdma} and ${device.attr.NAME}; put it into the task, the group or the job", target)
		}
	})
}

// nodeConditions checks the targets of conditions of a task, group or job. Of devices they see the IDs only, and asks
// says whether there are devices that these could be of.
func (v *validator) nodeConditions(w string, cs []*Constraint, as []*Affinity, asks bool) {
	eachTarget(w, cs, as, func(w, target string) {
		switch name, ok := deviceTarget(target); {
		case ok && "device."+name != structs.DeviceIDs:
			v.errorf(w, "%.64q is about a device: put it into the device or gpu block that asks for it", target)
		case ok && !asks:
			v.errorf(w, "%.64q: no task here asks for a device; add a gpu or device block to its resources", target)
		}
	})
}

func eachTarget(where string, cs []*Constraint, as []*Affinity, check func(w, target string)) {
	for i, c := range cs {
		if c != nil {
			w := prefix(where, fmt.Sprintf("constraint %d", i+1))
			check(w, c.LTarget)
			check(w, c.RTarget)
		}
	}
	for i, a := range as {
		if a != nil {
			w := prefix(where, fmt.Sprintf("affinity %d", i+1))
			check(w, a.LTarget)
			check(w, a.RTarget)
		}
	}
}

// asksDevices reports whether a task asks for GPUs or other devices.
func asksDevices(t *Task) bool {
	return t != nil && t.Resources != nil && (t.Resources.GPU != nil || len(t.Resources.Devices) > 0)
}

func groupAsksDevices(g *TaskGroup) bool {
	return g != nil && slices.ContainsFunc(g.Tasks, asksDevices)
}
