package methods

// Packed marks the messages that are sent at the rate of placements; ADR 0014 says what each would cost with go-msgpack.

// Packed implements rpc.Packed.
func (*NodePollResponse) Packed() {}

// Packed implements rpc.Packed.
func (*NodeObserveRequest) Packed() {}
