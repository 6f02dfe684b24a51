package edge

import (
	"bytes"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// listener is a listener whose connections are accepted and held.
type listener struct {
	net.Listener
	accepted chan net.Conn
}

func hold(t *testing.T, l net.Listener) *listener {
	t.Helper()
	out := &listener{l, make(chan net.Conn, 64)}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			out.accepted <- c
		}
	}()
	t.Cleanup(func() { l.Close() })
	return out
}

// dial reports whether a new connection is kept; kept is the agent's end of it.
func (l *listener) dial(t *testing.T) (kept net.Conn) {
	t.Helper()
	c, err := net.Dial(l.Addr().Network(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.Read(make([]byte, 1))
	}()
	select {
	case kept = <-l.accepted:
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("a connection was neither accepted nor closed")
	}
	return kept
}

func listen(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestConnsPerClient(t *testing.T) {
	var log bytes.Buffer
	conns := NewConns(2, 0, hclog.New(&hclog.LoggerOptions{Output: &log}))
	sock := filepath.Join(t.TempDir(), "s")
	for _, inner := range []net.Listener{listen(t, "tcp", "127.0.0.1:0"), listen(t, "unix", sock)} {
		t.Run(inner.Addr().Network(), func(t *testing.T) {
			l := hold(t, conns.Listener(inner, ""))
			first := l.dial(t)
			if first == nil || l.dial(t) == nil {
				t.Fatal("two connections were not served")
			}
			for range 3 {
				if l.dial(t) != nil {
					t.Error("the third connection of a client was served")
				}
			}
			first.Close()
			first.Close() // counted once
			if l.dial(t) == nil {
				t.Error("a connection after another had closed was not served")
			}
			if l.dial(t) != nil {
				t.Error("closing twice made room for two")
			}
		})
	}
	if n := strings.Count(logged(conns, &log), "were refused"); n != 1 || !strings.Contains(logged(conns, &log), "http_max_conns_per_client") {
		t.Errorf("%d lines about refusals, want one with the setting:\n%s", n, logged(conns, &log))
	}
	if NewConns(-1, 0, hclog.NewNullLogger()).perClient != 0 {
		t.Error("a negative limit limits")
	}
}

// logged returns what was logged so far. Refusals are logged under the lock.
func logged(conns *Conns, log *bytes.Buffer) string {
	conns.mu.Lock()
	defer conns.mu.Unlock()
	return log.String()
}

// TestConnsTotal: many clients together meet the total over all listeners. Root and the agent's own user do not.
func TestConnsTotal(t *testing.T) {
	var log bytes.Buffer
	conns := NewConns(3, 4, hclog.New(&hclog.LoggerOptions{Output: &log}))
	tcp := hold(t, conns.Listener(listen(t, "tcp", "127.0.0.1:0"), ""))
	for range 3 {
		tcp.dial(t)
	}
	dir := t.TempDir()
	for i, want := range []bool{true, false} {
		task := hold(t, conns.Listener(listen(t, "unix", filepath.Join(dir, fmt.Sprint(i))), fmt.Sprint("task ", i)))
		if got := task.dial(t) != nil; got != want {
			t.Errorf("connection %d in total: served %v, want %v", 4+i, got, want)
		}
	}
	if !strings.Contains(logged(conns, &log), "raise http_max_conns in") {
		t.Errorf("no line with the setting:\n%s", logged(conns, &log))
	}
	if hold(t, conns.Listener(listen(t, "unix", filepath.Join(dir, "own")), "")).dial(t) == nil {
		t.Error("the agent's own user was refused at the total")
	}
}
