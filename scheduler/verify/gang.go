package verify

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/structs"
)

// gangs counts the members that each gang of an entry has, by row of the entry's groups; -1 for a group that is no
// gang. It is nil when no group is a gang.
type gangs []int

// gangsOf begins with the members that the roster lists and the entry does not place: they are taken to be running, and
// Apply checks them.
func gangsOf(e *structs.PlanEntry) gangs {
	if e.Job == nil {
		return nil
	}
	var out gangs
	for g, name := range e.Groups {
		tg := e.Job.Group(name)
		if !tg.IsGang() {
			continue
		}
		if out == nil {
			out = slices.Repeat(gangs{-1}, len(e.Groups))
		}
		listed := make(map[structs.AllocID]bool)
		for _, ro := range e.Rosters {
			if ro.Group == name {
				for _, m := range ro.Members {
					listed[m.Alloc] = true
				}
			}
		}
		for i := range e.Parts {
			for k := range e.Parts[i].Places {
				if pl := &e.Parts[i].Places[k]; pl.Group == g && !tg.IsStandby(pl.Index) {
					delete(listed, structs.DeriveAllocID(e.EvalID, e.SnapshotIndex, name, pl.Index))
				}
			}
		}
		out[g] = len(listed)
	}
	return out
}

// members calls f with the row of each place of a part that makes a gang larger.
func (c gangs) members(e *structs.PlanEntry, p *structs.PlanPart, f func(group int)) {
	for k := range p.Places {
		if g := p.Places[k].Group; g >= 0 && g < len(c) && c[g] >= 0 && !e.Job.Group(e.Groups[g]).IsStandby(p.Places[k].Index) {
			f(g)
		}
	}
}

// partial returns why a part would place some members of a gang without the rest of its minimum, or "". For a part of
// standbys alone, Apply checks that their gang is there.
func (c gangs) partial(e *structs.PlanEntry, p *structs.PlanPart) string {
	if c == nil || len(p.Places) == 0 {
		return ""
	}
	more := make([]int, len(c))
	c.members(e, p, func(g int) { more[g]++ })
	for g, n := range more {
		if n == 0 {
			continue
		}
		if least := e.Job.Group(e.Groups[g]).Least(); c[g]+n < least {
			return fmt.Sprintf("gang %q would have %d of at least %d members", e.Groups[g], c[g]+n, least)
		}
	}
	return ""
}

// joined counts the places of an accepted part as members.
func (c gangs) joined(e *structs.PlanEntry, p *structs.PlanPart) {
	c.members(e, p, func(g int) { c[g]++ })
}
