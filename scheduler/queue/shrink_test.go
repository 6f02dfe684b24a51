package queue

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// An elastic gang does not shrink within preempt_min_runtime of its last resize, which restarted its members, even if its
// members are older. After that time it does, even if a member that it lost does not end.
func TestGangDoesNotShrinkAgain(t *testing.T) {
	start := func() (f *floor, gang, high *floorJob) {
		f = newFloor(t, 1, 4)
		f.queues[0].Preempt = structs.PreemptNone
		gang = f.submit(1, 4, 100*time.Hour, true)
		g := gang.job.Groups[0]
		gang.job.AllAtOnce, g.Gang, g.Elastic = false, &structs.Gang{}, &structs.Elastic{Min: 1, Max: 4}
		f.settle(structs.OrderFCFS)
		f.wait(10*time.Minute, func(*floorJob) bool { return false })
		for range 2 {
			high = f.submit(1, 1, time.Hour, false)
			high.job.Priority, high.entry.Priority = 60, 60
		}
		return f, gang, high
	}
	never := func(*floorJob) bool { return false }

	f, gang, _ := start()
	f.resized = []contend.GangTimes{{Job: structs.JobKey{Namespace: "default", ID: "a"}, Group: "g", At: 1}, {Job: gang.job.Key(), Group: "g", At: f.now.Add(-10 * time.Second)}}
	f.settle(structs.OrderFCFS)
	if n := len(gang.allocs); n != 4 {
		t.Errorf("10 s after its last resize the gang has %d members, want 4", n)
	}
	f.wait(50*time.Second, never)
	f.settle(structs.OrderFCFS)
	if n := len(gang.allocs); n != 2 {
		t.Errorf("a minute after its last resize the gang has %d members, want 2: two jobs of a higher priority wait", n)
	}

	f, gang, _ = start()
	f.jobs = f.jobs[:2]
	f.slow = true
	if s, _ := f.pass(structs.OrderFCFS); s != 1 {
		t.Fatalf("%d members are stopped, want 1", s)
	}
	late := f.submit(1, 1, time.Hour, false)
	late.job.Priority, late.entry.Priority = 60, 60
	f.resized = []contend.GangTimes{{Job: gang.job.Key(), Group: "g", At: f.now}} // as the roster has it since the stop
	f.now = f.now.Add(59 * time.Second)
	if s, _ := f.pass(structs.OrderFCFS); s != 0 {
		t.Errorf("%d more members are stopped within a minute of the first", s)
	}
	f.now = f.now.Add(time.Second)
	if s, _ := f.pass(structs.OrderFCFS); s != 1 {
		t.Errorf("%d more members are stopped a minute after the first, which still ends; want 1", s)
	}
}
