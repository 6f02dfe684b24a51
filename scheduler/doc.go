// Package scheduler decides where work runs. It is a pure function: the same Input gives the same Plan, byte for byte,
// in every process. It does no I/O, reads no clock, starts no goroutine and keeps no state of its own; time, seeds and
// identifiers are arguments.
//
// The hard ideas, in the order of a pass:
//
//   - View (model/view.go) is a columnar picture of the cluster in immutable chunks. Advance copies only the chunks a batch
//     of the log has touched.
//   - Reconcile (reconcile/reconcile.go) compares what a job wants with what it has: which allocations to stop, to update in
//     place, to replace, to move, and which names are free.
//   - Feasibility (match/feasible.go) asks once per class of equal nodes; only what is unique to a node is asked per node.
//   - Search (search/search.go) scores every feasible node, then places k like tasks in O(nodes + k log nodes) from a heap, of
//     which only the node just used is scored again. A spread groups nodes into cells that share one bonus.
//   - Contention (package contend) says what limits and reservations leave, and who makes room for whom.
//   - Schedule (schedule.go) runs the steps for many workloads in order over one what-if picture that can be rolled back.
//   - Verify (verify/verify.go) checks a plan, part by part, against newer state with the same fit function.
//
// Ties: nodes with equal scores are taken in the order of their ids (for next-fit: starting after the last node used).
package scheduler
