// Package server is one server of a cluster. It binds the replica of the state (server/replica) to the calls of users,
// nodes and other servers (internal/methods), and while it leads it runs the leader's services in one context. One of them
// decides where work runs (server/decide).
// DESIGN.md tells the way of a call, what is locked by whom, and which goroutines there are.
package server
