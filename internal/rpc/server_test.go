package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/structs"
)

// logLines collects a server's log.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

func (l *logLines) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: l, Level: hclog.Debug})
}

// closedByPeer reads until the connection is closed, for at most 10 s.
func closedByPeer(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the server kept the connection open")
	}
}

func frameBytes(kind, flags byte, id uint64, payload []byte) []byte {
	b := []byte{kind, flags}
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.BigEndian.AppendUint64(b, id)
	return append(b, payload...)
}

// hostile returns bytes that a peer may send after connecting to break the rules. The server must survive them.
func hostile() map[string][]byte {
	head, _ := Encode(&Header{Method: "Test.Echo"})
	rpc := func(frames ...[]byte) []byte { return append([]byte{byteRPC}, bytes.Join(frames, nil)...) }
	open := frameBytes(kindData, flagOpen|flagEnd, 1, head)
	deep := bytes.Repeat([]byte{0x91}, windowFree-1000)
	huge := []byte{0xdd, 0xff, 0xff, 0xff, 0xff}
	nils := append([]byte{0xdd, 0x00, 0x0f, 0x00, 0x00}, bytes.Repeat([]byte{0xc0}, windowFree-1000)...)
	resets := [][]byte{}
	for i := range uint64(3000) {
		resets = append(resets, frameBytes(kindData, flagOpen|flagEnd, 2*i+1, head), frameBytes(kindReset, 0, 2*i+1, []byte{1}))
	}
	return map[string][]byte{
		"nothing":            {},
		"zero":               {0},
		"http":               []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"tls hello":          {0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0},
		"ssh":                []byte("SSH-2.0-OpenSSH_9\r\n"),
		"rpc and nothing":    {byteRPC},
		"half a header":      {byteRPC, kindData, flagOpen, 0},
		"unknown kind":       rpc(frameBytes(99, 0, 1, nil)),
		"huge frame":         rpc([]byte{kindData, flagOpen, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1}),
		"stream zero":        rpc(frameBytes(kindData, flagOpen, 0, nil)),
		"even stream":        rpc(frameBytes(kindData, flagOpen, 2, nil)),
		"same stream twice":  rpc(open, open),
		"never opened":       rpc(frameBytes(kindData, flagEnd, 7, []byte("x")), frameBytes(kindCredit, 0, 9, []byte{0, 0, 0, 1})),
		"short ping":         rpc(frameBytes(kindPing, 0, 0, []byte("x"))),
		"credit too large":   rpc(open, frameBytes(kindCredit, 0, 1, []byte{0xff, 0xff, 0xff, 0xff})),
		"credit of 3 bytes":  rpc(open, frameBytes(kindCredit, 0, 1, []byte{1, 2, 3})),
		"reset of 0 bytes":   rpc(open, frameBytes(kindReset, 0, 1, nil)),
		"unknown reset":      rpc(open, frameBytes(kindReset, 0, 1, []byte{200})),
		"garbage header":     rpc(frameBytes(kindData, flagOpen|flagEnd, 1, []byte{0xc1, 0xff, 0x93})),
		"empty header":       rpc(frameBytes(kindData, flagOpen|flagEnd|flagFin, 1, nil)),
		"header is a list":   rpc(frameBytes(kindData, flagOpen|flagEnd, 1, []byte{0x93, 1, 2, 3}), frameBytes(kindData, flagEnd|flagFin, 1, []byte{0x80})),
		"no body":            rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, nil)),
		"garbage body":       rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, []byte{0xc1})),
		"deep body":          rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, deep)),
		"lying length":       rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, huge)),
		"many nils":          rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, nils)),
		"trailing bytes":     rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, []byte{0x80, 0x80})),
		"data after the end": rpc(open, frameBytes(kindData, flagEnd|flagFin, 1, []byte{0x80}), frameBytes(kindData, flagEnd, 1, []byte("x"))),
		"tiny fragments":     rpc(bytes.Repeat(frameBytes(kindData, 0, 1, []byte("x")), 1), bytes.Repeat(frameBytes(kindData, flagOpen, 3, nil), 1), bytes.Repeat(frameBytes(kindData, 0, 3, nil), 10000)),
		"ping flood":         rpc(bytes.Repeat(frameBytes(kindPing, 0, 0, make([]byte, 8)), 5000)),
		"open and reset":     rpc(resets...),
		"raft garbage":       append([]byte{byteRaft}, bytes.Repeat([]byte{0xff}, 1000)...),
	}
}

