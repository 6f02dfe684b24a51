// Package gcpace sets how much garbage a process may allocate before Go's collector runs. Go's default, as many bytes
// as are live, is too little for a process with a small state and much traffic: a server with 20 MiB of state collected
// several times a second under load, which took a quarter of its processor time. Here the allowance is the live bytes,
// but at least Room.Min and at most Room.Max, so that a large state does not double.
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

var started atomic.Bool

// Start adjusts GOGC after each collection until the process ends. It runs on the runtime's finalizer goroutine. It
// does nothing if the environment sets GOGC, and nothing on a second call.
func Start(r Room) {
	if os.Getenv("GOGC") != "" || !started.CompareAndSwap(false, true) {
		return
	}
	p := &pacer{room: r, sample: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}}
	p.set()
	p.again()
}

type pacer struct {
	room   Room
	now    int
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

// set changes GOGC only when it is off by more than a tenth, because each change stops the world for a moment.
func (p *pacer) set() {
	metrics.Read(p.sample)
	for _, s := range p.sample {
		if s.Value.Kind() != metrics.KindUint64 {
			return
		}
	}
	want := p.room.percent(p.sample[0].Value.Uint64(), p.sample[1].Value.Uint64()+p.sample[2].Value.Uint64())
	if d := want - p.now; d*10 > p.now || -d*10 > p.now {
		p.now = want
		debug.SetGCPercent(want)
	}
}
