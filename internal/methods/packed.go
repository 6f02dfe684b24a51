package methods

// These messages are sent for every placement, so that package pack encodes them. All others are encoded by go-msgpack; ADR
// 0014 says what each costs.

// Packed implements rpc.Packed.
func (*NodePollResponse) Packed() {}

// Packed implements rpc.Packed.
func (*NodeObserveRequest) Packed() {}
