package gpuwatch

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// TestGPUIdleCounts: a task gets one event that its GPU is idle, and only time counts in which it could have computed:
// not the time before it runs, and not while it is suspended.
func TestGPUIdleCounts(t *testing.T) {
	w := &Watch{cfg: Config{Idle: 30 * time.Minute}}
	begin := time.Unix(1e9, 0)
	use := gpu.TaskUsage{Quota: gpu.Quota{Alloc: structs.AllocID{1}, Task: "t", GPU: "GPU-1"}, Idle: begin}
	for _, c := range []struct {
		minute int
		goes   bool
		busy   bool
		told   bool
		what   string
	}{
		{29, false, false, false, "its data is fetched"},
		{40, false, false, false, "still"},
		{45, true, false, false, "it runs for 5 minutes"},
		{69, true, false, false, "for 29"},
		{71, true, false, true, "for 31"},
		{72, true, false, false, "it is told once"},
		{80, false, false, false, "suspended"},
		{81, true, false, false, "it has been told"},
		{90, true, true, false, "it computes"},
		{110, true, false, false, "idle for 20"},
		{200, false, false, false, "suspended for long"},
		{201, true, false, false, "resumed"},
		{229, true, false, false, "for 29 minutes"},
		{231, true, false, true, "for 31"},
	} {
		use.Measured = begin.Add(time.Duration(c.minute) * time.Minute)
		if use.Idle.IsZero() {
			use.Idle = begin.Add(90 * time.Minute)
		}
		if c.busy {
			use.Idle = time.Time{}
		}
		news := w.newlyIdle([]gpu.TaskUsage{use}, func(taskOf) bool { return c.goes })
		if got := len(news) == 1; got != c.told {
			t.Errorf("minute %d (%s): told %v, want %v", c.minute, c.what, got, c.told)
		}
	}
}
