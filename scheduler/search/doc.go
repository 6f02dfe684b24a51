// Package search finds the best node for each allocation of a group. It looks at every node once, takes places from a
// heap, and reports why the other nodes were refused. It keeps reserved places free; other packages decide what is
// reserved.
//
// Read search.go (the state of one search), build.go (the look at every node), place.go (one placement), rate.go (the
// score of a node), spread.go and cells.go (cells of equal spread values with a heap each), keeps.go (reserved places),
// judge.go (refusals), policy.go (what policies see) and pass.go (what the searches of a pass share).
package search
