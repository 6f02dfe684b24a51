package state

import (
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/structs"
)

// formatOf returns the format in force. A state without an identity, which only tests and the first moments of a cluster
// have, is at the newest format.
func formatOf(r Reader) structs.Format {
	if m := Meta.Get(r, ""); m != nil {
		return m.Format
	}
	return feature.Newest
}

// Format returns the format in force.
func (s *Snapshot) Format() structs.Format { return formatOf(s) }

// Has reports whether the format in force has a gate.
func (s *Snapshot) Has(g feature.Gate) bool { return s.Format() >= g.Format }

// Format returns the format in force.
func (s *Store) Format() structs.Format { return formatOf(s) }

// Has reports whether the format in force has a gate.
func (s *Store) Has(g feature.Gate) bool { return s.Format() >= g.Format }

// since declares that a table needs a gate: it is empty, and neither in the hash nor in snapshot files, before.
func (t *Table[K, T]) since(g feature.Gate) *Table[K, T] {
	t.needs = g.Format
	return t
}
