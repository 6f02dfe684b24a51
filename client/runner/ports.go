package runner

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/structs"
)

// Rendezvous ports are above the default range of ephemeral ports (32768 to 60999), so that no outgoing connection
// takes the port between its reservation and the start of the task.
const (
	rendezvousMin = 61000
	rendezvousMax = 65535
)

// Ports holds the rendezvous ports that this node has reserved for gangs. A port is bound without listening from its
// reservation until its task is about to start, which proves that it is free and keeps it free. No other allocation
// gets it until this one has ended.
//
// Naive: listen on it. Then members that start before node rank 0 connect to the agent and are reset when the task
// takes over. Programs retry when a connection is refused, not when it is reset.
type Ports struct {
	from, to int // the range that servers assign to allocations: excluded here

	mu   sync.Mutex
	held map[structs.AllocID]*heldPort
}

type heldPort struct {
	port  int
	bound int // descriptor; -1 once the port was released to the task
}

// NewPorts returns the ports of a node. Servers assign the ports between from and to.
func NewPorts(from, to int) *Ports {
	return &Ports{from: from, to: to, held: map[structs.AllocID]*heldPort{}}
}

// Reserve reserves a port for an allocation: want, or any free one for 0. A second call returns the same port unless
// want differs.
func (p *Ports) Reserve(id structs.AllocID, want int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[id]; h != nil {
		if want == 0 || want == h.port {
			return h.port, nil
		}
		p.dropLocked(id)
	}
	if want != 0 {
		for other, h := range p.held {
			if h.port == want {
				return 0, fmt.Errorf("port %d is the rendezvous port of allocation %s", want, other.Short())
			}
		}
		return p.bindLocked(id, want)
	}
	const tries = 200
	start := rand.IntN(rendezvousMax - rendezvousMin + 1)
	for i := range tries {
		port := rendezvousMin + (start+i)%(rendezvousMax-rendezvousMin+1)
		if port >= p.from && port <= p.to || p.takenLocked(port) {
			continue
		}
		if port, err := p.bindLocked(id, port); err == nil {
			return port, nil
		}
	}
	return p.bindLocked(id, 0) // any port that the kernel has free
}

func (p *Ports) takenLocked(port int) bool {
	for _, h := range p.held {
		if h.port == port {
			return true
		}
	}
	return false
}

func (p *Ports) bindLocked(id structs.AllocID, port int) (int, error) {
	fd, err := bindPort(port, false)
	if errors.Is(err, unix.EADDRINUSE) && port != 0 { // connections of the previous holder may linger
		fd, err = bindPort(port, true)
	}
	if err != nil {
		return 0, fmt.Errorf("bind port %d: %w", port, err)
	}
	if port == 0 {
		name, err := unix.Getsockname(fd)
		switch a := name.(type) {
		case *unix.SockaddrInet6:
			port = a.Port
		case *unix.SockaddrInet4:
			port = a.Port
		default:
			unix.Close(fd)
			return 0, fmt.Errorf("name of a bound port: %v", err)
		}
	}
	p.held[id] = &heldPort{port: port, bound: fd}
	return port, nil
}

// bindPort binds a port on all addresses. reuse permits lingering connections.
func bindPort(port int, reuse bool) (int, error) {
	var addr unix.Sockaddr = &unix.SockaddrInet6{Port: port}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	} else { // a machine without IPv6
		addr = &unix.SockaddrInet4{Port: port}
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
	}
	if err == nil && reuse {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = unix.Bind(fd, addr)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Open unbinds the port, so that the task can bind it.
func (p *Ports) Open(id structs.AllocID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[id]; h != nil && h.bound >= 0 {
		unix.Close(h.bound)
		h.bound = -1
	}
}

// Release frees the port of an allocation.
func (p *Ports) Release(id structs.AllocID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(id)
}

func (p *Ports) dropLocked(id structs.AllocID) {
	if h := p.held[id]; h != nil && h.bound >= 0 {
		unix.Close(h.bound)
	}
	delete(p.held, id)
}
