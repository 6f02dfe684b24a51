// Package rpc carries typed calls between servers, agents and tools over one TCP port.
//
// The first byte of a connection (inside TLS if TLS is on) is its kind: 0x01 is raft, 0x02 is a session. A session
// multiplexes calls in both directions. The dialling side may serve the other one, so a server calls methods of an
// agent over the agent's own connection, and agents need no listening port.
//
// One call is one stream of the session: a header (method, remaining time, token, trace), a msgpack body, then one
// response. A stream method continues with frames in both directions. Cancelling a call resets its stream, which
// cancels the handler's context at once, even if data is buffered. Every length, queue and wait has a limit; DESIGN.md
// in this directory lists them.
//
// Bodies are encoded without zero fields: by package pack if they are Packed, otherwise by go-msgpack. Both give the
// same bytes. Depth and counts are checked before either decodes them.
//
// Errors that cross the connection are *structs.Error. Any other error of a handler is logged where it happened and
// crosses as CodeInternal without its text; an expired deadline crosses as CodeTimeout.
package rpc
