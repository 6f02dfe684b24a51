package agent

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// listenError explains why an agent cannot listen at addr: what has the port and how another is chosen.
// kind is HTTP, RPC or gossip.
func listenError(kind, addr string, err error) error {
	_, port, _ := net.SplitHostPort(addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s address %s: port %s is in use, perhaps by another muster agent (`ss -ltnp 'sport = :%s'` shows by what): end that program, or choose other ports with ports.http, ports.rpc and ports.serf in a file for -config", kind, addr, port, port)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s address %s: no interface of this machine has this address (`ip address` lists them): set bind_addr, or -bind, to one that it has", kind, addr)
	}
	return fmt.Errorf("%s address %s: %w", kind, addr, err)
}
