package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newCA(t *testing.T) Pair {
	t.Helper()
	ca, err := NewCA(CAOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func leaf(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	b, _ := pem.Decode(p.Cert)
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCreate(t *testing.T) {
	ca := newCA(t)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.Cert)
	for _, role := range []Role{RoleServer, RoleClient, RoleCLI} {
		p, err := NewCert(ca, CertOptions{Role: role, Region: "eu-1", Extra: []string{"gpu.example.org", "10.1.2.3"}})
		if err != nil {
			t.Fatal(err)
		}
		c := leaf(t, p)
		for _, name := range []string{string(role) + ".eu-1.muster", "localhost", "127.0.0.1", "gpu.example.org", "10.1.2.3"} {
			if err := c.VerifyHostname(name); err != nil {
				t.Errorf("%s: %v", role, err)
			}
		}
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		if r, region := RoleOf(c); r != role || region != "eu-1" {
			t.Errorf("role %q region %q", r, region)
		}
		if c.IsCA || c.PublicKeyAlgorithm != x509.ECDSA {
			t.Errorf("%s: CA %v, key %v", role, c.IsCA, c.PublicKeyAlgorithm)
		}
	}
	// A certificate never outlives its CA.
	short, _ := NewCA(CAOptions{ValidFor: time.Hour})
	p, err := NewCert(short, CertOptions{Role: RoleServer})
	if err != nil || leaf(t, p).NotAfter.After(leaf(t, short).NotAfter) {
		t.Errorf("outlives its CA: %v", err)
	}
}

func TestCreateRefuses(t *testing.T) {
	ca := newCA(t)
	server, _ := NewCert(ca, CertOptions{Role: RoleServer})
	for name, x := range map[string]struct {
		ca   Pair
		o    CertOptions
		says string
	}{
		"role":            {ca, CertOptions{Role: "root"}, "none of server"},
		"no role":         {ca, CertOptions{}, "none of server"},
		"region":          {ca, CertOptions{Role: RoleServer, Region: "EU 1"}, "region"},
		"region with dot": {ca, CertOptions{Role: RoleServer, Region: "a.b"}, "region"},
		"extra":           {ca, CertOptions{Role: RoleServer, Extra: []string{"not a name"}}, "neither"},
		"second role":     {ca, CertOptions{Role: RoleClient, Extra: []string{"Server.global.muster"}}, "second role"},
		"wildcard role":   {ca, CertOptions{Role: RoleClient, Extra: []string{"*.global.muster"}}, "second role"},
		"validity":        {ca, CertOptions{Role: RoleClient, ValidFor: -1}, "negative"},
		"not a CA":        {server, CertOptions{Role: RoleClient}, "not a CA"},
		"empty CA":        {Pair{}, CertOptions{Role: RoleClient}, "no PEM block"},
		"key of another":  {Pair{ca.Cert, server.Key}, CertOptions{Role: RoleClient}, "does not belong"},
		"cert for key":    {Pair{ca.Cert, ca.Cert}, CertOptions{Role: RoleClient}, "not PRIVATE KEY"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := NewCert(x.ca, x.o); err == nil || !strings.Contains(err.Error(), x.says) {
				t.Errorf("%s: %v; want an error, %q in it", name, err, x.says)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	ca := newCA(t)
	cert, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	if err := ca.Write(cert, key); err != nil {
		t.Fatal(err)
	}
	for f, mode := range map[string]os.FileMode{cert: 0o644, key: 0o600} {
		st, err := os.Stat(f)
		if err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want st.Mode().Perm() = %v", f, st.Mode(), err, mode)
		}
	}
	if err := newCA(t).Write(cert, filepath.Join(dir, "other-key.pem")); err == nil || !strings.Contains(err.Error(), "exists already") {
		t.Errorf("overwrote a certificate: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other-key.pem")); err == nil {
		t.Error("left a key behind without its certificate")
	}
	if err := newCA(t).Write(filepath.Join(dir, "other.pem"), key); err == nil {
		t.Error("overwrote a key")
	}
	if err := newCA(t).Write(filepath.Join(dir, "no", "x.pem"), filepath.Join(dir, "y.pem")); err == nil {
		t.Error("wrote into a folder that is not there")
	} else if _, err := os.Stat(filepath.Join(dir, "y.pem")); err == nil {
		t.Error("left a key behind without its certificate")
	}
	got, err := Read(cert, key)
	if err != nil || string(got.Cert) != string(ca.Cert) || string(got.Key) != string(ca.Key) {
		t.Errorf("read back: %v", err)
	}
}

// files writes a certificate of ca and the CA into dir, over what is there.
func files(t *testing.T, dir string, ca Pair, o CertOptions) Files {
	t.Helper()
	p, err := NewCert(ca, o)
	if err != nil {
		t.Fatal(err)
	}
	f := Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for name, b := range map[string][]byte{f.CA: ca.Cert, f.Cert: p.Cert, f.Key: p.Key} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func load(t *testing.T, f Files) *Source {
	t.Helper()
	s, err := Load(f, "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shake connects client to server and returns what each side says and the server's view of the connection.
func shake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type result struct {
		st  tls.ConnectionState
		err error
	}
	ch := make(chan result, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			ch <- result{err: err}
			return
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(5 * time.Second))
		c := tls.Server(raw, server)
		err = c.Handshake()
		ch <- result{c.ConnectionState(), err}
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), client)
	if err == nil {
		c.SetDeadline(time.Now().Add(5 * time.Second))
		io.ReadAll(c)
		c.Close()
	}
	r := <-ch
	if err == nil {
		err = r.err
	}
	return r.st, err
}

// TestNotAfter has an agent's certificate that outlives the one that signed it.
func TestNotAfter(t *testing.T) {
	ca := newCA(t)
	f := files(t, t.TempDir(), ca, CertOptions{Role: RoleServer, ValidFor: time.Hour})
	if s := load(t, f); !s.NotAfter().Equal(s.Leaf().NotAfter) {
		t.Errorf("%v, and the certificate ends at %v", s.NotAfter(), s.Leaf().NotAfter)
	}
	short, err := NewCA(CAOptions{ValidFor: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	signer, signerKey, err := parsePair(short)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewCert(ca, CertOptions{Role: RoleServer})
	if err != nil {
		t.Fatal(err)
	}
	c, key, err := parsePair(p)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = sign(c, signer, key, signerKey); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{f.CA: short.Cert, f.Cert: p.Cert, f.Key: p.Key} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if s := load(t, f); !s.NotAfter().Equal(signer.NotAfter) || !s.Leaf().NotAfter.After(signer.NotAfter) {
		t.Errorf("%v, and the authority ends at %v", s.NotAfter(), signer.NotAfter)
	}
}

func TestReload(t *testing.T) {
	dir, cdir := t.TempDir(), t.TempDir()
	ca := newCA(t)
	f := files(t, dir, ca, CertOptions{Role: RoleServer})
	server := load(t, f)
	client := load(t, files(t, cdir, ca, CertOptions{Role: RoleClient}))
	conf := server.RPCServer() // made once, as a listener does
	_, err := shake(t, conf, client.Client())
	if err != nil {
		t.Fatal(err)
	}

	// A new CA on the server's disk: nothing changes before Reload; then the old client is refused, the new one taken.
	ca2 := newCA(t)
	files(t, dir, ca2, CertOptions{Role: RoleServer})
	if _, err := shake(t, conf, client.Client()); err != nil {
		t.Errorf("before the reload: %v", err)
	}
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := shake(t, conf, client.Client()); err == nil {
		t.Error("the old CA is still trusted")
	}
	files(t, cdir, ca2, CertOptions{Role: RoleClient})
	if err := client.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := shake(t, conf, client.Client()); err != nil {
		t.Errorf("after both reloads: %v", err)
	}

	// Broken files: an error, and what was loaded stays.
	for name, spoil := range map[string]func(){
		"truncated key": func() { os.WriteFile(f.Key, []byte("-----BEGIN"), 0o600) },
		"foreign CA":    func() { files(t, dir, ca2, CertOptions{Role: RoleServer}); os.WriteFile(f.CA, ca.Cert, 0o600) },
		"empty CA":      func() { os.WriteFile(f.CA, nil, 0o600) },
		"no file":       func() { os.Remove(f.CA) },
	} {
		spoil()
		if err := server.Reload(); err == nil {
			t.Errorf("%s: reloaded", name)
		}
		if _, err := shake(t, conf, client.Client()); err != nil {
			t.Errorf("%s: after the failed reload: %v", name, err)
		}
		files(t, dir, ca2, CertOptions{Role: RoleServer})
	}
}

func TestRefusals(t *testing.T) {
	ca := newCA(t)
	server := load(t, files(t, t.TempDir(), ca, CertOptions{Role: RoleServer}))
	client := load(t, files(t, t.TempDir(), ca, CertOptions{Role: RoleClient}))
	expired := func() *tls.Config {
		p, err := NewCert(ca, CertOptions{Role: RoleClient, ValidFor: time.Hour, Now: time.Now().Add(-48 * time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		kp, err := tls.X509KeyPair(p.Cert, p.Key)
		if err != nil {
			t.Fatal(err)
		}
		c := client.Client()
		c.Certificates = []tls.Certificate{kp}
		return c
	}
	bare := client.Client()
	bare.Certificates = nil
	old := client.Client()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for name, x := range map[string]struct {
		server, client *tls.Config
		ok             bool
	}{
		"good":                  {server.RPCServer(), client.Client(), true},
		"server to server":      {server.RPCServer(), server.Client(), true},
		"no certificate":        {server.RPCServer(), bare, false},
		"expired":               {server.RPCServer(), expired(), false},
		"TLS 1.2":               {server.RPCServer(), old, false},
		"another region":        {server.RPCServer(), client.ClientTo("mars"), false},
		"client as server":      {client.RPCServer(), client.Client(), false},
		"http, no certificate":  {server.HTTPServer(false), bare, true},
		"http, one is demanded": {server.HTTPServer(true), bare, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := shake(t, x.server, x.client); (err == nil) != x.ok {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
