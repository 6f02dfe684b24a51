package methods

// These messages are sent for every placement, so package pack encodes them; go-msgpack encodes all others. ADR 0014
// lists the cost of each.

// Packed implements rpc.Packed.
func (*NodePollResponse) Packed() {}

// Packed implements rpc.Packed.
func (*NodeObserveRequest) Packed() {}

// Packed implements rpc.Packed.
func (*JobRegisterRequest) Packed() {}