func TestHostileBytes(t *testing.T) {
	r, _ := testRegistry()
	_, addr := serveTCP(t, ServerConfig{Registry: r, MaxConnsPerIP: -1})
	good := newPool(t, PoolConfig{}).To(addr)
	for name, b := range hostile() {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			go io.Copy(io.Discard, c)
			c.Write(b)
			c.(*net.TCPConn).CloseWrite()
			if _, err := Invoke(t.Context(), good, mEcho, Header{}, &echoReq{Text: name}); err != nil {
				t.Errorf("another caller: %v", err)
			}
		})
	}
	if n := r.methods["Test.Echo"]; n == nil {
		t.Error("registry lost")
	}
}

// FuzzSession feeds bytes to a session as its reader would get them.
func FuzzSession(f *testing.F) {
	for _, b := range hostile() {
		if len(b) > 1 && len(b) < 4096 && b[0] == byteRPC { // TestHostileBytes has the long ones
			f.Add(b[1:])
		}
	}
	r, _ := testRegistry()
	f.Fuzz(func(t *testing.T, b []byte) {
		near, far := net.Pipe()
		m := NewServer(ServerConfig{Registry: r})
		done := make(chan struct{})
		m.wg.Add(1)
		go func() {
			defer close(done)
			defer m.wg.Done()
			m.handle(far, "x")
		}()
		go io.Copy(io.Discard, near)
		near.SetWriteDeadline(time.Now().Add(5 * time.Second))
		near.Write([]byte{byteRPC})
		near.Write(b)
		near.Close()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("the connection was closed and its session lives on")
		}
	})
}

