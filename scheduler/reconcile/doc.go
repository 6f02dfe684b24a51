// Package reconcile compares what a job wants with what it has: which allocations to stop, to update in place, to
// replace or to move, and which names are free. It returns work and finds no places: it uses packages model and match,
// but not search.
package reconcile
