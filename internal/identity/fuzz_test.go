package identity

import (
	"crypto/x509"
	"encoding/json"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// FuzzVerify checks that no token is accepted but the one that was signed, in any spelling.
func FuzzVerify(f *testing.F) {
	der, err := NewKey()
	if err != nil {
		f.Fatal(err)
	}
	key, err := ParseKey(der)
	if err != nil {
		f.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		f.Fatal(err)
	}
	now := structs.LogTimeOf(time.Unix(1_700_000_000, 0))
	spec := &Spec{Name: structs.IdentityDefault, Audience: []string{structs.IdentityAudience}, TTL: time.Hour}
	token, _, err := Sign("k", key, "issuer", "global", &structs.Allocation{Namespace: "default", JobID: "job", Group: "g"}, "main", spec, now)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("eyJhbGciOiJub25lIiwia2lkIjoiayJ9.e30.")
	f.Add("eyJhbGciOiJIUzI1NiIsImtpZCI6ImsifQ.e30.AAAA")
	f.Add("..")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := Verify(s, func(string) []byte { return public }, now)
		if err == nil && (c.Job != "job" || c.Task != "main" || c.Namespace != "default") {
			t.Fatalf("accepted %q: %+v", s, c)
		}
		if _, err := Verify(s, func(string) []byte { return public }, now+structs.LogTime(2*time.Hour)); err == nil {
			t.Fatalf("accepted %q after its time", s)
		}
	})
}

// FuzzSpec reads any bytes as an identity of a job: its time to live is within the limits.
func FuzzSpec(f *testing.F) {
	f.Add([]byte(`{"Name": "x", "Audience": ["a"], "TTL": 3600000000000, "File": true}`))
	f.Add([]byte(`{"TTL": -1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !json.Valid(b) {
			return
		}
		w, err := Parse(structs.Identity{Raw: b})
		if err == nil && (w.Name == "" || w.TTL < structs.IdentityTTLMin || w.TTL > structs.IdentityTTLMax) {
			t.Fatalf("%s: %+v", b, w)
		}
	})
}
