package sim

import (
	"slices"
	"time"

	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/structs"
)

// savingTakes is how long a save takes in a history.
const savingTakes = 2 * time.Minute

// savers are the runs that were stopped and save their state, or wait for that.
type savers struct {
	began map[*run]bool // seen to save or to wait, and whether it has begun out of turn
	order []*run        // as they were seen
}

// saveKey names runs that save together.
type saveKey struct {
	job   structs.JobKey
	asked structs.LogTime
	one   structs.AllocID // zero: all of the job that were stopped then
}

func saveKeyOf(r *run) saveKey {
	k := saveKey{job: r.live.Key, asked: r.alloc.Lineage().Asked}
	if r.unit == nil || r.unit.index >= 0 {
		k.one = r.alloc.ID
	}
	return k
}

// stopped notes what was stopped by a pass.
func (c *checks) stopped() {
	for i := range c.e.nodes {
		for _, r := range c.e.nodes[i].list {
			if _, seen := c.savers.began[r]; r.notified && !seen {
				c.savers.began[r] = false
				c.savers.order = append(c.savers.order, r)
				if r.unit != nil && r.unit.halted {
					c.Counts["groups stopped with others, and saved"]++
				}
			}
		}
	}
}

// saving checks that what was stopped saves its state in turns: no more at a time than the storage serves, all of a gang together, none
// waits for half an hour, and none while nothing saves. A node that must be empty waits for no turn.
func (c *checks) saving() {
	most := int(c.h.StorageLimit())
	if most == 0 {
		return
	}
	now, units, n, waits, busy := c.e.now, map[saveKey]structs.LogTime{}, 0, []*run{}, false
	left := c.savers.order[:0]
	for _, r := range c.savers.order {
		there := c.e.runs[r.alloc.ID] == r
		asked, d := r.alloc.Lineage().Asked, c.e.nodes[r.node].node.Drain
		busy = busy || r.saves != 0 && r.saves < now && now <= r.saves.Add(savingTakes)
		if r.saves != 0 && !c.savers.began[r] && r.saves.Add(savingTakes) >= now {
			forced := r.saves.Sub(asked) >= structs.CheckpointWaitMax || d != nil && d.ForceAt > 0 && r.saves >= d.ForceAt
			c.began(r, forced)
			c.savers.began[r] = forced
		}
		switch {
		case !there && (r.saves == 0 || now > r.saves.Add(savingTakes)):
			delete(c.savers.began, r)
			continue
		case !there:
		case r.saves == 0:
			if waits = append(waits, r); now.Sub(asked) > structs.CheckpointWaitMax {
				c.failf("%s of %s waits since %v to save its state", r.alloc.ID.Short(), r.live.Key.ID, Since(asked))
			}
		case now > r.saves.Add(savingTakes):
			c.failf("%s of %s saves its state since %v", r.alloc.ID.Short(), r.live.Key.ID, Since(r.saves))
		case !c.savers.began[r] && r.saves < now:
			n++
			k := saveKeyOf(r)
			if units[k] != 0 && units[k] != r.saves {
				c.failf("%s saves its state since %v, and another member since %v", r.live.Key.ID, Since(r.saves), Since(units[k]))
			}
			units[k] = r.saves
		}
		left = append(left, r)
	}
	clear(c.savers.order[len(left):])
	c.savers.order = left
	if n > most && len(units) > 1 {
		c.failf("%d allocations of %d units save their state, and the storage serves %d at a time", n, len(units), most)
	}
	for _, r := range waits {
		if r.alloc.Lineage().Asked < now && !busy {
			c.failf("%s of %s waits to save its state, and nothing else saves", r.alloc.ID.Short(), r.live.Key.ID)
		}
	}
}

// began counts a save.
func (c *checks) began(r *run, forced bool) {
	k := "saves at once"
	switch waited := r.saves > r.alloc.Lineage().Asked; {
	case waited && forced:
		k = "saves out of turn after a wait"
	case waited && r.unit != nil && r.unit.index < 0:
		k = "saves of gangs in their turn after a wait"
	case waited:
		k = "saves in their turn after a wait"
	case forced:
		k = "saves out of turn at once"
	}
	c.Counts[k]++
	c.Counts["saves of what was stopped: "+r.alloc.EndCause()]++
}

// settled leaves out allocations that save their state because a drain moves them, and whose replacements hold resources: a limit that
// is used up must not hold up a drain (structs.Moves).
func (c *checks) settled(allocs []*structs.Allocation) (out []*structs.Allocation) {
	for _, a := range allocs {
		if a.Transition.Migrate && a.ServerTerminal() && slices.ContainsFunc(allocs, func(b *structs.Allocation) bool { return b.Lineage().Previous == a.ID }) {
			c.Counts["counted with what replaces it"]++
			continue
		}
		out = append(out, a)
	}
	return out
}

// mustSave are counts about storages that no run of all histories lacks.
var mustSave = []string{"groups stopped with others, and saved", "saves at once", "saves out of turn after a wait", "saves out of turn at once", "saves of gangs in their turn after a wait",
	"saves in their turn after a wait", "saves of what was stopped: " + structs.CausePreempt, "saves of what was stopped: " + structs.CauseDrain, "stopped by a drain in its turn to save",
	"counted with what replaces it"}

// storage lets stopped work save its state to a storage with a limit.
func (h *history) storage() {
	if most := h.StorageLimit(); most > 0 {
		h.cfg.Notice, h.cfg.Scheduler.CheckpointStorage = true, map[string]int64{histories.Storage: most}
		h.cfg.SaveTime = func(*Live, *structs.Allocation) time.Duration { return savingTakes }
		h.Exact = false // a place is free later than predicted
	}
}
