// Package freeport finds ports for the agents of tests and benchmarks.
package freeport

import (
	"net"
	"sync"
)

var given = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// Pick returns a free port of 127.0.0.1, for TCP or UDP, and never the same one twice in a process: the kernel may
// offer a port again as soon as it is released, which is before an agent takes it.
func Pick() (int, error) {
	given.Lock()
	defer given.Unlock()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		port := l.Addr().(*net.TCPAddr).Port
		u, busy := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if busy == nil {
			u.Close()
		}
		l.Close()
		if busy == nil && !given.ports[port] {
			given.ports[port] = true
			return port, nil
		}
	}
}
