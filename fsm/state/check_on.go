//go:build mustercheck

package state

// checkAlways makes every store look for objects changed in place.
const checkAlways = true
