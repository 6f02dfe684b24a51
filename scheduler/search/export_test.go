package search

import "github.com/muster-sched/muster/scheduler/model"

// ForgetShortfalls and ForgetLedgers drop what passes have remembered on the views of a lineage: the benchmarks of what
// that memory is worth switch it off with them.
func ForgetShortfalls(v *model.View) { remembered.Of(v).shortfalls = nil }

// ForgetLedgers drops the values of nodes.
func ForgetLedgers(v *model.View) { remembered.Of(v).ledgers = nil }

// ForgetProfiles drops what was computed about reserved rows.
func (b *Reservations) ForgetProfiles() { clear(b.seen) }
