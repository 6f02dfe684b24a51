// Package fsm applies the commands of the replicated log to the state. It is pure: no clock, no randomness, no
// goroutine and no call to the outside, so that every server that applies the same log holds the same state. A command
// that makes no sense is answered with an error result and changes nothing.
package fsm
