package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// servedSavers are the agents of running work that saves its state at an interval to a storage, in turns with work that
// must end (fleet.asks). As many saves as run together, as slow is each.
type servedSavers struct {
	o      *operations
	most   int
	saving map[structs.AllocID]servedSaveOf
	asked  map[structs.AllocID]structs.LogTime // the newest save that was asked for was due then
	begun  map[unitKey]int                     // allocations that began to save in this step
	ending time.Duration                       // for which work that ends had saves to do, in sum
	waits  map[unitKey]servedWait
}

// unitKey names allocations that save together.
type unitKey struct {
	job structs.JobKey
	one structs.AllocID // zero: all of the job
}

// servedSaveOf is a save that is in progress.
type servedSaveOf struct{ from, to structs.LogTime }

// servedWait is what was before a unit since its newest checkpoint.
type servedWait struct {
	last   structs.LogTime
	ending time.Duration // servedSavers.ending then
	units  int           // that saved at most
}

func newServedSavers(o *operations, most int) *servedSavers {
	return &servedSavers{o: o, most: most, saving: map[structs.AllocID]servedSaveOf{}, asked: map[structs.AllocID]structs.LogTime{}, waits: map[unitKey]servedWait{}}
}

func unitOf(a *structs.Allocation) unitKey {
	if g := a.Job.Groups[0]; g.IsGang() || a.Job.IsJoint() {
		return unitKey{job: a.JobKey()}
	}
	return unitKey{a.JobKey(), a.ID}
}

// saves returns the checkpoint block of an allocation that saves to the storage, or nil.
func saves(a *structs.Allocation) *structs.Checkpoint {
	if g := a.Job.Group(a.Group); g != nil && g.Checkpoint != nil && g.Checkpoint.Storage == histories.Storage {
		return g.Checkpoint
	}
	return nil
}

// step does what agents do in a second.
func (x *servedSavers) step() {
	snap, now := x.o.s().Published().Snapshot, structs.LogTimeOf(time.Now())
	for id := range x.saving {
		if a := snap.AllocByID(id); a == nil || a.Terminal() || a.Client != structs.ClientRunning {
			delete(x.saving, id)
		}
	}
	var up []structs.AllocObserved
	x.begun = map[unitKey]int{}
	for a := range snap.Allocs() {
		c := saves(a)
		if c == nil || a.Terminal() || a.Client != structs.ClientRunning {
			continue
		}
		if s, in := x.saving[a.ID]; in {
			if now >= s.to {
				delete(x.saving, a.ID)
				x.o.judge.Counts["periodic saves"]++
				up = append(up, structs.AllocObserved{ID: a.ID, Client: structs.ClientRunning, StartedAt: a.StartedAt, Saved: &structs.Saved{Time: now, Bytes: 1 << 30, Took: now.Sub(s.from)}})
			}
			continue
		}
		last := max(a.StartedAt, x.asked[a.ID])
		if a.Saved != nil {
			last = max(last, a.Saved.Time)
		}
		if now.Sub(last) >= c.Interval {
			x.ask(a, now)
		}
	}
	x.check(snap, now)
	if len(up) > 0 {
		mustApply(x.o.t, x.o.s(), &structs.AllocObservedCommand{Updates: up})
	}
}

// ask asks for the turn of an allocation, and begins to save when it has it.
func (x *servedSavers) ask(a *structs.Allocation, now structs.LogTime) {
	turn, err := x.o.s().endpoints.NodeSaveTurn(x.o.t.Context(), nil, &methods.NodeSaveTurnRequest{NodeAuth: methods.NodeAuth{NodeID: a.NodeID}, AllocID: a.ID, Periodic: true})
	switch {
	case err != nil:
		return // there is no leader
	case !turn.Now:
		x.o.judge.Counts["periodic saves that waited"]++
		return
	}
	x.asked[a.ID] = now
	if turn.Due > 0 {
		x.asked[a.ID] = turn.Due
	}
	x.begun[unitOf(a)]++
	x.saving[a.ID] = servedSaveOf{now, now.Add(servedSave)}
}

