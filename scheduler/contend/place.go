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

// Place is where an allocation of a workload goes, and which others make room for it.
type Place struct {
	Group *structs.Group
	At    search.Placement
	Evict []structs.PlanStop // others that make room
}

// Missing is how much of one group a decision could not place.
type Missing struct {
	Count  int64
	Ask    *match.Ask     // nil: unknown
	Search *search.Search // the search that found no place; nil: there was no search
}

// Unplaced is a decision that could not place everything its workload wants.
type Unplaced interface {
	Workload() *Workload
	// Missing lists the groups of which something is missing.
	Missing() []Missing
	// Key is equal for decisions that can start at the same time because they miss the same; "" for one like no other.
	Key() string
	// PlaceOn tries to place everything that is missing on a what-if about the future. It returns nil if that fails.
	PlaceOn(future *search.Pass) []Place
}

// Contestant is a decision about a workload that should hold places and found none free.
type Contestant interface {
	Workload() *Workload
	// Again decides from the start on the present what-if, without limits: they may be met only because the victims
	// stop. It returns all places of the workload, which the caller may change, or nil when not all were found.
	Again() []*Place
}