// FuzzDecode checks that nothing crashes the decoder, and that the shape check accepts every encoded value.
func FuzzDecode(f *testing.F) {
	for _, v := range []any{&echoReq{Text: "x", Data: []byte{1}, At: time.Unix(1, 2), N: -5, Tags: map[string]string{"a": "b"}}, &Header{Method: "m", TimeoutNs: 1 << 40}} {
		b, err := Encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(bytes.Repeat([]byte{0x91}, 2000))
	f.Add([]byte{0xc9, 0, 0, 0, 3, 1, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		var q echoReq
		if Decode(b, &q) == nil {
			again, err := Encode(&q)
			if err != nil {
				t.Fatalf("what decodes does not encode: %v", err)
			}
			if err := checkShape(again); err != nil {
				t.Fatalf("shape check refuses what we encoded: %v", err)
			}
		}
		var a any
		Decode(b, &a)
	})
}

func TestConnsPerIP(t *testing.T) {
	r, _ := testRegistry()
	var log logLines
	_, addr := serveTCP(t, ServerConfig{Registry: r, MaxConnsPerIP: 3, Log: log.logger()})
	var pools []*Pool
	for range 3 {
		p := newPool(t, PoolConfig{})
		if _, err := Invoke(t.Context(), p.To(addr), mEcho, Header{}, &echoReq{}); err != nil {
			t.Fatal(err)
		}
		pools = append(pools, p)
	}
	if _, err := Invoke(t.Context(), newPool(t, PoolConfig{}).To(addr), mEcho, Header{}, &echoReq{}); err == nil {
		t.Error("a fourth connection was accepted")
	}
	if !log.has("per-ip") {
		t.Error("the refusal was not logged")
	}
	pools[0].Close()
	p := newPool(t, PoolConfig{})
	eventually(t, "room again", func() bool {
		_, err := Invoke(t.Context(), p.To(addr), mEcho, Header{}, &echoReq{})
		return err == nil
	})
}

// certs makes a CA and the files of one agent for each role.
func certs(t *testing.T, dir, region string, roles ...tlsutil.Role) map[tlsutil.Role]*tlsutil.Source {
	t.Helper()
	ca, err := tlsutil.NewCA(tlsutil.CAOptions{})
	if err != nil {
		t.Fatal(err)
	}
	caFile := filepath.Join(dir, "ca.pem")
	if err := ca.Write(caFile, filepath.Join(dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	out := map[tlsutil.Role]*tlsutil.Source{}
	for _, role := range roles {
		p, err := tlsutil.NewCert(ca, tlsutil.CertOptions{Role: role, Region: region})
		if err != nil {
			t.Fatal(err)
		}
		f := tlsutil.Files{CA: caFile, Cert: filepath.Join(dir, string(role)+".pem"), Key: filepath.Join(dir, string(role)+"-key.pem")}
		if err := p.Write(f.Cert, f.Key); err != nil {
			t.Fatal(err)
		}
		if out[role], err = tlsutil.Load(f, region); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestTLSRoles(t *testing.T) {
	ours := certs(t, t.TempDir(), "global", tlsutil.RoleServer, tlsutil.RoleClient, tlsutil.RoleCLI)
	theirs := certs(t, t.TempDir(), "global", tlsutil.RoleServer)
	elsewhere := certs(t, t.TempDir(), "mars", tlsutil.RoleServer)
	r, _ := testRegistry()
	whoami := Method[echoReq, echoResp]{"Test.WhoAmI"}
	Handle(r, whoami, func(ctx context.Context, c *Call, q *echoReq) (*echoResp, error) {
		return &echoResp{Text: fmt.Sprintf("%s %s %s %v", c.Peer.Role, c.Peer.Region, c.Peer.Name, c.Peer.TLS)}, nil
	})
	var log logLines
	s, addr := serveTCP(t, ServerConfig{Registry: r, TLS: ours[tlsutil.RoleServer].RPCServer(), MaxConnsPerIP: 5, Log: log.logger()})

	for _, role := range []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleClient, tlsutil.RoleCLI} {
		// Six verified peers do not count against the limit of 5 per address.
		for range 2 {
			p := newPool(t, PoolConfig{Dial: TLSDialer(NetDialer(), ours[role].Client)})
			got, err := Invoke(t.Context(), p.To(addr), whoami, Header{}, &echoReq{})
			want := fmt.Sprintf("%s global %s.global.muster true", role, role)
			if err != nil || got.Text != want {
				t.Errorf("%s: %v, %v", role, got, err)
			}
		}
	}
	for name, dial := range map[string]Dialer{
		"another CA":     TLSDialer(NetDialer(), theirs[tlsutil.RoleServer].Client),
		"another region": TLSDialer(NetDialer(), elsewhere[tlsutil.RoleServer].Client),
		"plaintext":      NetDialer(),
		"no certificate": TLSDialer(NetDialer(), func() *tls.Config {
			c := ours[tlsutil.RoleClient].Client()
			c.Certificates = nil
			return c
		}),
		"TLS 1.2": TLSDialer(NetDialer(), func() *tls.Config {
			c := ours[tlsutil.RoleClient].Client()
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			return c
		}),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t, PoolConfig{Dial: dial})
			if _, err := Invoke(t.Context(), p.To(addr), mEcho, Header{}, &echoReq{}); err == nil {
				t.Errorf("%s: accepted", name)
			}
			if name == "no certificate" { // TLS 1.3 refuses after the handshake; a reset may overtake the reason
				eventually(t, "the caller learns why", func() bool {
					_, err := Invoke(t.Context(), p.To(addr), mEcho, Header{}, &echoReq{})
					return err != nil && strings.Contains(err.Error(), "tls: certificate required")
				})
			}
		})
	}
	eventually(t, "plaintext is logged", func() bool { return log.has("plaintext connection (first byte 0x02)") })

	// Raft requires a server certificate.
	for role, ok := range map[tlsutil.Role]bool{tlsutil.RoleServer: true, tlsutil.RoleClient: false, tlsutil.RoleCLI: false} {
		var c net.Conn
		// A connection counts against the limit until its certificate is known, and a refused one until it is closed.
		eventually(t, "a connection as "+string(role), func() bool {
			var err error
			c, err = TLSDialer(NetDialer(), ours[role].Client)(t.Context(), addr)
			return err == nil
		})
		c.Write([]byte{byteRaft})
		if ok {
			rc, err := s.RaftConns().Accept()
			if err != nil {
				t.Fatal(err)
			}
			rc.Close()
		} else {
			closedByPeer(t, c)
			eventually(t, "the refusal is logged", func() bool { return log.has("raft-role") })
		}
		c.Close()
	}
	// A server that listens with a client certificate is not accepted as a server.
	r2, _ := testRegistry()
	_, impostor := serveTCP(t, ServerConfig{Registry: r2, TLS: ours[tlsutil.RoleClient].RPCServer()})
	p := newPool(t, PoolConfig{Dial: TLSDialer(NetDialer(), ours[tlsutil.RoleClient].Client)})
	if _, err := Invoke(t.Context(), p.To(impostor), mEcho, Header{}, &echoReq{}); structs.CodeOf(err) != structs.CodeUnavailable {
		t.Errorf("client certificate on a server: %v", err)
	}
}

func TestTLSOnPlaintextPort(t *testing.T) {
	ours := certs(t, t.TempDir(), "global", tlsutil.RoleClient)
	r, _ := testRegistry()
	var log logLines
	_, addr := serveTCP(t, ServerConfig{Registry: r, Log: log.logger()})
	p := newPool(t, PoolConfig{Dial: TLSDialer(NetDialer(), ours[tlsutil.RoleClient].Client)})
	if _, err := Invoke(t.Context(), p.To(addr), mEcho, Header{}, &echoReq{}); err == nil {
		t.Error("accepted")
	}
	eventually(t, "it is logged", func() bool { return log.has("tls-on-plaintext") })
}
