// Package replica is one server's copy of the cluster's state: the raft log, the state machine behind it, and the value
// that it publishes after each batch. It is the only way into the log. It knows neither other servers' addresses nor
// the calls of users; package server binds it to them.
package replica
