package search

import "github.com/muster-sched/muster/scheduler/model"

// ForgetShortfalls and ForgetLedgers drop what passes have cached on the views of a lineage, so that benchmarks can
// measure what the caches are worth.
func ForgetShortfalls(v *model.View) { remembered.Of(v).shortfalls = nil }

// ForgetLedgers drops the cached values of nodes.
func ForgetLedgers(v *model.View) { remembered.Of(v).ledgers = nil }

// ForgetProfiles drops the cached profiles of rows with reservations.
func (b *Reservations) ForgetProfiles() { clear(b.seen) }

// HoldTwins keeps the sets of twins of a pool from searches on the views of a lineage: they rate every row.
func HoldTwins(v *model.View, pool string) { remembered.Of(v).takeTwins(pool) }

// UsesTwins reports whether a search that has begun rates one row of each set of twins.
func (s *Search) UsesTwins() bool { return s.twins != nil }

// PreparedAsks returns for how many asks nodes have been rated on the views of a lineage.
func PreparedAsks(v *model.View) (n int) {
	for _, l := range remembered.Of(v).ledgers {
		n += len(l.asks)
	}
	return n
}

// PassWaits reports whether a pass that begins now has to wait.
func PassWaits(v *model.View) bool {
	m := remembered.Of(v)
	if m.use.TryRLock() {
		m.use.RUnlock()
		return false
	}
	return true
}
