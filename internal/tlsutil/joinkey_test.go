package tlsutil

import (
	"bytes"
	"testing"
)

// TestJoinKey: only holders of the same key get through a handshake, in all regions, and none shows a key or
// anything that another certificate authority has signed.
func TestJoinKey(t *testing.T) {
	key := bytes.Repeat([]byte{7}, JoinKeyBytes)
	from := func(key []byte, region string) *Source {
		t.Helper()
		s, err := FromJoinKey(key, region)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := from(key, "global"), from(key, "mars")
	other := from(bytes.Repeat([]byte{8}, JoinKeyBytes), "global")
	cert := load(t, files(t, t.TempDir(), newCA(t), CertOptions{Role: RoleServer}))
	for name, x := range map[string]struct {
		server, client *Source
		ok             bool
	}{
		"same key":                  {a, from(key, "global"), true},
		"another region":            {a, b, true},
		"another key":               {a, other, false},
		"a certificate":             {a, cert, false},
		"a server with certificate": {cert, a, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := shake(t, x.server.RPCServer(), x.client.Client()); (err == nil) != x.ok {
				t.Errorf("handshake: %v", err)
			}
		})
	}
	if role, region := RoleOf(b.Leaf()); role != RoleServer || region != "mars" {
		t.Errorf("role %q region %q", role, region)
	}
	if err := a.Reload(); err == nil {
		t.Error("material of a join key was reloaded from no files")
	}
	if _, err := FromJoinKey(key[:31], "global"); err == nil {
		t.Error("a short key was accepted")
	}
	if _, err := FromJoinKey(key, "a b"); err == nil {
		t.Error("a region that fits in no certificate was accepted")
	}
	if _, err := ParseJoinKey(NewJoinKey()); err != nil {
		t.Error(err)
	}
}
