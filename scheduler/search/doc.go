// Package search finds the best node for each allocation of a group: one look at every node, a heap from which places are
// taken, and the report of why others were refused. It keeps what is reserved, by whoever decides that.
//
// Read search.go (the state of one search), place.go (one placement), rate.go (what a node is worth), spread.go (cells with a
// heap each), judge.go (what was refused, and why), policy.go (what policies see) and pass.go (what the searches of a pass share).
package search
