// Package model is what is where: the view of the cluster, what is held on each node and when it ends, whether one more
// allocation fits, and a picture of all this that can be changed and rolled back. It decides nothing.
//
// Read view.go (columns in immutable chunks), holding.go (what is held on one node), fit.go (the fit function that decisions
// and Verify share), overlay.go (plans in flight), whatif.go (the picture of a pass) and profile.go (reservations in time).
package model
