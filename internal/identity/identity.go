// Package identity signs and verifies workload identities: JSON Web Tokens by which a task proves to others, and to the
// servers themselves, which task of which job it is.
//
// The claims and names are Nomad's. Tokens are signed with RS256, the algorithm that every verifier of OpenID Connect
// has. ADR 0022 says where the keys are.
package identity

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/muster-sched/muster/structs"
)

// Spec is a signed identity that a task asks for, with defaults applied.
type Spec struct {
	Name         string
	Audience     []string
	ChangeMode   string // "", noop, restart or signal, when the token is renewed
	ChangeSignal string
	Env, File    bool   // how the task gets the token
	Filepath     string // below the task's directory; "" for the file of that name in the secrets directory
	TTL          time.Duration
}

// Parse reads an identity of a job and applies defaults.
func Parse(i structs.Identity) (*Spec, error) {
	w := &Spec{}
	if err := json.Unmarshal(i.Raw, w); err != nil {
		return nil, fmt.Errorf("identity: %w", err)
	}
	if w.Name == "" {
		w.Name = structs.IdentityDefault
	}
	if w.Name == structs.IdentityDefault {
		w.Audience = []string{structs.IdentityAudience}
	}
	if w.TTL <= 0 {
		w.TTL = structs.IdentityTTLDefault
	}
	w.TTL = min(max(w.TTL, structs.IdentityTTLMin), structs.IdentityTTLMax)
	return w, nil
}

// Exposed reports whether the task gets the token at all.
func (w *Spec) Exposed() bool { return w.Env || w.File || w.Filepath != "" }

// Algorithm signs tokens.
const Algorithm = string(jose.RS256)

// keyBits is the size of a signing key, Nomad's and the smallest that verifiers take.
const keyBits = 2048

// Claims are what a token says about a task.
type Claims struct {
	jwt.Claims
	Namespace  string `json:"nomad_namespace"`
	Job        string `json:"nomad_job_id"`
	Allocation string `json:"nomad_allocation_id"`
	Task       string `json:"nomad_task"`
}

// Subject returns the subject of a token: region:namespace:job:group:task:identity.
func Subject(region string, a *structs.Allocation, task, name string) string {
	parts := []string{region, a.Namespace, a.JobID, string(a.Group), task, name}
	for i, p := range parts { // a colon in a name must not make it look like another task's
		parts[i] = strings.NewReplacer("%", "%25", ":", "%3A").Replace(p)
	}
	return strings.Join(parts, ":")
}

// NewKey makes a signing key, in PKCS #8.
func NewKey() ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, err
	}
	return x509.MarshalPKCS8PrivateKey(key)
}

// ParseKey reads a key that NewKey made.
func ParseKey(pkcs8 []byte) (*rsa.PrivateKey, error) {
	key, err := x509.ParsePKCS8PrivateKey(pkcs8)
	if err != nil {
		return nil, err
	}
	k, ok := key.(*rsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a signing key is an RSA key, not %T", key)
	}
	return k, nil
}

// Sign returns the token of a task's identity, valid from now for the identity's TTL.
func Sign(keyID string, key *rsa.PrivateKey, issuer, region string, a *structs.Allocation, task string, id *Spec, now structs.LogTime) (token string, ends structs.LogTime, err error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key},
		(&jose.SignerOptions{}).WithType("JWT").WithHeader("kid", keyID))
	if err != nil {
		return "", 0, err
	}
	var jti structs.SecretID
	rand.Read(jti[:])
	from := now.Time().Truncate(time.Second)
	until := from.Add(id.TTL)
	c := Claims{
		Claims: jwt.Claims{Issuer: issuer, Subject: Subject(region, a, task, id.Name), Audience: id.Audience, ID: jti.String(),
			IssuedAt: jwt.NewNumericDate(from), NotBefore: jwt.NewNumericDate(from), Expiry: jwt.NewNumericDate(until)},
		Namespace: a.Namespace, Job: a.JobID, Allocation: a.ID.String(), Task: task,
	}
	token, err = jwt.Signed(signer).Claims(c).Serialize()
	return token, structs.LogTimeOf(until), err
}

// Is reports whether a string has the form of a token that Sign made.
func Is(token string) bool { return strings.HasPrefix(token, "eyJ") && strings.Count(token, ".") == 2 }

// Errors of Verify.
var (
	ErrUnknownKey = errors.New("the token is signed with a key that is unknown here")
	ErrExpired    = errors.New("the token has expired")
)

// Verify returns the claims of a token for the servers' own audience. publicKey returns a key in PKIX, or nil.
func Verify(token string, publicKey func(keyID string) []byte, now structs.LogTime) (*Claims, error) {
	t, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return nil, err
	}
	if len(t.Headers) != 1 {
		return nil, errors.New("the token does not have one signature")
	}
	der := publicKey(t.Headers[0].KeyID)
	if der == nil {
		return nil, ErrUnknownKey
	}
	key, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, err
	}
	var c Claims
	if err := t.Claims(key, &c); err != nil {
		return nil, err
	}
	if c.Expiry == nil || !now.Time().Before(c.Expiry.Time()) {
		return nil, ErrExpired
	}
	return &c, c.ValidateWithLeeway(jwt.Expected{AnyAudience: jwt.Audience{structs.IdentityAudience}, Time: now.Time()}, 0)
}
