// Package state is the multi-version store of the replicated state: typed tables that one writer (package fsm) changes
// and all others read through immutable snapshots. Objects in the store are never changed in place; see DESIGN.md in
// this folder for why the tables are copy-on-write B-trees.
package state
