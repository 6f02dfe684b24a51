package server

import (
	"bytes"
	"crypto/x509"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// identityBench is a server with one allocation whose task has identities.
type identityBench struct {
	t     *testing.T
	s     *Server
	node  *structs.Node
	alloc *structs.Allocation
	task  string
}

func newIdentityBench(t *testing.T, s *Server) *identityBench {
	t.Helper()
	b := &identityBench{t: t, s: s, node: testNode(1)}
	job := preparedJob("web")
	task := job.Groups[0].Tasks[0]
	task.Identities = []structs.Identity{{Raw: structs.RawConfig(`{"Env":true,"TTL":60000000000}`)}, {Raw: structs.RawConfig(`{"Name":"store","Audience":["store.example"],"File":true,"TTL":3600000000000}`)}}
	b.task = task.Name
	b.apply(&structs.NodeRegisterCommand{Node: b.node})
	b.apply(&structs.NodeStatusCommand{ID: b.node.ID, Status: structs.NodeReady})
	b.apply(&structs.JobRegisterCommand{Job: job})
	b.apply(&structs.JobRegisterCommand{Job: preparedJob("other")})
	b.apply(&structs.EvalUpsertCommand{Evals: []*structs.Evaluation{{Namespace: "default", JobID: "web", Type: structs.JobService, Trigger: structs.TriggerJobRegister, Priority: 50, Status: structs.EvalPending}}})
	k := structs.JobKey{Namespace: "default", ID: "web"}
	waitFor(t, 10*time.Second, "placement", func() bool { return len(s.Published().Snapshot.AllocsByJob(k)) == 1 })
	b.alloc = s.Published().Snapshot.AllocsByJob(k)[0]
	return b
}

func (b *identityBench) apply(body structs.CommandBody) {
	b.t.Helper()
	if _, err := b.s.apply(b.t.Context(), replica.LaneUser, structs.Command{Body: body}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *identityBench) sign(node *structs.Node, task, name string) (*methods.NodeIdentityResponse, error) {
	return rpc.Invoke(b.t.Context(), b.s.Caller(rpc.Peer{}), methods.NodeIdentity, rpc.Header{}, &methods.NodeIdentityRequest{
		NodeAuth: methods.NodeAuth{NodeID: node.ID, Secret: node.SecretID}, AllocID: b.alloc.ID, Task: task, Identity: name})
}

func (b *identityBench) signed(name string) string {
	b.t.Helper()
	r, err := b.sign(b.node, b.task, name)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.Token
}

// published returns the keys as a verifier gets them.
func (b *identityBench) published() map[string]any {
	b.t.Helper()
	out := map[string]any{}
	for _, k := range call(b.t, b.s, methods.SigningKeys, rpc.Header{}, &methods.EmptyRequest{}).Keys {
		pub, err := x509.ParsePKIXPublicKey(k.Public)
		if err != nil {
			b.t.Fatal(err)
		}
		out[k.ID] = pub
	}
	return out
}

// verify checks a token as another party does, by a library that the servers do not use.
func (b *identityBench) verify(token string, opts ...jwt.ParserOption) (jwt.MapClaims, error) {
	b.t.Helper()
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) { return b.published()[t.Header["kid"].(string)], nil },
		append(opts, jwt.WithValidMethods([]string{"RS256"}), jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithTimeFunc(time.Now))...)
	return claims, err
}

// may reports whether the servers take a token for a read of a job.
func (b *identityBench) may(token, job string) bool {
	b.t.Helper()
	_, err := rpc.Invoke(b.t.Context(), b.s.Caller(rpc.Peer{}), methods.JobGet, rpc.Header{Token: token, Namespace: "default"}, &methods.JobGetRequest{JobID: job})
	if err != nil && structs.CodeOf(err) != structs.CodeDenied {
		b.t.Errorf("read of %s: %v", job, err)
	}
	return err == nil
}

