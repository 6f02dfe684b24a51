package tlsutil

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// Files are the paths of an agent's TLS material. Their content may change; see Reload.
type Files struct {
	CA   string // PEM, one or more trusted certificates
	Cert string // PEM, this agent's certificate
	Key  string // PEM, its key
}

// Source holds an agent's TLS material and returns configurations that follow it: after Reload new connections use the
// new files; existing ones are unaffected.
type Source struct {
	files  Files // empty for a join key
	region string
	name   string // that dialled servers must have; "": their role and region
	now    atomic.Pointer[loaded]
}

type loaded struct {
	pool *x509.CertPool
	cert tls.Certificate
	ends time.Time // of the certificate or of the first that ends of those that signed it
}

// Load reads the files. region is the region whose servers this agent talks to; "" is "global".
func Load(f Files, region string) (*Source, error) {
	if region == "" {
		region = "global"
	}
	s := &Source{files: f, region: region}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// Reload reads the files again. On an error the old material stays in use.
func (s *Source) Reload() error {
	if s.files == (Files{}) {
		return errNotFromFiles
	}
	ca, err := os.ReadFile(s.files.CA)
	if err != nil {
		return fmt.Errorf("read CA: %w", err)
	}
	l := &loaded{pool: x509.NewCertPool()}
	if !l.pool.AppendCertsFromPEM(ca) {
		return fmt.Errorf("read CA %s: it holds no PEM certificate", s.files.CA)
	}
	if l.cert, err = tls.LoadX509KeyPair(s.files.Cert, s.files.Key); err != nil {
		return fmt.Errorf("read certificate %s with key %s: %w", s.files.Cert, s.files.Key, err)
	}
	if l.cert.Leaf == nil {
		if l.cert.Leaf, err = x509.ParseCertificate(l.cert.Certificate[0]); err != nil {
			return fmt.Errorf("read certificate %s: %w", s.files.Cert, err)
		}
	}
	chains, err := l.cert.Leaf.Verify(x509.VerifyOptions{Roots: l.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return fmt.Errorf("certificate %s does not verify against CA %s: %w", s.files.Cert, s.files.CA, err)
	}
	for _, chain := range chains {
		ends := chain[0].NotAfter
		for _, c := range chain {
			ends = earlier(ends, c.NotAfter)
		}
		if ends.After(l.ends) {
			l.ends = ends
		}
	}
	s.now.Store(l)
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// NotAfter returns when this agent's certificate, or one that signed it, expires. Only certificates from files expire.
func (s *Source) NotAfter() time.Time { return s.now.Load().ends }

// Leaf is this agent's certificate.
func (s *Source) Leaf() *x509.Certificate { return s.now.Load().cert.Leaf }

// RPCServer returns the configuration of the RPC port, which requires a verified client certificate.
func (s *Source) RPCServer() *tls.Config {
	return s.server(tls.RequireAndVerifyClientCert)
}

// HTTPServer returns the configuration of the HTTP port. With verifyClients it requires client certificates too.
func (s *Source) HTTPServer(verifyClients bool) *tls.Config {
	if verifyClients {
		return s.server(tls.RequireAndVerifyClientCert)
	}
	return s.server(tls.NoClientCert)
}

func (s *Source) server(auth tls.ClientAuthType) *tls.Config {
	make := func() *tls.Config {
		l := s.now.Load()
		return &tls.Config{
			MinVersion:   tls.VersionTLS13,
			Certificates: []tls.Certificate{l.cert},
			ClientAuth:   auth,
			ClientCAs:    l.pool,
			// A resumed session would outlive a reload of the CA.
			SessionTicketsDisabled: true,
		}
	}
	c := make()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return make(), nil }
	return c
}

// Client returns the configuration for dialling a server's RPC port: the other end must hold a server certificate of
// the region. Call it for every connection, so that a Reload takes effect (rpc.TLSDialer does).
func (s *Source) Client() *tls.Config { return s.ClientTo(s.region) }

// ClientTo is Client for servers of another region.
func (s *Source) ClientTo(region string) *tls.Config {
	l := s.now.Load()
	name := s.name
	if name == "" {
		name = RoleServer.Name(region)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{l.cert},
		RootCAs:      l.pool,
		ServerName:   name,
	}
}

// RoleOf returns the role and region of a verified certificate, or "" and "".
func RoleOf(cert *x509.Certificate) (Role, string) {
	for _, n := range cert.DNSNames {
		if r, region, ok := splitRole(n); ok {
			return r, region
		}
	}
	return "", ""
}

func splitRole(name string) (Role, string, bool) {
	rest, ok := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), ".muster")
	if !ok {
		return "", "", false
	}
	role, region, ok := strings.Cut(rest, ".")
	r := Role(role)
	if !ok || region == "" || (r != RoleServer && r != RoleClient && r != RoleCLI) {
		return "", "", false
	}
	return r, region, true
}

func grantsRole(name string) bool {
	_, _, ok := splitRole(name)
	return ok || strings.HasPrefix(name, "*.") && strings.HasSuffix(strings.TrimSuffix(strings.ToLower(name), "."), "muster")
}
