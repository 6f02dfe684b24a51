package gpuwatch

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/structs"
)

// TestAwaitFree: a task waits for the memory of processes that are dead or whose allocation has ended, with an event,
// and for nothing else; it does not start if the memory is not released.
func TestAwaitFree(t *testing.T) {
	const gone = 1 << 29    // beyond the pids of any machine
	const mig, other = 3, 4 // instances of the GPU; the task is granted the first
	for what, c := range map[string]struct {
		pid   int
		waits bool
		gi    int64 // of the process; the task is granted an instance, unless 0
	}{
		"a dead process": {gone, true, 0}, "an ended allocation's": {1, true, 0}, "a running allocation's": {2, false, 0},
		"another program": {os.Getpid(), false, 0}, "another GPU": {-1, false, 0},
		"a dead process of the MIG instance": {gone, true, mig}, "an ended allocation's of the MIG instance": {1, true, mig},
		"a dead process of another MIG instance": {gone, false, other}, "an ended allocation's of another MIG instance": {1, false, other},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode("")
				n.place("", 0).ended = true
				n.place("", 100)
				w := New(Config{Device: Device{Samples: n.Samples, Instance: func(uuid string) (string, int64, bool) { return gpu1, mig, uuid == "MIG-1" }}}, n, hclog.NewNullLogger())
				w.watcher.Owner = func(pid int) (structs.AllocID, string, bool) {
					return structs.AllocID{byte(pid)}, train, pid == 1 || pid == 2
				}
				hold := func(ps ...gpu.Process) {
					n.mu.Lock()
					defer n.mu.Unlock()
					n.samples = []gpu.Sample{{UUID: gpu1, Processes: ps}, {UUID: "GPU-2", Processes: []gpu.Process{{PID: gone}}}}
				}
				granted, gi := gpu1, int64(-1)
				if c.gi != 0 {
					granted, gi = "MIG-1", c.gi
				}
				if hold(); c.pid > 0 {
					hold(gpu.Process{PID: c.pid, Bytes: 300 * mib, GI: gi})
				}
				await := func(ctx context.Context) (notes []string, took time.Duration, err error) {
					began := time.Now()
					err = w.AwaitFree(ctx, []string{granted}, func(s string) { notes = append(notes, s) })
					return notes, time.Since(began), err
				}
				if !c.waits {
					if notes, took, err := await(t.Context()); err != nil || took > 0 || notes != nil {
						t.Errorf("waited %s, %v, %q", took, err, notes)
					}
					return
				}
				notes, took, err := await(t.Context())
				if err == nil || !strings.Contains(err.Error(), "not released within 30s") || took < freePatience || took > freePatience+5*time.Second || len(notes) != 1 || !strings.Contains(notes[0], "300 MiB") {
					t.Errorf("waited %s, %v, %q", took, err, notes)
				}
				time.AfterFunc(5*time.Second, func() { hold() })
				if _, took, err := await(t.Context()); err != nil || took < 5*time.Second || took > 7*time.Second {
					t.Errorf("released after 5 s: waited %s, %v", took, err)
				}
				hold(gpu.Process{PID: c.pid, GI: gi})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, took, err := await(ctx); err == nil || took > 2*time.Second {
					t.Errorf("a stopped task waits %s, %v", took, err)
				}
				n.mu.Lock()
				n.down = errDown
				n.mu.Unlock()
				if _, took, err := await(t.Context()); err != nil || took > 0 {
					t.Errorf("a driver that does not answer: waited %s, %v", took, err)
				}
			})
		})
	}
}