// check checks that no save begins beyond the limit, and that work saves at its interval. A unit that is larger than the limit saves
// when no other does. Work whose node must be free at once waits for no turn.
func (x *servedSavers) check(snap *state.Snapshot, now structs.LogTime) {
	units, n, forced := map[unitKey]bool{}, 0, false
	ends := 0
	for id := range x.saving {
		units[unitOf(snap.AllocByID(id))] = true
		n++
	}
	x.o.fleet.set(func() {
		for id := range x.o.fleet.stops {
			a := snap.AllocByID(id)
			c := (*structs.Checkpoint)(nil)
			if a != nil && !a.ClientTerminal() {
				c = saves(a)
			}
			if c == nil || !c.Heeds(a.EndCause()) || a.Client != structs.ClientRunning || now.Sub(a.Lineage().Asked) >= structs.CheckpointWaitMax {
				continue
			}
			d := snap.NodeByID(a.NodeID).Drain
			forced = forced || d != nil && d.ForceAt <= now
			units[unitOf(a)] = true
			ends++
		}
	})
	if ends > 0 {
		x.ending += time.Second
		x.o.judge.Counts["saves of work that ends"]++
	}
	switch {
	case len(x.o.down) > 0 || x.o.judge.Counts["leaders stopped"] > 0 || forced: // a lost agent saves on its own, perhaps
	case len(units) < 2:
	case n > x.most:
		x.o.failf("%d allocations of %d units save their state at their interval, and the storage serves %d at a time: %s", n, len(units), x.most, x.list(snap))
	case len(x.begun) > 0 && n+ends > x.most:
		x.o.failf("%v begin to save, and with them %d do so, %d of which must end; the storage serves %d at a time: %s", x.begun, n+ends, ends, x.most, x.list(snap))
	}
	x.o.judge.Counts["looks at saves"] += n
	x.intervals(snap, now)
}

// list describes the saves in progress, for messages.
func (x *servedSavers) list(snap *state.Snapshot) string {
	var b strings.Builder
	for _, id := range sortedIDs(x.saving) {
		a := snap.AllocByID(id)
		fmt.Fprintf(&b, "%s of %s since %v, works since %v", id.Short(), a.JobID, x.saving[id].from.Time().Sub(x.o.begin), a.WorksSince().Time().Sub(x.o.begin))
		if a.Saved != nil {
			fmt.Fprintf(&b, ", saved at %v", a.Saved.Time.Time().Sub(x.o.begin))
		}
		fmt.Fprintf(&b, ", interval %v, grace %v; ", saves(a).Interval, saves(a).GraceOrDefault())
	}
	return b.String()
}

// intervals checks that no unit's newest checkpoint is older than its interval and what its turn takes: the saves of all others once
// and those of work that ended meanwhile.
func (x *servedSavers) intervals(snap *state.Snapshot, now structs.LogTime) {
	newest, interval := map[unitKey]structs.LogTime{}, map[unitKey]time.Duration{}
	allocs := 0
	for a := range snap.Allocs() {
		if c := saves(a); c != nil && !a.Terminal() && a.Client == structs.ClientRunning && !a.Suspended() {
			k := unitOf(a)
			newest[k], interval[k] = max(newest[k], a.WorksSince()), c.Interval
			if a.Saved != nil {
				newest[k] = max(newest[k], a.Saved.Time)
			}
			allocs++
		}
	}
	for k, last := range newest {
		w := x.waits[k]
		if w.last != last {
			w = servedWait{last: last, ending: x.ending}
		}
		w.units = max(w.units, allocs)
		x.waits[k] = w
		turn := servedSave + 2*time.Second // agents ask each second, and reports take their time
		most := interval[k] + time.Duration(w.units)*turn + 2*(x.ending-w.ending) + 5*time.Second
		if x.o.judge.Counts["leaders stopped"] > 0 {
			most += 15 * time.Second
		}
		if now.Sub(last) > most {
			x.o.failf("the newest checkpoint of %s is %v old; its interval is %v, and at most %d saved in turns, %d at a time", k.job.ID, now.Sub(last), interval[k], w.units, x.most)
		}
	}
}
