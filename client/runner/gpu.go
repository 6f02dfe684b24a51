package runner

import (
	"fmt"
	"strconv"
)

// ExceedGPU ends the allocation because one of its tasks holds more of a GPU's memory than its share.
func (r *Runner) ExceedGPU(task, uuid string, quotaMiB, usedMiB int64) {
	if r.Final() != nil {
		return
	}
	msg := fmt.Sprintf("task %q holds %d MiB of GPU %s; its share is %d MiB", task, usedMiB, uuid, quotaMiB)
	r.stop(&stopReason{event: failing(event(EventGPUMemory, msg, "gpu", uuid, "quota_mib", strconv.FormatInt(quotaMiB, 10), "used_mib", strconv.FormatInt(usedMiB, 10))), fail: true, desc: msg})
}
