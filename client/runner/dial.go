package runner

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/muster-sched/muster/client/netns"
	"github.com/muster-sched/muster/structs"
)

// dialPatience limits the time in which a port of an allocation must take a connection.
const dialPatience = 5 * time.Second

// portOf finds a port of an allocation by label or number: its number where it listens and, in the network of the node,
// the addresses. In its own network an allocation has every port. In the network of the node it has those that it
// reserved: others belong to the node or to other allocations, and a forward would be a way to them.
func portOf(a *structs.Allocation, g *structs.Group, port string) (number int, ips []string, err error) {
	own := g != nil && g.OwnNetwork() != ""
	number, numeric := strconv.Atoi(port)
	var labels []string
	for _, p := range a.Ports {
		labels = append(labels, p.Label)
		switch {
		case own && p.Label == port && p.To > 0:
			return p.To, nil, nil
		case own && p.Label == port:
			return p.Value, nil, nil
		case own || p.Label != port && (numeric != nil || p.Value != number):
			continue
		case g != nil && named(g, p.Label): // another program may have the number at the node's other addresses
			return p.Value, []string{p.HostIP}, nil
		}
		return p.Value, []string{"127.0.0.1", p.HostIP}, nil
	}
	has := "it has no labels of ports"
	if len(labels) > 0 {
		has = "it has " + strings.Join(labels, ", ")
	}
	switch {
	case numeric != nil:
		return 0, nil, structs.Errorf(structs.CodeInvalid, "allocation %s has no port %.40q: %s", a.ID.Short(), port, has)
	case number < 1 || number > 65535:
		return 0, nil, structs.Errorf(structs.CodeInvalid, "port %.40q: want a label, or a number from 1 to 65535", port)
	case !own:
		return 0, nil, structs.Errorf(structs.CodeInvalid, "allocation %s has not reserved port %d: in the network of its node (mode host) only the ports of its network block can be reached, and %s", a.ID.Short(), number, has)
	}
	return number, nil, nil
}

// CheckPort returns an error if the allocation has no such port.
func (r *Runner) CheckPort(port string) error {
	_, _, err := portOf(r.Alloc(), r.group(), port)
	return err
}

// Reachable returns an error unless the named task runs, or any task (name ""), and is not frozen.
func (r *Runner) Reachable(task string) error {
	if r.Final() != nil {
		return structs.Errorf(structs.CodeInvalid, "allocation %s has ended", r.id.Short())
	}
	if r.dir == nil {
		return structs.Errorf(structs.CodeUnsupported, "simulated node: allocation %s has no network", r.id.Short())
	}
	if task != "" {
		t, err := r.find(task)
		if err == nil {
			_, err = t.running()
		}
		if err != nil {
			return err
		}
	} else if len(r.Running()) == 0 {
		return structs.Errorf(structs.CodeInvalid, "Task not running: no task of allocation %s runs", r.id.Short())
	}
	return r.errSuspended("a frozen task answers no connection")
}

// Dial connects to a port of the allocation, given by label or number.
func (r *Runner) Dial(ctx context.Context, port string) (*net.TCPConn, error) {
	n, ips, err := portOf(r.Alloc(), r.group(), port)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	number := strconv.Itoa(n)
	where := "its node's network"
	var c *net.TCPConn
	if ips == nil {
		own := r.network()
		if own == nil {
			return nil, structs.Errorf(structs.CodeInvalid, "the network of allocation %s is gone", r.id.Short())
		}
		where = "its own network"
		c, err = own.Dial(ctx, number)
	} else {
		var nc net.Conn
		if nc, err = netns.DialFirst(ctx, number, ips...); err == nil {
			c = nc.(*net.TCPConn)
		}
	}
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, structs.Errorf(structs.CodeInvalid, "nothing listens on port %d of allocation %s, in %s", n, r.id.Short(), where)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return nil, structs.Errorf(structs.CodeInvalid, "port %d of allocation %s took no connection within %s", n, r.id.Short(), dialPatience)
	}
	return nil, structs.Errorf(structs.CodeInvalid, "connect to port %d of allocation %s: %v", n, r.id.Short(), err)
}
