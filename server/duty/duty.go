// Package duty holds the leader's duties: what it writes because a time has come or the state has changed.
//
// Each duty is a plain structure in its own file. It has no goroutine, lock or clock, so a script can play any history
// to it (testdata). Package server runs all duties by one loop (Server.runDuty), which feeds applied batches, waits for
// the next due time and writes the commands.
//
// A duty may lose everything it knows at any moment, because it reads it from the state again. A new leader loads its
// duties and continues where the old one stopped.
package duty

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Duty is one of the leader's duties. Its methods are called by one goroutine at a time.
type Duty interface {
	// Load drops what the duty knows and reads it from a state. It is called first, and again after batches were lost,
	// a snapshot was restored, or a command could not be written.
	Load(snap *state.Snapshot, now structs.LogTime)

	// Feed takes in one applied batch. snap is the state after it.
	Feed(snap *state.Snapshot, d *structs.Delta, now structs.LogTime)

	// Due returns the commands to write now, in order, and when to call it again if nothing is fed before; 0 is never.
	// snap is the newest state: it includes the effects of earlier commands, and may be ahead of the last batch fed.
	// The duty assumes that its commands are written. Apply checks each of them again, so one that comes too late
	// changes nothing.
	Due(snap *state.Snapshot, now structs.LogTime) (cmds []Command, next structs.LogTime)
}

// Forced is a duty that an operator can run at once.
type Forced interface {
	Duty
	Force()
	Idle() bool // the forced run has ended
}

// Command is a command that is due.
type Command struct {
	structs.Command
	Subject string // its object, for the log: "job default/train, group g"
	Done    string // log message once it is applied; "": none

	// Keep marks a command that cannot be derived from the state. If writing fails, it is written again; Load derives
	// the others again.
	Keep bool
}

// earlier returns the earlier of two times, where 0 is never.
func earlier(a, b structs.LogTime) structs.LogTime {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
