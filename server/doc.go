// Package server is one server of a cluster: it replicates commands through raft, publishes state and view together,
// answers every remote procedure of internal/methods, and while it leads runs the leader services in one context.
//
// Mutable things live in three places: the store (through the log), the published value, and the structures of the
// leader services. Goroutines and their owners:
//
//	raft's own                 raft library, end with Close
//	proposer, completer        one each, Run .. Close (propose.go)
//	leadership                 one, Run .. Close; owns the leader services and waits for them (leader.go)
//	fan-out                    one, delivers applied batches to hub, event ring and subscribers in order (publish.go)
//	gossip, membership         memberlist's own; one to react (members.go)
//	snapshot trigger           one, looks at sizes every second (raft.go)
//	hash check                 one, compares states with the other servers every 5 s (hashcheck.go)
//	verifier                   one while linearizable reads wait to be confirmed (verifier.go)
//	observations               one timer while reports of agents are gathered (observe.go)
//	node sessions              one per session of a node, ends with the session (sessions.go)
//	rpc sessions and handlers  internal/rpc, end with Close
package server
