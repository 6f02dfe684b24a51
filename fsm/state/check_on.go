//go:build mustercheck

package state

// checkAlways makes every store detect objects changed in place.
const checkAlways = true
