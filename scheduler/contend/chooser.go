package contend

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Chooser decides which running and pending jobs of a queue should hold places (PreemptOrder). The choosers of
// scheduler/queue are pure: equal competitions have equal outcomes.
type Chooser interface {
	// Choose returns positions in Competition.Contenders, each at most once: the contenders that should hold places, in
	// the order in which those without places get them. It is called only when a contender may be stopped. wake is when
	// the answer may change even if nothing happens; 0: never.
	Choose(r *Competition) (chosen []int, wake structs.LogTime)
}

// AlwaysChooser is a Chooser that is called in every pass, even if nothing may be stopped.
type AlwaysChooser interface {
	Chooser
	Always()
}

// ShareChooser is a Chooser that knows the orders under which queues and submitters take turns. Their shares move while a
// pass places, so no set can be chosen beforehand: the pass's line decides who is served, as for work that must not be
// stopped.
type ShareChooser interface {
	Chooser
	// GoesBefore returns which workload of a competition goes before another one by more than its share; nil if the
	// queue's order knows no shares. Work then only takes the places of work with a lower priority that it goes before.
	GoesBefore(r *Competition) func(a, b *Workload) bool
}

// RankingChooser is a Chooser that can also order all contenders of a competition, for users.
type RankingChooser interface {
	Chooser
	// Rank returns all positions in Competition.Contenders, in the order in which they would get places.
	Rank(r *Competition) []int
}

// StatefulChooser is a Chooser with a memory. State returns it as bytes, from which the chooser can be restored.
type StatefulChooser interface {
	Chooser
	State() []byte
}

// Competition is the competition for places within one queue and node pool.
type Competition struct {
	Queue      structs.Queue // with every setting filled in
	BoundSet   bool          // its bound on waiting (Queue.MaxWait) is configured, and not the default
	Pool       structs.PoolName
	Now        structs.LogTime
	Contenders []Contender // in the order of their submission
	Room       []int64     // units on each node, in ID order: those that are free or held by contenders
}

// Contender is a workload that competes. Its request is counted in units: whole GPUs, or equal parts of the CPU if no
// contender asks for GPUs.
type Contender struct {
	Load  *Workload
	Holds bool          // it has its places
	Fixed bool          // it keeps its places: it began too recently, or it waits for others to end
	Each  int64         // units of one place (the largest, if they differ)
	Count int64         // places
	Ran   time.Duration // how long it has run
	Left  time.Duration // how much longer it is expected to run; 0: unknown
	Lost  time.Duration // run time that it would lose if it were stopped now, saving and loading included; 0 for pending work
}

// Units returns what the contender holds, or would hold.
func (r *Contender) Units() int64 { return r.Each * r.Count }
