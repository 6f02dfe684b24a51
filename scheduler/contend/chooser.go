package contend

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Chooser says who of a queue's running and pending work should hold places (structs.PreemptOrder). The ones of
// scheduler/queue are pure: equal competitions have equal outcomes.
type Chooser interface {
	// Choose is asked when there is a contender that may be stopped. It gives positions in Competition.Contenders, each at
	// most once: those that should hold places, in the order in which those without places get them. wake is when the
	// answer may change though nothing happens; 0: never.
	Choose(r *Competition) (chosen []int, wake structs.LogTime)
}

// AlwaysChooser is a Chooser that is asked in every pass, even if nothing may be stopped.
type AlwaysChooser interface {
	Chooser
	Always()
}

// StatefulChooser is a Chooser that remembers. State is what it knows as bytes, from which it can be made again.
type StatefulChooser interface {
	Chooser
	State() []byte
}

// Competition is the competition for places within one queue and node pool.
type Competition struct {
	Queue      structs.Queue // with every setting filled in
	Pool       structs.PoolName
	Now        structs.LogTime
	Contenders []Contender // in the order of their submission
	Room       []int64     // units on each node, in the order of node ids: those that are free or that contenders hold
}

// Contender is a workload that competes. What it asks for is counted in units: whole GPUs, or equal parts of the CPU where
// no contender asks for GPUs.
type Contender struct {
	Load  *Workload
	Holds bool          // it has its places
	Fixed bool          // and keeps them: it began too recently, or it waits for others to end
	Each  int64         // units of one place (the largest, if they differ)
	Count int64         // places
	Ran   time.Duration // how long it has run
	Left  time.Duration // how much longer it is expected to run; 0: unknown
}

// Units is what the contender holds, or would hold.
func (r *Contender) Units() int64 { return r.Each * r.Count }
