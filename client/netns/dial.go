package netns

import (
	"context"
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Dial connects to a TCP port in the network of an allocation: at its loopback, or at its address if nothing listens
// there.
func (a *Attached) Dial(ctx context.Context, port string) (*net.TCPConn, error) {
	ns, err := os.Open(a.Path)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var conn net.Conn
	<-thread(func() {
		// A socket stays in the network of the thread that makes it. For an address, the dialer makes it in this one.
		if err = os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)); err != nil {
			return
		}
		conn, err = DialFirst(ctx, port, "127.0.0.1", a.IP)
	})
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// DialFirst connects to the first of the IPv4 addresses that takes the connection; empty ones are skipped. The error is
// the first one.
func DialFirst(ctx context.Context, port string, ips ...string) (net.Conn, error) {
	var first error
	for _, ip := range ips {
		if ip == "" {
			continue
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp4", net.JoinHostPort(ip, port))
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
	}
	if first == nil {
		first = errors.New("it has no address")
	}
	return nil, first
}
