package search_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// busyNodes are n nodes with 8 GPUs, of which all are held but on every twentieth node.
func busyNodes(n int) *model.View {
	nodes, allocs := make([]*structs.Node, n), []*structs.Allocation(nil)
	for i := range nodes {
		x := &structs.Node{ID: structs.NodeID{byte(i >> 8), byte(i)}, Name: fmt.Sprintf("n%d", i), Datacenter: "dc1", Pool: structs.NodePoolDefault, Status: structs.NodeReady, Eligibility: structs.NodeEligible}
		x.Resources.CPU, x.Resources.MemoryMiB, x.Resources.DiskMiB = 16_000, 256_000, 1_000_000
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		for k := range 8 {
			g.Instances = append(g.Instances, structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, MemoryMiB: 80_000})
			if i%20 != 0 || k < i/20%8 {
				allocs = append(allocs, &structs.Allocation{ID: structs.AllocID{1, byte(i >> 8), byte(i), byte(k)}, NodeID: x.ID, JobID: "other", Group: "g", Client: structs.ClientRunning,
					Desired: structs.DesiredRun, Resources: structs.Vector{CPU: 100, MemoryMiB: 100}, Grants: []structs.Grant{{Task: "t", Device: g.ID(), Instance: g.Instances[k].ID, SizeMiB: 80_000}}})
			}
		}
		x.Resources.Devices = []structs.DeviceGroup{g}
		nodes[i] = x
	}
	return model.NewView(1, nodes, allocs, nil)
}

// BenchmarkRemembered is one search on 2,000 nodes of which most are full, after one node has changed: with the caches
// of earlier passes, and without a part of them.
func BenchmarkRemembered(b *testing.B) {
	noTwins := func(v *model.View) { search.HoldTwins(v, string(structs.NodePoolDefault)) }
	for _, c := range []struct {
		name   string
		forget func(*model.View)
	}{{"all", func(*model.View) {}}, {"no-ledgers", search.ForgetLedgers}, {"no-twins", noTwins},
		{"no-twins-or-shortfalls", func(v *model.View) { noTwins(v); search.ForgetShortfalls(v) }}} {
		b.Run(c.name, func(b *testing.B) {
			v := busyNodes(2000)
			j := &structs.Job{Namespace: "default", ID: "j", Type: structs.JobBatch, NodePool: structs.NodePoolDefault, Datacenters: []string{"dc1"}}
			j.Groups = []*structs.Group{{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 100, GPU: []structs.GPURequest{{Count: 1}}}}}}}
			var cpu time.Duration
			n := 0
			for b.Loop() {
				cpu += cpuOf(func() {
					w := search.NewPass(v, model.Overlay{})
					s := search.New(match.CompileAsk(j, j.Groups[0], ""), w, policy.Builtin[structs.AlgorithmDefault], 0)
					if _, ok := s.Place(structs.AllocID{2}, nil, -1); !ok {
						b.Fatal("no place")
					}
					s.Done()
					w.Release()
				})
				n++
				v = v.Advance(structs.Delta{Index: v.Index() + 1, Allocs: []structs.Changed[structs.Allocation]{{After: &structs.Allocation{ID: structs.AllocID{3, byte(n >> 8), byte(n)},
					NodeID: structs.NodeID{byte(n % 2000 >> 8), byte(n % 2000)}, JobID: "o", Group: "g", Resources: structs.Vector{CPU: 1, MemoryMiB: 1}, Client: structs.ClientRunning, Desired: structs.DesiredRun}}}})
				c.forget(v)
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(n), "cpu-ns/op")
		})
	}
}

// cpuOf is the processor time that f takes.
func cpuOf(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var from, to unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &from)
	f()
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &to)
	return time.Duration(to.Nano() - from.Nano())
}

// BenchmarkProfiles computes the profiles of 2,000 rows with reservations, as every search of a pass does, with and
// without the cached ones.
func BenchmarkProfiles(b *testing.B) {
	for _, on := range []bool{true, false} {
		b.Run(fmt.Sprint(on), func(b *testing.B) {
			v := busyNodes(2000)
			w := search.NewPass(v, model.Overlay{})
			defer w.Release()
			r := search.Reservations{W: w, Now: structs.LogTime(time.Hour)}
			for row := range v.Rows {
				r.Reserve(row, &model.ReservedPlace{Start: structs.LogTime(2 * time.Hour), Held: &model.Held{ID: structs.AllocID{9, byte(row >> 8), byte(row)}, Need: structs.Vector{CPU: 100}}})
			}
			var cpu time.Duration
			n := 0
			for b.Loop() {
				if !on {
					r.ForgetProfiles()
				}
				cpu += cpuOf(func() {
					for row := range v.Rows {
						c, i := v.At(row)
						o := w.Get(row)
						r.At(row, c, i, &o)
					}
				})
				n++
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(n), "cpu-ns/op")
		})
	}
}
