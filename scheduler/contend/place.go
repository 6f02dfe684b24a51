package contend

import (
	"github.com/muster-sched/muster/scheduler/match"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// Placed is what a decision has placed so far. The list may shrink when placements are taken back.
type Placed interface {
	Len() int
	Held(i int) *model.Held
}

// Place is where an allocation of a workload goes, and who makes room for it.
type Place struct {
	Group *structs.Group
	At    search.Placement
	Evict []structs.PlanStop // others that make room
}

// Missing is what a decision found no place for of one group.
type Missing struct {
	Count  int64
	Ask    *match.Ask     // nil: it is not known
	Search *search.Search // that found none; nil: nothing was searched
}

// Unplaced is a decision that found no place for some of what its workload wants.
type Unplaced interface {
	Workload() *Workload
	// Missing lists the groups of which something is missing.
	Missing() []Missing
	// Key is equal for decisions that miss the same, as far as when they can start is concerned; "" for one like no other.
	Key() string
	// PlaceOn tries to place everything that is missing on a picture of the future. It is nil when that fails.
	PlaceOn(future *search.Pass) []Place
}

// Contestant is a decision about a workload that should hold places and found none free.
type Contestant interface {
	Workload() *Workload
	// Again decides from the start on the present picture, without limits: whose places are taken may be what keeps
	// within them. It gives all places of the workload, to be changed by the caller, or nil when not all were found.
	Again() []*Place
}
