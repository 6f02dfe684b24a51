package main

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFlagsOfTLS: whom a command trusts follows from its flags.
func TestFlagsOfTLS(t *testing.T) {
	f := newAgentFake(t)
	secure := httptest.NewUnstartedServer(f)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		flags string
		code  int
		says  string
	}{
		{"", 1, "of an unknown CA"},
		{"-ca-cert " + ca, 0, ""},
		{"-tls-skip-verify", 0, ""},
		{"-ca-cert " + ca + " -tls-server-name example.com", 0, ""}, // a name of the certificate
		{"-ca-cert " + ca + " -tls-server-name other.example.org", 1, "other.example.org"},
	} {
		r := f.run(t, "", append(strings.Fields("job status -address "+secure.URL), strings.Fields(c.flags)...)...)
		if r.code != c.code || !strings.Contains(r.errOut, c.says) {
			t.Errorf("%q: exit status %d, %s; want %d and %q", c.flags, r.code, r.errOut, c.code, c.says)
		}
	}
}

// TestFlagsOfCertificates reads the certificates that flags describe.
func TestFlagsOfCertificates(t *testing.T) {
	f := newAgentFake(t)
	t.Chdir(t.TempDir())
	for _, args := range []string{"tls ca create -domain lab -common-name Lab -days 3", "tls cert create -server -domain lab -days 2 -additional-dnsname gpu-07.lab -additional-ipaddress 10.0.0.2"} {
		if r := f.run(t, "", strings.Fields(args)...); r.code != 0 {
			t.Fatalf("%s: exit status %d, %s", args, r.code, r.errOut)
		}
	}
	read := func(name string) *x509.Certificate {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(b)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	ca, cert := read("lab-agent-ca.pem"), read("global-server-lab.pem")
	if left := ca.NotAfter.Sub(fixedNow); ca.Subject.CommonName != "Lab" || left < 71*time.Hour || left > 73*time.Hour {
		t.Errorf("the authority is %q until %s", ca.Subject.CommonName, ca.NotAfter)
	}
	if left := cert.NotAfter.Sub(fixedNow); left < 47*time.Hour || left > 49*time.Hour || !slices.Contains(cert.DNSNames, "gpu-07.lab") || len(cert.IPAddresses) == 0 || cert.IPAddresses[len(cert.IPAddresses)-1].String() != "10.0.0.2" {
		t.Errorf("the certificate is for %q and %v until %s", cert.DNSNames, cert.IPAddresses, cert.NotAfter)
	}
}