// TestIdentities: a node gets tokens for its own tasks and for no others; another party verifies them with the published
// keys; the servers take the default one as the task and no other.
func TestIdentities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testServer(t, func(c *Config) { c.ACL, c.OIDCIssuer = true, "https://muster.example" })
		b := newIdentityBench(t, s)
		stranger := testNode(2)
		b.apply(&structs.NodeRegisterCommand{Node: stranger})
		forged := *b.node
		forged.SecretID = structs.SecretID{9}
		for _, c := range []struct {
			what       string
			node       *structs.Node
			task, name string
			code       structs.ErrorCode
		}{
			{"another node", stranger, b.task, "store", structs.CodeDenied}, {"a wrong secret", &forged, b.task, "store", structs.CodeDenied},
			{"another task", b.node, "nope", "store", structs.CodeInvalid}, {"another identity", b.node, b.task, "nope", structs.CodeInvalid},
		} {
			if _, err := b.sign(c.node, c.task, c.name); structs.CodeOf(err) != c.code {
				t.Errorf("%s gets %v", c.what, err)
			}
		}

		token := b.signed("default")
		claims, err := b.verify(token, jwt.WithAudience("nomadproject.io"), jwt.WithIssuer("https://muster.example"),
			jwt.WithSubject("global:default:web:"+string(b.alloc.Group)+":"+b.task+":default"))
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]string{"nomad_namespace": "default", "nomad_job_id": "web", "nomad_task": b.task, "nomad_allocation_id": b.alloc.ID.String()} {
			if claims[name] != want {
				t.Errorf("claim %s is %v, want %s", name, claims[name], want)
			}
		}
		other := b.signed("store")
		if claims, err = b.verify(other, jwt.WithAudience("store.example")); err != nil || claims["exp"].(float64)-claims["iat"].(float64) != 3600 {
			t.Errorf("the second identity: %v, %v", claims, err)
		}
		if again, err := b.verify(b.signed("store")); err != nil || again["jti"] == claims["jti"] {
			t.Errorf("two tokens have one jti: %v %v", again["jti"], err)
		}

		head, sig, _ := strings.Cut(token, ".")
		body, sig, _ := strings.Cut(sig, ".")
		_, otherSig, _ := strings.Cut(other[strings.Index(other, ".")+1:], ".")
		none := "eyJhbGciOiJub25lIn0." + body + "."
		for what, bad := range map[string]string{"for another audience": other, "with another token's signature": head + "." + body + "." + otherSig,
			"without a signature": none, "cut": token[:len(token)-8], "with a changed claim": head + "." + strings.Replace(body, body[8:10], "AA", 1) + "." + sig} {
			if b.may(bad, "web") {
				t.Errorf("the servers take a token %s", what)
			}
		}
		if !b.may(token, "web") || b.may(token, "other") {
			t.Error("with its token a task reads not exactly its own job")
		}
		if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.JobDeregister, rpc.Header{Token: token, Namespace: "default"}, &methods.JobDeregisterRequest{JobID: "web"}); structs.CodeOf(err) != structs.CodeDenied {
			t.Errorf("a task stops its job with its token: %v", err)
		}
		for range 14 { // 70 s
			time.Sleep(5 * time.Second)
			call(t, s, methods.NodeHeartbeat, rpc.Header{}, &methods.NodeHeartbeatRequest{NodeAuth: methods.NodeAuth{NodeID: b.node.ID, Secret: b.node.SecretID}, Status: structs.NodeReady})
		}
		if _, err := b.verify(token); err == nil || b.may(token, "web") {
			t.Errorf("an expired token is taken: %v", err)
		}
		token = b.signed("default")
		b.apply(&structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: b.alloc.ID, Client: structs.ClientComplete}}})
		if b.may(token, "web") {
			t.Error("the token of an ended allocation is taken")
		}
		if _, err := b.sign(b.node, b.task, "default"); structs.CodeOf(err) != structs.CodeInvalid {
			t.Errorf("an ended allocation gets a token: %v", err)
		}
	})
}

