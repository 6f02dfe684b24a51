package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// leases is the assignment of addresses, as stored on disk: written completely, before anything is created and after
// everything is removed.
type leases struct {
	Bridge string
	Subnet string
	Last   string // address that was assigned last: the search for the next one begins after it, so that none is reused soon
	Allocs map[string]*lease
}

type lease struct {
	IP    string `json:",omitempty"` // "" without a bridge
	Ports []Port `json:",omitempty"`
}

func (l *lease) equal(o *lease) bool { return l.IP == o.IP && slices.Equal(l.Ports, o.Ports) }

// leasesMax limits the file; a larger one was not written by an agent.
const leasesMax = 64 << 20

func readLeases(path string) (leases, error) {
	s := leases{Allocs: map[string]*lease{}}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, leasesMax))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	if s.Allocs == nil {
		s.Allocs = map[string]*lease{}
	}
	maps.DeleteFunc(s.Allocs, func(_ string, l *lease) bool { return l == nil })
	return s, nil
}

func (m *Manager) save() error {
	b, err := json.Marshal(&m.state)
	if err == nil {
		err = renameio.WriteFile(m.dir("leases.json"), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("remember the networks of allocations: %w", err)
	}
	return nil
}

// bridged reports whether an allocation is on the bridge.
func (s *leases) bridged() bool {
	for _, l := range s.Allocs {
		if l.IP != "" {
			return true
		}
	}
	return false
}

func (s *leases) ids() []string { return slices.Sorted(maps.Keys(s.Allocs)) }

// pick finds an unassigned address other than the network's, the node's and the broadcast address.
func (s *leases) pick(subnet netip.Prefix) (netip.Addr, error) {
	taken := make(map[string]bool, len(s.Allocs))
	for _, l := range s.Allocs {
		taken[l.IP] = true
	}
	first := subnet.Addr().Next().Next()
	size := 1<<(32-subnet.Bits()) - 3
	at, err := netip.ParseAddr(s.Last)
	if err != nil || !subnet.Contains(at) {
		at = first.Prev()
	}
	for range size {
		at = at.Next()
		if !subnet.Contains(at) || !subnet.Contains(at.Next()) {
			at = first
		}
		if !taken[at.String()] {
			return at, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("all %d addresses of the bridge network %s are taken; a larger bridge_network_subnet has more", size, subnet)
}

// portFree refuses a port on which a program of the node listens: the rules would silently divert its traffic.
func portFree(p Port) error {
	ip := netip.IPv4Unspecified()
	if p.HostIP != "" {
		a, err := netip.ParseAddr(p.HostIP)
		if err != nil || !a.Unmap().Is4() {
			return nil // no rules are made for it
		}
		ip = a.Unmap()
	}
	for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("look whether port %d is free: %w", p.Host, err)
		}
		if kind == unix.SOCK_STREAM { // lingering connections are not listeners
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: p.Host, Addr: ip.As4()})
		}
		unix.Close(fd)
		if errors.Is(err, unix.EADDRINUSE) {
			return errors.New("port " + strconv.Itoa(p.Host) + " of the node is in use by something that is no allocation; take another port, or reserve it (client.reserved.reserved_ports)")
		}
	}
	return nil
}
