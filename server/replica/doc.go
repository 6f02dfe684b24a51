// Package replica is one server's copy of the cluster's state: the raft log, the state machine behind it, and the value
// that it publishes after each batch. It is the only way into the log, and no other package holds raft. It knows no API
// calls and reaches other servers only through Peers; package server connects it to both.
package replica
