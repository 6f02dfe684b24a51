package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/telemetry"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// The use of GPUs follows from the grants.
func TestGPUMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 2)
		_ = f
		got := s.Metrics().Samples()
		used, ok := got.Find("muster_cluster_gpu_allocated_ratio")
		pressure, _ := got.Find("muster_cluster_gpu_pressure_ratio")
		if !ok || used != 0 || pressure > 1 {
			t.Errorf("of an empty cluster: %v, %v used, pressure %v", ok, used, pressure)
		}
	})
}

// A group sums over its GPUs.
func TestGPUGroup(t *testing.T) {
	var g gpuGroup
	for _, x := range []gpuFreeCase{{1000, 100, 80000, false, true}, {250, 250, 20000, false, true}, {0, 0, 0, true, true}, {1000, 0, 80000, false, false}} {
		g.add(x.free())
	}
	want := map[string]float64{"gpus": 3, "idle": 1, "allocated_ratio": 1750. / 3000, "shared_free_ratio": 0.2, "fragmentation_ratio": 350. / 1250, "pressure_ratio": (1750. + 350) / 3000}
	var got telemetry.Samples
	gpuOfCluster.Give(&got, &g)
	for _, x := range got {
		name := strings.TrimPrefix(x.Name, "muster_cluster_gpu_")
		if w, ok := want[name]; !ok || x.Value < w-1e-5 || x.Value > w+1e-5 {
			t.Errorf("%s is %v, want %v", name, x.Value, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d metrics of a group, want %d", len(got), len(want))
	}
}

// Short work that passes a job with a reservation is counted as backfilled.
func TestBackfilledIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, nil)
		f := newFleet(t, one(s), 1)
		node := s.Published().Snapshot
		cpu := int64(0)
		for n := range node.Nodes() {
			cpu = n.Resources.CPU
		}
		job := func(id string, share int64, limit time.Duration) *structs.Job {
			f.set(func() { f.runs[id] = limit })
			return passJob(id, 1, func(j *structs.Job) {
				j.Type, j.Runtime.Limit, j.Groups[0].Reschedule = structs.JobBatch, limit, structs.Reschedule{}
				j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: cpu * share / 100, MemoryMiB: 10}
			})
		}
		register(t, s, job("half", 50, time.Hour))
		time.Sleep(2 * time.Second)
		register(t, s, job("whole", 90, time.Hour))
		time.Sleep(2 * time.Second)
		register(t, s, job("small", 20, 10*time.Minute))
		time.Sleep(10 * time.Second)
		if got := running(s, "small"); got != 1 {
			t.Fatalf("the small job does not run: got %v, want 1", got)
		}
		p := s.decide.Metrics()
		if p.Backfilled == 0 || p.Reservations.Made == 0 {
			t.Errorf("counted %d backfilled, %+v", p.Backfilled, p.Reservations)
		}
		if c := s.clusterMetrics(); c.reservation != 1 {
			t.Errorf("%d jobs have a reservation, want 1", c.reservation)
		}
		time.Sleep(2 * time.Hour)
		if p := s.decide.Metrics(); p.Reservations.Kept+p.Reservations.Late == 0 {
			t.Errorf("the big job ran, its reservation: %+v", p.Reservations)
		}
	})
}

type gpuFreeCase struct {
	milli, fragmented, mib int64
	whole, healthy         bool
}

func (c gpuFreeCase) free() *model.GPUFree {
	return &model.GPUFree{FreeMilli: c.milli, Fragmented: c.fragmented, FreeMiB: c.mib, Whole: c.whole, Healthy: c.healthy}
}
