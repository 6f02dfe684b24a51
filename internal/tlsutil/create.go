// Package tlsutil makes the certificates of a cluster and the TLS configurations that use them.
//
// One CA per cluster (ECDSA P-256). A certificate's role and region are DNS names in it: server.<region>.muster,
// client.<region>.muster or cli.<region>.muster. Both ends of an RPC connection present one; TLS 1.3 only.
package tlsutil

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"regexp"
	"time"
)

// Role is what the holder of a certificate may do.
type Role string

// All roles.
const (
	RoleServer Role = "server" // may join raft, answer calls and serve HTTP
	RoleClient Role = "client" // a node agent
	RoleCLI    Role = "cli"    // a user's command line
)

// Name returns the DNS name that grants the role in a region.
func (r Role) Name(region string) string { return string(r) + "." + region + ".muster" }

// CAOptions are the settings of a new CA.
type CAOptions struct {
	CommonName string        // "" is "Muster CA"
	ValidFor   time.Duration // 0 is five years
	Now        time.Time     // zero is the current time
}

// CertOptions are the settings of a new certificate.
type CertOptions struct {
	Role     Role
	Region   string        // "" is "global"
	Extra    []string      // further DNS names or IP addresses; localhost and 127.0.0.1 are always included
	ValidFor time.Duration // 0 is one year
	Now      time.Time     // zero is the current time
}

// Pair is a certificate and its key, both PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

const backdate = 5 * time.Minute // certificates become valid this long before now, because clocks differ

// NewCA makes a CA.
func NewCA(o CAOptions) (Pair, error) {
	if o.CommonName == "" {
		o.CommonName = "Muster CA"
	}
	if o.ValidFor == 0 {
		o.ValidFor = 5 * 365 * 24 * time.Hour
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	if o.ValidFor < 0 {
		return Pair{}, fmt.Errorf("create CA: the validity of %s is negative", o.ValidFor)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("create CA key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return Pair{}, err
	}
	tpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: o.CommonName, Organization: []string{"Muster"}},
		NotBefore:             o.Now.Add(-backdate),
		NotAfter:              o.Now.Add(o.ValidFor),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature,
	}
	return sign(tpl, tpl, key, key)
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
var dnsName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$`)

// NewCert makes a certificate signed by ca.
func NewCert(ca Pair, o CertOptions) (Pair, error) {
	if o.Region == "" {
		o.Region = "global"
	}
	if o.ValidFor == 0 {
		o.ValidFor = 365 * 24 * time.Hour
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	switch o.Role {
	case RoleServer, RoleClient, RoleCLI:
	default:
		return Pair{}, fmt.Errorf("create certificate: role %q is none of server, client, cli", o.Role)
	}
	if !dnsLabel.MatchString(o.Region) {
		return Pair{}, fmt.Errorf("create certificate: region %q must be lower-case letters, digits and dashes, at most 63", o.Region)
	}
	if o.ValidFor < 0 {
		return Pair{}, fmt.Errorf("create certificate: the validity of %s is negative", o.ValidFor)
	}
	caCert, caKey, err := parsePair(ca)
	if err != nil {
		return Pair{}, fmt.Errorf("read CA: %w", err)
	}
	if !caCert.IsCA {
		return Pair{}, fmt.Errorf("read CA: the certificate of %q is not a CA", caCert.Subject.CommonName)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("create key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return Pair{}, err
	}
	name := o.Role.Name(o.Region)
	tpl := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name, Organization: []string{"Muster"}},
		NotBefore:             o.Now.Add(-backdate),
		NotAfter:              o.Now.Add(o.ValidFor),
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:              []string{name, "localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, x := range o.Extra {
		if ip := net.ParseIP(x); ip != nil {
			tpl.IPAddresses = append(tpl.IPAddresses, ip)
			continue
		}
		if !dnsName.MatchString(x) {
			return Pair{}, fmt.Errorf("create certificate: %q is neither a DNS name nor an IP address", x)
		}
		if grantsRole(x) {
			return Pair{}, fmt.Errorf("create certificate: %q would grant a second role; make one certificate per role", x)
		}
		tpl.DNSNames = append(tpl.DNSNames, x)
	}
	if tpl.NotAfter.After(caCert.NotAfter) {
		tpl.NotAfter = caCert.NotAfter
	}
	return sign(tpl, caCert, key, caKey)
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, fmt.Errorf("create serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

func sign(tpl, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, tpl, parent, &key.PublicKey, parentKey)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate: %w", err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder}),
	}, nil
}

func parsePair(p Pair) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	b, _ := pem.Decode(p.Cert)
	if b == nil || b.Type != "CERTIFICATE" {
		return nil, nil, errors.New("the certificate file has no PEM block CERTIFICATE")
	}
	cert, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		return nil, nil, err
	}
	b, _ = pem.Decode(p.Key)
	if b == nil {
		return nil, nil, errors.New("the key file has no PEM block")
	}
	var key any
	switch b.Type {
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(b.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(b.Bytes)
	default:
		return nil, nil, fmt.Errorf("the key file has a PEM block %q, not PRIVATE KEY", b.Type)
	}
	if err != nil {
		return nil, nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("the key is a %T, not ECDSA", key)
	}
	if !ec.PublicKey.Equal(cert.PublicKey) {
		return nil, nil, errors.New("the key does not belong to the certificate")
	}
	return cert, ec, nil
}

// Write stores the pair, the certificate with mode 0644 and the key with mode 0600. It refuses to overwrite either.
func (p Pair) Write(certFile, keyFile string) error {
	for _, f := range []string{certFile, keyFile} {
		if _, err := os.Lstat(f); err == nil {
			return fmt.Errorf("%s exists already; move it away first", f)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := writeNew(keyFile, p.Key, 0o600); err != nil {
		return err
	}
	if err := writeNew(certFile, p.Cert, 0o644); err != nil {
		os.Remove(keyFile) // without its certificate the key would block the next attempt
		return err
	}
	return nil
}

func writeNew(name string, b []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(mode) // regardless of the umask
	}
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		os.Remove(name)
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// Read loads a pair from its files.
func Read(certFile, keyFile string) (Pair, error) {
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return Pair{}, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return Pair{}, err
	}
	return Pair{cert, key}, nil
}
