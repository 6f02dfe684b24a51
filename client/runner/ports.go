package runner

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// Rendezvous ports come from above the range from which kernels give ports to outgoing connections (32768 to 60999 unless
// somebody changed it), so that none of those takes the port between its reservation and the start of the task.
const (
	rendezvousMin = 61000
	rendezvousMax = 65535
)

// Ports are the rendezvous ports that this node has promised to gangs. A port is listened on from its reservation until
// the task that shall have it is about to start, so that it is known to be free and stays so; and no other allocation
// here gets it until this one has ended.
type Ports struct {
	from, to int // ports that servers hand out to allocations: not ours

	mu   sync.Mutex
	held map[structs.AllocID]*heldPort
}

type heldPort struct {
	port   int
	listen net.Listener // nil once the port was handed to the task
}

// NewPorts makes the ports of a node whose dynamic ports, which servers hand out, are from to to.
func NewPorts(from, to int) *Ports {
	return &Ports{from: from, to: to, held: map[structs.AllocID]*heldPort{}}
}

// Reserve takes a port for an allocation: the one wanted, or any for 0. A second call gives the port of the first unless
// it wants another.
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
		return p.listenLocked(id, want)
	}
	const tries = 200
	start := rand.IntN(rendezvousMax - rendezvousMin + 1)
	for i := range tries {
		port := rendezvousMin + (start+i)%(rendezvousMax-rendezvousMin+1)
		if port >= p.from && port <= p.to || p.takenLocked(port) {
			continue
		}
		if port, err := p.listenLocked(id, port); err == nil {
			return port, nil
		}
	}
	return p.listenLocked(id, 0) // whatever the kernel has
}

func (p *Ports) takenLocked(port int) bool {
	for _, h := range p.held {
		if h.port == port {
			return true
		}
	}
	return false
}

func (p *Ports) listenLocked(id structs.AllocID, port int) (int, error) {
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return 0, err
	}
	port = l.Addr().(*net.TCPAddr).Port
	p.held[id] = &heldPort{port: port, listen: l}
	return port, nil
}

// Open lets the task have the port: it is not listened on any more.
func (p *Ports) Open(id structs.AllocID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.held[id]; h != nil && h.listen != nil {
		h.listen.Close()
		h.listen = nil
	}
}

// Release gives the port of an allocation back.
func (p *Ports) Release(id structs.AllocID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropLocked(id)
}

func (p *Ports) dropLocked(id structs.AllocID) {
	if h := p.held[id]; h != nil && h.listen != nil {
		h.listen.Close()
	}
	delete(p.held, id)
}
