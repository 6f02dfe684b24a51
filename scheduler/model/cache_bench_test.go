package model

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/structs"
)

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

// BenchmarkCaches computes a figure of all 2,000 nodes of a view, of which one has changed since the last time, with
// each cache of the model and without it.
func BenchmarkCaches(b *testing.B) {
	const rows, now = 2000, structs.LogTime(1000 * time.Hour)
	each := func(v *View, f func(row int, c *Chunk, i int)) {
		for row := range v.Rows {
			c, i := v.At(row)
			f(row, c, i)
		}
	}
	for _, c := range []struct {
		name   string
		held   int         // on each node
		forget func(*View) // nil: the cache is on
		ask    func(*View)
	}{
		{"release-times/on", 8, nil, func(v *View) { each(v, func(row int, c *Chunk, i int) { v.ReleaseTimes(row, c.Hold[i], now) }) }},
		{"release-times/off", 8, func(v *View) { each(v, func(_ int, c *Chunk, i int) { c.Hold[i].releases.Store(nil) }) }, func(v *View) { each(v, func(row int, c *Chunk, i int) { v.ReleaseTimes(row, c.Hold[i], now) }) }},
		{"last-of-row/on", 200, nil, func(v *View) { each(v, func(row int, c *Chunk, i int) { v.ReleaseTimes(row, c.Hold[i], now) }) }},
		{"last-of-row/off", 200, func(v *View) { v.memo.releases = nil }, func(v *View) { each(v, func(row int, c *Chunk, i int) { v.ReleaseTimes(row, c.Hold[i], now) }) }},
		{"live-mix/on", 8, nil, func(v *View) { v.LiveMix() }},
		{"live-mix/off", 8, func(v *View) { v.memo.live = liveShapes{} }, func(v *View) { v.LiveMix() }},
		{"free-blocks/on", 8, nil, freeBlocks},
		{"free-blocks/off", 8, func(v *View) {
			for _, c := range v.Chunks {
				for k := range c.freeBlocks {
					c.freeBlocks[k].Store(nil)
				}
			}
		}, freeBlocks},
	} {
		b.Run(c.name, func(b *testing.B) {
			var nodes []*structs.Node
			var allocs []*structs.Allocation
			for i := range rows {
				n := &structs.Node{ID: structs.NodeID{byte(i >> 8), byte(i)}}
				n.Resources.CPU, n.Resources.MemoryMiB = 1_000_000, 1_000_000
				nodes = append(nodes, n)
				for k := range c.held {
					allocs = append(allocs, &structs.Allocation{ID: structs.AllocID{1, byte(i >> 8), byte(i), byte(k)}, NodeID: n.ID, Client: structs.ClientRunning, Desired: structs.DesiredRun,
						Resources: structs.Vector{CPU: 1, MemoryMiB: 1}, CreateTime: now.Add(-time.Hour), Expect: time.Duration(2+k*i%97) * time.Hour})
				}
			}
			v := NewView(1, nodes, allocs, nil)
			c.ask(v)
			var cpu time.Duration
			n := 0
			for b.Loop() {
				n++
				v = v.Advance(structs.Delta{Index: v.Index() + 1, Allocs: []structs.Changed[structs.Allocation]{{After: &structs.Allocation{ID: structs.AllocID{2, byte(n >> 8), byte(n)}, NodeID: nodes[n%rows].ID,
					Client: structs.ClientRunning, Desired: structs.DesiredRun, Resources: structs.Vector{CPU: 1}, CreateTime: now, Expect: time.Hour}}}})
				if c.forget != nil {
					c.forget(v)
				}
				cpu += cpuOf(func() { c.ask(v) })
			}
			b.ReportMetric(float64(cpu.Nanoseconds())/float64(n), "cpu-ns/op")
		})
	}
}

func freeBlocks(v *View) {
	for _, c := range v.Chunks {
		for from := 0; from < len(c.IDs); from += BlockRows {
			c.FreeBlockAt(from)
		}
	}
}
