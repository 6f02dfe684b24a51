// Package rpc carries typed calls between servers, agents and tools over one TCP port.
//
// The first byte of a connection (inside TLS when TLS is on) says what it is: 0x01 is raft, 0x02 is a session. A
// session multiplexes calls in both directions: whoever dialled may serve the other side, so that a server calls
// methods on an agent over the agent's own connection and agents need no listening port.
//
// One call is one stream of the session: a header (method, remaining time, token, trace), a msgpack body, then one
// response. A stream method goes on with frames in both directions. Cancelling a call resets its stream, which cancels
// the handler's context at once, whatever is buffered. Every length, queue and wait in here has a limit; DESIGN.md in
// this folder lists them.
//
// Bodies are encoded by go-msgpack without their zero fields, or, if they are Packed, by package pack. The bytes are the
// same, and their depth and counts are checked before either decodes them.
//
// Errors that cross are *structs.Error. Anything else a handler returns is logged where it happened and crosses as
// CodeInternal without its text; an expired deadline crosses as CodeTimeout.
package rpc
