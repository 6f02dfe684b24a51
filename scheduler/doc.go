// Package scheduler decides where work runs. It is a pure function: the same Input gives the same Plan, byte for byte,
// in every process. It does no I/O, reads no clock, starts no goroutine and keeps no state; time, seeds and identifiers
// are arguments.
//
// The hard ideas, in the order of a pass:
//
//   - View (model/view.go) holds the cluster in columns of immutable chunks. Advance copies only the chunks that a batch
//     of the log has touched.
//   - Reconcile (reconcile/reconcile.go) compares what a job wants with what it has: which allocations to stop, to update in
//     place, to replace, to move, and which names are free.
//   - Feasibility (match/feasible.go) is checked once per class of equal nodes; only what is unique to a node is checked per node.
//   - Search (search/search.go) scores every feasible node, then places k like tasks in O(nodes + k log nodes) from a heap, of
//     which only the node just used is scored again. A spread groups nodes into cells that share one bonus.
//   - Contention (package contend) decides what limits and reservations leave free, and which work makes room for which.
//   - Schedule (schedule.go) runs the steps for many workloads in order over one what-if that can be rolled back.
//   - Verify (verify/verify.go) checks a plan, part by part, against newer state with the same fit function.
//
// Ties: nodes with equal scores are taken in ID order (for next-fit: starting after the last node used).
package scheduler
