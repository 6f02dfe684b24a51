package structs

import (
	"cmp"
	"slices"
)

// A gang's ranks save one state in parts, or one of them saves it for all. A checkpoint of a gang is therefore complete
// when every member has written its part, and only then does it count: for what a preemption would lose, for what the
// gang resumes from, and for jobs that wait for it. Which members write parts is what the job says (Checkpoint.Members), or
// is seen: a member that is the only one to have written any saves for all.
//
//	member 0   |--100---------200---------300--|      each part is written when the step is done
//	member 1   |--100---------200--------------|
//	the gang        ^100       ^200                   300 is not complete: if the gang ends now, it resumes from 200
//
// The parts of one checkpoint differ from those of the next by their time alone: all members have written one after the last
// part of the checkpoint before. That is right where no member begins the next checkpoint before all have written this
// one, as ranks that work in step do.

// GangCheckpoint is the newest complete checkpoint of a gang, and which parts make the next one. It is immutable.
type GangCheckpoint struct {
	Newest *Saved    // the part that was written first: its time and path stand for all; nil: none is complete
	Before *Saved    // what the members resumed from, if one of them alone wrote Newest: it counts again if others write parts, too; nil for none
	Last   LogTime   // when the last part of Newest was written: later parts belong to the next
	Parts  int       // members that wrote Newest, or that have written parts while none is complete; 1: one saves for all
	Since  LogTime   // earlier parts are of a run that ended when the gang lost a member; 0: it lost none
	Left   []AllocID // its members, while it has none: they may save their state as they end
}

// SavesAsOne reports whether the checkpoints of the group's allocations are parts of one.
func (g *Group) SavesAsOne() bool { return g != nil && g.Gang != nil && g.Checkpoint != nil }

// SavedAs returns the checkpoint from which work of an allocation is lost if it ends now: its own, or that of its gang,
// whose roster is ro; nil: there is none.
func (a *Allocation) SavedAs(ro *Roster) *Saved {
	if a.Job == nil || ro == nil || ro.Checkpoint == nil || !a.Job.Group(a.Group).SavesAsOne() {
		return a.Saved
	}
	return ro.Checkpoint.Newest
}

// Saving returns the roster after reports of its members' checkpoints; nil if they change nothing. find returns an
// allocation or nil.
func (r *Roster) Saving(c *Checkpoint, find func(AllocID) *Allocation) *Roster {
	was := r.Checkpoint
	if was == nil {
		was = &GangCheckpoint{}
	}
	var parts, all []*Allocation // those that have written a part of the next checkpoint; that are expected to
	wrote := 0                   // members that have written a part of any
	for _, id := range r.savers() {
		a := find(id)
		if a == nil || a.Client == ClientComplete && !a.ServerTerminal() {
			continue // it has succeeded, so it writes no more
		}
		all = append(all, a)
		if a.Saved == nil || a.Saved.Time <= was.Since {
			continue
		}
		wrote++
		if a.Saved.Time > was.Last {
			parts = append(parts, a)
		}
	}
	slices.SortStableFunc(parts, func(a, b *Allocation) int { return cmp.Compare(a.Saved.Time, b.Saved.Time) }) // then by rank
	if wrote == 0 {
		return nil
	}
	need, next := 0, *was
	for _, a := range all {
		// a member that started since they were written took no part in it
		if len(parts) > 0 && a.StartedAt != 0 && a.StartedAt <= parts[0].Saved.Time || a.Saved != nil {
			need++
		}
	}
	switch {
	case c.Members > 0:
		need = min(c.Members, need)
	case wrote == 1 && was.Parts <= 1: // it saves for all
		need = 1
	}
	// now reports whether Newest was written since the members run.
	now := was.Newest != nil && slices.ContainsFunc(all, func(a *Allocation) bool {
		return a.StartedAt != 0 && max(a.StartedAt, was.Since) <= was.Newest.Time
	})
	switch {
	case len(parts) >= need:
		next.Newest, next.Last, next.Parts = parts[0].Saved, parts[len(parts)-1].Saved.Time, len(parts)
		if !now || was.Parts > 1 {
			next.Before = was.Newest
		}
	case c.Members == 0 && was.Parts <= 1 && wrote > 1: // the first to write did not save for all
		next.Parts = wrote
		if now {
			next.Newest, next.Before, next.Last = was.Before, nil, 0
		}
		n := *r
		n.Checkpoint = &next
		if more := n.Saving(c, find); more != nil { // the others were the last
			return more
		}
	case r.Checkpoint != nil:
		return nil
	default:
		next.Parts = wrote
	}
	n := *r
	n.Checkpoint = &next
	return &n
}

// KeepSaving notes what a change of its members means for the checkpoints of a gang: r is its roster after it, was the one
// before. Members that continue without one that failed start again at the newest complete checkpoint, so what they wrote
// after it is void. Members of a gang that ends may save their state yet.
func (r *Roster) KeepSaving(was *Roster, now LogTime) {
	c := GangCheckpoint{}
	if r.Checkpoint != nil {
		c = *r.Checkpoint
	}
	switch {
	case len(r.Members) == 0 && len(was.Members) > 0:
		c.Left = was.savers()
	case len(r.Members) > 0 && r.Checkpoint == nil:
		return
	case len(r.Members) > 0:
		if c.Left = nil; r.Reason == RosterLost && len(was.Members) > 0 {
			c.Since = now
		}
	}
	r.Checkpoint = &c
}

// savers lists the members, or those that the gang had when it ended.
func (r *Roster) savers() []AllocID {
	if len(r.Members) == 0 && r.Checkpoint != nil {
		return r.Checkpoint.Left
	}
	out := make([]AllocID, len(r.Members))
	for i := range r.Members {
		out[i] = r.Members[i].Alloc
	}
	return out
}
