//go:build e2e

package docker

import (
	"fmt"
	"testing"
	"time"
)

func (n *node) limits(t *testing.T) {
	if out, err := n.muster("operator", "scheduler", "set-config", "-memory-oversubscription=true"); err != nil {
		t.Fatal(out)
	}
	// Under load the engine now and then misses an OOM itself: its shim reads of it only while the container's cgroup exists.
	for try := 1; ; try++ {
		job, since := fmt.Sprint("hog", try), time.Now()
		n.run(t, job, "batch", box("hog", "200"), "")
		a := n.alloc(t, job, "failed")
		wantText(t, "events", events(a), "Exit Code: 137")
		if n.engine.sawOOM(t, since, time.Now()) {
			wantText(t, "events", events(a), "OOM Killed")
			break
		}
		if try == 5 {
			t.Fatal("the engine saw none of 5 tasks run out of memory")
		}
		t.Logf("try %d: the engine missed that the task ran out of memory", try)
	}
	n.run(t, "bounded", "service", "resources {\n cores = 1\n memory = 32\n memory_max = 64\n}\n"+boxWith("pids_limit = 50\n cpu_hard_limit = true", "sleep", "600"), "")
	h := n.container(t, n.alloc(t, "bounded", "running")).HostConfig
	if h.Memory != 64<<20 || h.MemoryReservation != 32<<20 || h.PidsLimit == nil || *h.PidsLimit != 50 || h.CpusetCpus == "" || h.CPUQuota == 0 {
		t.Errorf("memory %d reservation %d pids %v cpuset %q quota %d", h.Memory, h.MemoryReservation, h.PidsLimit, h.CpusetCpus, h.CPUQuota)
	}
}
