package server

import (
	"context"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Windows are the reservations of operators as time passes. When a maintenance begins its nodes are drained as by `muster
// node drain`; when it ends, or is deleted, those that were eligible before are so again. What is over is deleted, after
// its nodes were given back, so that a new leader goes on where the old one stopped.
//
//	before Start: work that would hold in the window is kept off (scheduler), other work comes and goes
//	Start:        the nodes drain; what has not left in drainWithin, or half of the window, is stopped
//	End:          the nodes are eligible again, the reservation is gone

// drainWithin is how long work may take to leave a node under maintenance.
const drainWithin = time.Hour

// The meta of a drain that a maintenance began: whose it is, and that the node was not eligible before.
const (
	metaWindow = "muster.reservation"
	metaWas    = "muster.ineligible_before"
)

// windowAction is what a look at the reservations calls for.
type windowAction struct {
	drains []*structs.NodeDrainCommand // nodes whose window has begun
	backs  []*structs.NodeDrainCommand // nodes whose window is over
	over   []string                    // reservations that are
	next   structs.LogTime             // when one begins or ends; 0 for never
}

// windowStep decides what to do. It is pure; everything is in the order of the reservations.
func windowStep(snap *state.Snapshot, now structs.LogTime) (act windowAction) {
	for r := range snap.Reservations() {
		if r.JobID != "" {
			continue
		}
		for _, at := range [...]structs.LogTime{r.Start, r.End} {
			if at > now && (act.next == 0 || at < act.next) {
				act.next = at
			}
		}
		if r.End <= now {
			act.over = append(act.over, r.ID)
			act.backs = append(act.backs, givenBack(snap, r, nil)...)
			continue
		}
		if !r.Maintenance || r.Start > now {
			continue
		}
		for _, id := range r.Nodes {
			n := snap.NodeByID(id)
			if n == nil || n.Drain != nil {
				continue
			}
			if last := n.LastDrain; last != nil && last.Meta[metaWindow] == r.ID && last.StartedAt >= r.Start {
				continue // done, or somebody ended it
			}
			meta := map[string]string{metaWindow: r.ID}
			if n.Eligibility == structs.NodeIneligible {
				meta[metaWas] = "true"
			}
			within := max(min(drainWithin, r.End.Sub(r.Start)/2), time.Second)
			act.drains = append(act.drains, &structs.NodeDrainCommand{ID: id, Strategy: &structs.DrainStrategy{Deadline: within, Meta: meta}, Meta: meta,
				Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Node drain began with maintenance " + r.ID}})
		}
	}
	return act
}

// givenBack are the commands that end what a maintenance did to its nodes, but for those that after still has.
func givenBack(snap *state.Snapshot, r, after *structs.Reservation) (out []*structs.NodeDrainCommand) {
	if !r.Maintenance {
		return nil
	}
	for _, id := range r.Nodes {
		n := snap.NodeByID(id)
		if n == nil || n.Eligibility != structs.NodeIneligible || n.LastDrain == nil || n.LastDrain.Meta[metaWindow] != r.ID {
			continue
		}
		if n.Drain != nil && n.Drain.Meta[metaWindow] != r.ID {
			continue // somebody drains it for another reason by now
		}
		if after != nil && after.Maintenance && slices.Contains(after.Nodes, id) {
			continue
		}
		out = append(out, &structs.NodeDrainCommand{ID: id, MarkEligible: n.LastDrain.Meta[metaWas] == "",
			Event: &structs.NodeEvent{Subsystem: "Drain", Message: "Maintenance " + r.ID + " is over"}})
	}
	return out
}

// runWindows is the service.
func (s *Server) runWindows(ctx context.Context, _ uint64) error {
	sub := s.Subscribe("windows", 256)
	defer s.Unsubscribe(sub)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var backs []*structs.NodeDrainCommand // of reservations that somebody deleted or changed
	for look := true; ; {
		wait := time.Hour
		if look {
			act := windowStep(s.Published().Snapshot, s.logNow())
			act.backs = append(act.backs, backs...)
			err := s.keepWindows(ctx, &act)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				s.log.Warn("maintenance windows; trying again", "error", err)
				if !pause(ctx, time.Second) {
					return nil
				}
				continue
			}
			backs = nil
			if act.next != 0 {
				wait = min(wait, max(act.next.Sub(s.logNow()), time.Millisecond))
			}
			timer.Reset(wait)
		}
		look = false
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			look = true
		case <-sub.Wake():
			for a, ok := sub.TryNext(); ok; a, ok = sub.TryNext() {
				look = look || a.Lost || a.Delta.Restored
				for i := range a.Delta.Reserved {
					c := &a.Delta.Reserved[i]
					if r := either(*c); r.JobID != "" {
						continue
					}
					look = true
					if c.Before != nil {
						backs = append(backs, givenBack(a.Snapshot, c.Before, c.After)...)
					}
				}
			}
		}
	}
}

// keepWindows writes what a look decided: first what gives nodes back, then what forgets why.
func (s *Server) keepWindows(ctx context.Context, act *windowAction) error {
	by := structs.Submitter{Name: "maintenance"}
	for _, c := range slices.Concat(act.backs, act.drains) {
		_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: by, Body: c})
		if err != nil && structs.CodeOf(err) != structs.CodeNotFound {
			return err
		}
	}
	for _, id := range act.over {
		_, err := s.ApplyLane(ctx, LanePriority, structs.Command{By: by, Body: &structs.UnreserveCommand{IDs: []string{id}}})
		if err != nil && structs.CodeOf(err) != structs.CodeNotFound {
			return err
		}
	}
	return nil
}
