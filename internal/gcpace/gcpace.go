// Package gcpace sets how much garbage a process may gather before Go's collector runs. The default, as much as is live,
// is little for a process whose state is small and whose traffic is not: a server with 20 MiB of state collected several
// times a second under load, and that took a quarter of its processor time. The rule here is a room in bytes: at least
// Room.Min, else as much as is live, at most Room.Max, so that a large state does not double.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// Room is how much may be allocated between two collections, in bytes.
type Room struct{ Min, Max uint64 }

// The rooms of the processes of Muster.
var (
	Server = Room{Min: 256 << 20, Max: 640 << 20}
	Node   = Room{Min: 16 << 20, Max: 64 << 20}  // an agent that only runs tasks: its memory is the tasks' loss
	Nodes  = Room{Min: 64 << 20, Max: 640 << 20} // many simulated nodes
)

const (
	percentMax = 2000
	percentMin = 25
)

// percent returns the GOGC that gives the room for so many live bytes.
func (r Room) percent(live uint64) int {
	live = max(live, 1<<20)
	room := min(max(live, r.Min), max(r.Max, r.Min))
	return int(min(max(room*100/live, percentMin), percentMax))
}

var started atomic.Bool

// Start keeps the pace until the process ends: after each collection it sets the one of the next. It runs on the
// runtime's finalizer goroutine. It does nothing where the environment sets GOGC, and nothing the second time.
func Start(r Room) {
	if os.Getenv("GOGC") != "" || !started.CompareAndSwap(false, true) {
		return
	}
	p := &pacer{room: r, sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	p.set()
	p.again()
}

type pacer struct {
	room   Room
	now    int
	sample []metrics.Sample
}

// tick is collected by every collection, and says so by its finalizer. It has a pointer so that it is not batched with
// other tiny objects.
type tick struct{ p *pacer }

func (p *pacer) again() {
	runtime.SetFinalizer(&tick{p}, func(t *tick) {
		t.p.set()
		t.p.again()
	})
}

// set changes the pace when it is off by more than a tenth: each change stops the world for a moment.
func (p *pacer) set() {
	metrics.Read(p.sample)
	if p.sample[0].Value.Kind() != metrics.KindUint64 {
		return
	}
	want := p.room.percent(p.sample[0].Value.Uint64())
	if d := want - p.now; d*10 > p.now || -d*10 > p.now {
		p.now = want
		debug.SetGCPercent(want)
	}
}
