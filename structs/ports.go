package structs

// Ports of an agent whose configuration names no others.
const (
	PortHTTP   = 4646
	PortCalls  = 4647 // of servers
	PortGossip = 4648
)
