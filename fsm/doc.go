// Package fsm applies the commands of the replicated log to the state. It is pure: it uses no clock, no randomness, no
// goroutine and no call to the outside, so that every server that applies the same log has the same state. A command
// that makes no sense has an error result and changes nothing.
package fsm
