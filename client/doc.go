// Package client is the agent on a node. It registers the node with the servers, sends heartbeats, polls for the node's
// allocations, runs them, and reports their state. Servers own the desired state, the client owns the observed state.
//
// Goroutines of a Client, all ended by the context of Run: fingerprint, heartbeat (and registration, when the node
// changed), poll (a long poll for allocations), observe (reports in batches), collect (garbage and disk limits), health
// (the operator's command), the GPU watch, and a runner.Runner for each allocation. Tasks are processes that outlive
// the agent.
package client
