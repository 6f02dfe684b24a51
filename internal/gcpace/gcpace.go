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
	Server = Room{Min: 256 << 20, Max: 256 << 20}
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

// slack is what the process may keep from the system above what it uses at the largest: an eighth of its heap for spans that
// become half full, and as much again as a small process needs.
const slack = 32 << 20

// limit returns the memory limit for a process with so many live bytes: those, the garbage that GOGC allows, what else the
// runtime uses, and the slack. Without it, memory that a burst took goes back to the system over minutes only; a server that had
// placed 500,000 allocations kept almost as much free memory as it had live.
//
// spans is what is not free of the heap, others what is not heap: stacks, and what the runtime knows of the heap. Naive: leave
// both to the slack. The runtime counts the holes between live objects as used, so a heap that shrank, or a goroutine for
// each of many connections, would have it collect all the time, in vain.
func limit(live, roots, spans, others uint64, percent int) int64 {
	heap := (max(live, 1<<20) + roots) * uint64(100+percent) / 100
	return int64(max(heap, spans) + others + heap/8 + slack)
}

var started atomic.Bool

// Start adjusts GOGC and the memory limit after each collection until the process ends. It runs on the runtime's finalizer goroutine. It
// does nothing if the environment sets GOGC, and nothing on a second call.
func Start(r Room) {
	if os.Getenv("GOGC") != "" || !started.CompareAndSwap(false, true) {
		return
	}
	p := &pacer{room: r, most: debug.SetMemoryLimit(-1), sample: make([]metrics.Sample, len(sampled))}
	for i, name := range sampled {
		p.sample[i].Name = name
	}
	p.set()
	p.again()
}

type pacer struct {
	room   Room
	now    int   // GOGC
	most   int64 // the memory limit from outside: GOMEMLIMIT, or what the process set before
	limit  int64
	sample []metrics.Sample // of sampled
}

// sampled is what is known of the process.
var sampled = [...]string{"/gc/heap/live:bytes", "/gc/scan/stack:bytes", "/gc/scan/globals:bytes", "/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes",
	"/memory/classes/total:bytes", "/memory/classes/heap/free:bytes", "/memory/classes/heap/released:bytes"}

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
	is := func(i int) uint64 { return p.sample[i].Value.Uint64() }
	live, roots, spans := is(0), is(1)+is(2), is(3)+is(4)
	others := is(5) - is(6) - is(7) - spans
	want := p.room.percent(live, roots)
	if d := limit(live, roots, spans, others, want) - p.limit; d*20 > p.limit || -d*20 > p.limit {
		p.limit += d
		debug.SetMemoryLimit(min(p.most, p.limit))
	}
	if d := want - p.now; d*10 > p.now || -d*10 > p.now {
		p.now = want
		debug.SetGCPercent(want)
	}
}
