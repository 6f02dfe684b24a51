// Package client is the agent on a node: it tells the servers what the node has and that it lives, asks them which
// allocations belong on it, runs these, and reports what it sees of them. Servers own what is wanted, the client owns
// what is observed.
//
// Goroutines of a Client, all ended by the context of Run: fingerprint (looks again), register (sends the node when it
// changed), heartbeat, poll (long poll for allocations), observe (reports in batches), collect (garbage, disk limits),
// and a runner.Runner for each allocation. Tasks are not among them: they outlive the agent.
package client
