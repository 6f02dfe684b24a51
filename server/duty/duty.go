// Package duty holds the duties of the leader that follow from state and time: what must be written because a moment has
// come, or because something else has changed.
//
// Each duty is a plain structure in a file of its own. It has no goroutine, no lock and no clock, so a script can play any
// history to it (testdata). Package server drives all duties by one loop (Server.runDuty): it feeds the applied batches,
// waits for the next due time and writes the commands.
//
// A duty may forget everything at any moment, because what it knows can be read from the state again: a new leader loads
// its duties and goes on where the old one stopped.
package duty

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Duty is one duty of the leader. Its methods are called by one goroutine at a time.
type Duty interface {
	// Load drops what the duty knows and reads it from a state. It comes first, after batches were lost, after a snapshot
	// was restored, and after a command could not be written.
	Load(snap *state.Snapshot, now structs.LogTime)

	// Feed takes in one applied batch. snap is the state after it.
	Feed(snap *state.Snapshot, d *structs.Delta, now structs.LogTime)

	// Due returns the commands to write now, in order, and when to ask again if nothing is fed before that; 0 is never.
	// snap is the newest state: it holds what earlier commands did, and may be ahead of the last batch that was fed. The
	// duty takes the commands for written. Apply checks each of them again, so one that comes too late changes nothing.
	Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime)
}

// Forced is a duty that an operator may ask to run at once.
type Forced interface {
	Duty
	Force()
	Idle() bool // what was forced has ended
}

// Command is one command that is due.
type Command struct {
	structs.Command
	Subject string // what it is about, for the log: "job default/train, group g"
	Done    string // what the log says once it is applied; "" for nothing

	// Keep marks a command that does not follow from the state. If it cannot be written it is written again, where others
	// are derived anew by Load.
	Keep bool
}

// earlier returns the earlier of two times of which 0 is never.
func earlier(a, b structs.LogTime) structs.LogTime {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
