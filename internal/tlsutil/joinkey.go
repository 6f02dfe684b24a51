package tlsutil

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// JoinKeyBytes is the length of a join key. A certificate shows a public key that follows from it to every caller, so the key
// must be too long to be guessed: it is generated, never chosen.
const JoinKeyBytes = 32

// joinName is in every certificate that comes from a join key, of all regions. Servers of other regions are dialled
// by it.
const joinName = "join.muster"

// NewJoinKey returns a new join key, for server.join_key.
func NewJoinKey() string {
	b := make([]byte, JoinKeyBytes)
	rand.Read(b) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

// ParseJoinKey reads a join key as NewJoinKey writes it.
func ParseJoinKey(text string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != JoinKeyBytes {
		return nil, fmt.Errorf("want %d bytes in base64; make a key with `muster operator join-key generate`", JoinKeyBytes)
	}
	return b, nil
}

// FromJoinKey returns the TLS material of a server that has no certificate, but a key that only servers hold. The key of
// the CA follows from the join key, so that every holder has the same CA and issues a server certificate to itself. The
// handshake proves to both ends that the other holds the key: the key is never sent, nothing can be replayed, and a third
// party that passes bytes on cannot read or change them.
func FromJoinKey(key []byte, region string) (*Source, error) {
	if len(key) != JoinKeyBytes {
		return nil, fmt.Errorf("a join key has %d bytes, not %d", JoinKeyBytes, len(key))
	}
	if !dnsLabel.MatchString(region) {
		return nil, fmt.Errorf("region %q must be lower-case letters, digits and dashes, at most 63, for a join key to name it", region)
	}
	seed, err := hkdf.Key(sha256.New, key, nil, "muster join key: certificate authority", ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("derive a key: %w", err)
	}
	ca := ed25519.NewKeyFromSeed(seed)
	// All holders of the key make the same CA certificate, byte for byte, at any time.
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Muster join key"},
		NotBefore: time.Unix(0, 0), NotAfter: forever,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, ca.Public(), ca)
	if err != nil {
		return nil, fmt.Errorf("make the CA certificate of the join key: %w", err)
	}
	if root, err = x509.ParseCertificate(rootDER); err != nil {
		return nil, err
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	name := RoleServer.Name(region)
	leaf := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Unix(0, 0), NotAfter: forever,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{name, joinName},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, root, public, ca)
	if err != nil {
		return nil, fmt.Errorf("make the server certificate of the join key: %w", err)
	}
	l := &loaded{pool: x509.NewCertPool(), cert: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}}
	if l.cert.Leaf, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	l.pool.AddCert(root)
	s := &Source{region: region, name: joinName}
	s.now.Store(l)
	return s, nil
}

// forever is the end of certificates that come from a join key. They live as long as the process that made them.
var forever = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

var errNotFromFiles = errors.New("this TLS material was not read from files")
