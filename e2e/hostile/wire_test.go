//go:build e2e

package hostile

import (
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// testPorts sends garbage to the RPC port and to the gossip port.
func testPorts(t *testing.T, v *victim) {
	noise := make([]byte, 64<<10)
	_, _ = rand.Read(noise)
	for _, c := range []struct{ name, data string }{
		{"nothing", ""},
		{"noise", string(noise)},
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
		{"zeros", strings.Repeat("\x00", 4096)},
		{"raft without right", "\x01" + strings.Repeat("\x00", 64)},
		{"raft of noise", "\x01" + string(noise)},
		{"each first byte", ""},
		{"half a TLS handshake", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
		{"a frame of 4 GiB", "\x02\xff\xff\xff\xff" + strings.Repeat("\xff", 64)},
		{"a frame of 4 GiB with noise behind", "\x02\xff\xff\xff\xff" + string(noise)},
	} {
		t.Run("rpc "+c.name, func(t *testing.T) {
			if c.name == "each first byte" {
				for b := range 256 {
					conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", rpcPort))
					if err != nil {
						t.Fatal(err)
					}
					_, _ = conn.Write(append([]byte{byte(b)}, noise[:2048]...))
					conn.Close()
				}
			} else if _, closed := raw(t, rpcPort, 25*time.Second, c.data); !closed {
				t.Errorf("still open after 25 s")
			}
			v.alive(t)
		})
	}
	t.Run("rpc 200 silent connections", func(t *testing.T) {
		var conns []net.Conn
		for range 200 {
			conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", rpcPort), 2*time.Second)
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		v.alive(t)
		for _, c := range conns {
			c.Close()
		}
	})
	t.Run("gossip tcp", func(t *testing.T) {
		for _, d := range []string{"", string(noise), "\x06" + string(noise[:100]), "\xff\xff\xff\xff\xff", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x0a\xff", 2000)} {
			conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", serfPort))
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
			_, _ = io.WriteString(conn, d)
			_, _ = io.ReadAll(io.LimitReader(conn, 1<<20))
			conn.Close()
		}
		v.alive(t)
	})
	t.Run("gossip udp", func(t *testing.T) {
		conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", serfPort))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for i := range 5000 {
			_, _ = conn.Write(append([]byte{byte(i)}, noise[i%1000:i%1000+i%1400]...))
		}
		v.alive(t)
	})
}
