// Package server is one server of a cluster. It connects the replica of the state (server/replica) to the calls of
// users, nodes and other servers (internal/methods, server/endpoint). While it leads, it runs the leader's services in
// one context; one of them decides where work runs (server/decide). DESIGN.md describes the path of a call, the locks
// and the goroutines.
package server
