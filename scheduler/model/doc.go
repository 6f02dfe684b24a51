// Package model holds the cluster as decisions see it: what is held on each node and when it ends, whether one more
// allocation fits, and a what-if that can be changed and rolled back. It decides nothing.
//
// Read view.go (columns in immutable chunks), holding.go (what is held on one node), fit.go (the fit function that
// decisions and Verify share), overlay.go (plans in flight), whatif.go (the cluster as a pass sees it) and profile.go
// (reservations in time).
package model
