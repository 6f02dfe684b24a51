package fsm

import (
	"fmt"
	"io"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// WriteSnapshot writes a snapshot in the format that Restore reads (state.Snapshot.Write).
func WriteSnapshot(w io.Writer, s *state.Snapshot) error { return s.Write(w) }

// Read builds the state of a snapshot file, for Replace. A restore that writes while it reads would leave half a state
// behind if the file is cut short.
func Read(r io.Reader, o Options) (*state.Store, error) {
	fresh, err := state.Read(r, state.Options{CheckWrites: o.CheckWrites})
	if err != nil {
		return nil, fmt.Errorf("restore snapshot: %w", err)
	}
	return fresh, nil
}

// Replace swaps in a state that Read has built.
func (f *FSM) Replace(fresh *state.Store) structs.Delta {
	old := f.store
	f.store = fresh
	snap := fresh.Snapshot()
	f.snap.Store(snap)
	old.WakeAll()
	return structs.Delta{Index: snap.Index(), Time: snap.Time(), Restored: true}
}

// Restore replaces the whole state by that of a snapshot file, when it has been read to its checksum. After an error the
// old state is kept.
func (f *FSM) Restore(r io.Reader) (structs.Delta, error) {
	fresh, err := Read(r, f.opts)
	if err != nil {
		return structs.Delta{}, err
	}
	return f.Replace(fresh), nil
}
