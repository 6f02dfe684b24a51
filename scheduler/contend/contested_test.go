package contend

import (
	"testing"

	"github.com/muster-sched/muster/structs"
)

// TestContested: work that asks for GPUs, or for GPU memory alone, competes for those, and other work for processors.
func TestContested(t *testing.T) {
	a := structs.Amount{GPUMilli: 1, GPUMemoryMiB: 2, CPU: 3, MemoryMiB: 4}
	for ask, want := range map[structs.Amount][2]int64{
		{GPUMilli: 1000, CPU: 100}: {1, 2}, {GPUMemoryMiB: 1024, CPU: 100}: {1, 2}, {CPU: 100, MemoryMiB: 64}: {3, 4}, {}: {3, 4},
	} {
		if got := contested(a, ask); got != want {
			t.Errorf("work that asks for %+v competes for %v, want %v", ask, got, want)
		}
	}
}
