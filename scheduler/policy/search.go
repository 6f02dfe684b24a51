package policy

import "github.com/muster-sched/muster/scheduler/search"

// improving places like the default policy, but with more moves. When something of a job finds no place, a decision
// tries to move what it has placed already: the new placement takes that place, and the old one goes elsewhere. It tries
// a bounded number of moves, in a fixed order, so that the same input gives the same plan.
type improving struct{ strand }

func (improving) Name() string { return "search" }

// Capabilities returns those of the default policy, and more moves.
func (p improving) Capabilities() search.Capabilities {
	c := p.strand.Capabilities()
	c.Moves = 10_000
	return c
}
