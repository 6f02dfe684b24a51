// Package gcpace sets how much garbage a process may allocate before Go's collector runs. Go's default, as many bytes
// as are live, is too little for a process with a small state and much traffic: a server with 20 MiB of state collected
// several times a second under load, which took a quarter of its processor time. Here the allowance is the live bytes,
// but at least Room.Min and at most Room.Max, so that a large state does not double. What is free beyond that goes back
// to the system.
package gcpace

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
)

// Room is how many bytes may be allocated between two collections.
type Room struct{ Min, Max uint64 }

// The rooms of Muster's processes.
var (
	Server = Room{Min: 256 << 20, Max: 352 << 20}
	Node   = Room{Min: 16 << 20, Max: 64 << 20}  // an agent that only runs tasks: the memory it takes is lost to them
	Nodes  = Room{Min: 64 << 20, Max: 640 << 20} // many simulated nodes
)

const (
	percentMax = 2000
	percentMin = 25
)

// percent returns the GOGC value that gives the room for so many live bytes. The runtime takes the percentage of roots as
// well, the bytes of stacks and globals: a process with a goroutine for each of its tasks has more of them than live bytes.
func (r Room) percent(live, roots uint64) int {
	live = max(live, 1<<20)
	room := min(max(live, r.Min), max(r.Max, r.Min))
	return int(min(max(room*100/(live+roots), percentMin), percentMax))
}

// slack is what the process may keep from the system above its heap at the largest: an eighth of it for spans that are
// half full, and as much again as a small process needs.
const slack = 64 << 20

// limit returns the memory limit for so many bytes: what is live, the garbage that GOGC allows, and the slack. Without
// it, memory that a burst took goes back to the system over minutes only; a server that had placed 500,000 allocations
// kept almost as much free memory as it had live.
func limit(live, roots uint64, percent int) int64 {
	heap := (max(live, 1<<20) + roots) * uint64(100+percent) / 100
	return int64(heap + heap/8 + slack)
}

var started atomic.Bool

// Start adjusts GOGC and the memory limit after each collection until the process ends. It runs on the runtime's finalizer goroutine. It
// does nothing if the environment sets GOGC, and nothing on a second call.
func Start(r Room) {
	if os.Getenv("GOGC") != "" || !started.CompareAndSwap(false, true) {
		return
	}
	p := &pacer{room: r, most: debug.SetMemoryLimit(-1), sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}}
	p.set()
	p.again()
}

type pacer struct {
	room   Room
	now    int   // GOGC
	most   int64 // the memory limit from outside: GOMEMLIMIT, or what the process set before
	limit  int64
	sample []metrics.Sample // live bytes, then what else the runtime counts
}

// tick is garbage that every collection frees; its finalizer reports the collection. It has a pointer so that the
// runtime does not batch it with other tiny objects.
type tick struct{ p *pacer }

func (p *pacer) again() {
	runtime.SetFinalizer(&tick{p}, func(t *tick) {
		t.p.set()
		t.p.again()
	})
}

// set changes GOGC only when it is off by more than a tenth, because each change stops the world for a moment, and the
// memory limit when it is off by more than a twentieth.
func (p *pacer) set() {
	metrics.Read(p.sample)
	for _, s := range p.sample {
		if s.Value.Kind() != metrics.KindUint64 {
			return
		}
	}
	live, roots := p.sample[0].Value.Uint64(), p.sample[1].Value.Uint64()+p.sample[2].Value.Uint64()
	want := p.room.percent(live, roots)
	if d := limit(live, roots, want) - p.limit; d*20 > p.limit || -d*20 > p.limit {
		p.limit += d
		debug.SetMemoryLimit(min(p.most, p.limit))
	}
	if d := want - p.now; d*10 > p.now || -d*10 > p.now {
		p.now = want
		debug.SetGCPercent(want)
	}
}
