package replica

import (
	"slices"

	"github.com/muster-sched/muster/structs"
)

// State hashes are taken where the log index passes a multiple of hashEvery, after every command up to it, and compared
// between servers at equal indexes (D8).
const (
	hashEvery     = 1000
	hashMarksKept = 64
)

// Mark is the hash of the state after all entries up to an index.
type Mark struct {
	Index  structs.Index
	Format structs.Format // in force at Index, which the hash is computed in
	Hash   [32]byte
}

// Marks returns the newest hashes, oldest first.
func (r *Replica) Marks() []Mark {
	r.machine.mu.Lock()
	defer r.machine.mu.Unlock()
	return slices.Clone(r.machine.marks)
}

// mark records the hash of the state after all entries up to an index.
func (m *machine) mark(at structs.Index) {
	h, format := m.fsm.Hash(), m.fsm.Snapshot().Format()
	if edit := m.r.cfg.Testing.AfterHash; edit != nil {
		edit(&h)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.marks = append(m.marks, Mark{at, format, h})
	if len(m.marks) > hashMarksKept {
		m.marks = append(m.marks[:0:0], m.marks[len(m.marks)-hashMarksKept:]...)
	}
}