// TestSigningKeyRotation: after a rotation tokens of the earlier key are valid until they expire; the earlier key is no
// longer published after that, or at once when an operator removes it. The private part is in keystores only.
func TestSigningKeyRotation(t *testing.T) {
	dir := t.TempDir()
	s, stop := diskServer(t, dir, nil)
	b := newIdentityBench(t, s)
	private := func() string {
		t.Helper()
		id, key, err := s.keys.Signing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "keystore", id+".key")); err != nil || !strings.Contains(string(b), hex.EncodeToString(der)) {
			t.Fatalf("the keystore lacks the private part: %v", err)
		}
		return string(key.D.Bytes())
	}
	first := b.signed("store")
	one := private()
	oneID := s.Published().Snapshot.ActiveSigningKey().ID
	rotate(t, s, false)
	second := b.signed("store")
	two := private()
	if _, err := os.Stat(filepath.Join(dir, "keystore", oneID+".key")); err == nil {
		t.Error("the private part of the earlier key is kept, although nothing will be signed with it")
	}
	for what, token := range map[string]string{"before": first, "after": second} {
		if _, err := b.verify(token); err != nil {
			t.Errorf("signed %s the rotation: %v", what, err)
		}
	}
	if n := len(b.published()); n != 2 {
		t.Errorf("%d keys are published, want both", n)
	}
	remove := func(id string) error {
		_, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.SealKeyDelete, rpc.Header{}, &methods.NameRequest{Name: id})
		return err
	}
	if err := remove(s.Published().Snapshot.ActiveSigningKey().ID); structs.CodeOf(err) != structs.CodeConflict {
		t.Errorf("the active key is removed: %v", err)
	}
	if err := remove(oneID); err != nil || len(b.published()) != 1 {
		t.Errorf("removing the earlier key: %v, %d published", err, len(b.published()))
	}
	takeSnapshot(t, s)
	var snap bytes.Buffer
	if err := s.Published().Snapshot.Write(&snap); err != nil {
		t.Fatal(err)
	}
	archive := saveArchive(t, s)
	stop()
	look := func(where string, text []byte) {
		for _, secret := range []string{one, two} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s has a private key", where)
			}
		}
	}
	look("a snapshot", snap.Bytes())
	look("an archive", archive)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Base(filepath.Dir(path)) == "keystore" {
			return err
		}
		text, err := os.ReadFile(path)
		look(path, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	// A restart signs on; without the file a new key is made, and tokens of the lost one stay valid.
	s, stop = diskServer(t, dir, nil)
	b.s = s
	twoID := s.Published().Snapshot.ActiveSigningKey().ID
	b.signed("store")
	if private() != two {
		t.Error("a restart changed the key")
	}
	stop()
	if err := os.Remove(filepath.Join(dir, "keystore", twoID+".key")); err != nil {
		t.Fatal(err)
	}
	s, stop = diskServer(t, dir, nil)
	b.s = s
	third := b.signed("store")
	for what, token := range map[string]string{"the lost key": second, "the new key": third} {
		if _, err := b.verify(token); err != nil {
			t.Errorf("signed with %s: %v", what, err)
		}
	}
	stop()
}

// TestSigningKeyOnEveryServer: whichever server leads next signs with the same key, and a rotation needs all of them.
func TestSigningKeyOnEveryServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, nil)
		s := c.servers[c.leader()]
		id, _, err := s.keys.Signing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range c.servers {
			waitFor(t, 10*time.Second, "the key on every server", func() bool {
				key, err := s.keys.Get(id)
				return key != nil && err == nil && s.Published().Snapshot.SigningKey(id) != nil
			})
			if _, key, err := s.keys.Signing(t.Context()); err != nil || key == nil {
				t.Errorf("server %d cannot sign: %v", i, err)
			}
		}
		rotate(t, s, false)
		if active := s.Published().Snapshot.ActiveSigningKey(); active.ID == id || s.Published().Snapshot.SigningKey(id).Active {
			t.Error("after a rotation the earlier key signs")
		}
		down := (c.leader() + 1) % 3
		c.stops[down]()
		if _, err := rpc.Invoke(t.Context(), s.Caller(rpc.Peer{}), methods.SealKeyRotate, rpc.Header{}, &methods.SealKeyRotateRequest{}); structs.CodeOf(err) != structs.CodeUnavailable {
			t.Errorf("rotated without a server: %v", err)
		}
	})
}
