//go:build !linux

package edge

import "net"

// Agents run on Linux. Elsewhere the package only compiles, for the types that the command line shares with the server.

func peerOf(*net.UnixConn) *Peer { return nil }

func descriptorMax() uint64 { return 2 * TotalDefault }
