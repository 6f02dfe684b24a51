package fsm

import (
	"fmt"
	"io"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// WriteSnapshot writes a snapshot in the format that Restore reads (state.Snapshot.Write).
func WriteSnapshot(w io.Writer, s *state.Snapshot) error { return s.Write(w) }

// Restore replaces the whole state by that of a snapshot file. It builds the new state separately and swaps it in only
// when the file has been read to its checksum. After an error the old state is kept. A restore that writes while it
// reads would leave half a state behind if the file is cut short.
func (f *FSM) Restore(r io.Reader) (structs.Delta, error) {
	fresh, err := state.Read(r, state.Options{CheckWrites: f.opts.CheckWrites})
	if err != nil {
		return structs.Delta{}, fmt.Errorf("restore snapshot: %w", err)
	}
	old := f.store
	f.store = fresh
	snap := fresh.Snapshot()
	f.snap.Store(snap)
	old.WakeAll()
	return structs.Delta{Index: snap.Index(), Time: snap.Time(), Restored: true}, nil
}
