package keystore

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"slices"
	"strings"

	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// This file keeps the key that signs workload identities. Its private part is a file like a key for variables; the
// state has the public part, which verifies tokens until the last one that was signed with it has expired.

// signer is a parsed key.
type signer struct {
	id  string
	key *rsa.PrivateKey
}

// signerOf parses a key, or returns it from memory.
func (k *Keystore) signerOf(id string, pkcs8 []byte) (*signer, error) {
	if s := k.signer.Load(); s != nil && s.id == id {
		return s, nil
	}
	key, err := identity.ParseKey(pkcs8)
	if err != nil {
		return nil, err
	}
	s := &signer{id, key}
	k.signer.Store(s)
	return s, nil
}

// MakeSigner makes the key that signs identities if there is none. The leader runs it: who verifies identities may be set
// up before the first job, and Nomad's clients wait for a key before they use a new cluster.
func (k *Keystore) MakeSigner(ctx context.Context, _ uint64) error {
	_, _, err := k.Signing(ctx)
	return err
}

// Signing returns the key that signs identities, and its ID. If there is none, or all servers have lost its private part,
// the leader makes one.
func (k *Keystore) Signing(ctx context.Context) (id string, key *rsa.PrivateKey, err error) {
	if s, err := k.activeSigner(ctx); s != nil || err != nil {
		return signerParts(s, err)
	}
	k.making.Lock()
	defer k.making.Unlock()
	if s, err := k.activeSigner(ctx); s != nil || err != nil { // another caller made it
		return signerParts(s, err)
	}
	return signerParts(k.newSigner(ctx, structs.Submitter{}, false))
}

func signerParts(s *signer, err error) (string, *rsa.PrivateKey, error) {
	if err != nil {
		return "", nil, err
	}
	return s.id, s.key, nil
}

// activeSigner returns the key that the state names, or nil if there is none or it is on no server.
func (k *Keystore) activeSigner(ctx context.Context) (*signer, error) {
	active := k.env.Published().Snapshot.ActiveSigningKey()
	if active == nil {
		return nil, nil
	}
	if s := k.signer.Load(); s != nil && s.id == active.ID {
		return s, nil
	}
	pkcs8, lost, err := k.Fetch(ctx, active.ID)
	switch {
	case lost:
		k.env.Log.Warn("no server has the key that signs identities; a new one is made", "key", active.ID)
		return nil, nil
	case err != nil:
		return nil, err
	}
	return k.signerOf(active.ID, pkcs8)
}

// newSigner makes a key, hands it to the servers, all of them or most, and then publishes it. The caller holds making.
func (k *Keystore) newSigner(ctx context.Context, by structs.Submitter, all bool) (*signer, error) {
	pkcs8, err := identity.NewKey()
	if err != nil {
		return nil, err
	}
	id, have, voters, without, err := k.handOut(ctx, pkcs8)
	if err != nil {
		return nil, err
	}
	if have <= voters/2 || all && len(without) > 0 {
		k.discard(ctx, id)
		return nil, structs.Errorf(structs.CodeUnavailable, "a key for identities reached %d of %d servers, and not these: %s", have, voters, strings.Join(without, ", "))
	}
	s, err := k.signerOf(id, pkcs8)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&s.key.PublicKey)
	if err != nil {
		return nil, err
	}
	_, err = k.env.Apply(ctx, replica.LanePriority, structs.Command{By: by, Body: &structs.SigningKeyCommand{
		Key: &structs.SigningKey{ID: id, Algorithm: identity.Algorithm, Public: public}}})
	return s, err
}

// rotateSigner replaces the key that signs identities, if there is one. The private part of the earlier one is of no
// more use: it is deleted everywhere. The caller holds making.
func (k *Keystore) rotateSigner(ctx context.Context, by structs.Submitter) error {
	old := k.env.Published().Snapshot.ActiveSigningKey()
	if old == nil {
		return nil
	}
	s, err := k.newSigner(ctx, by, true)
	if err != nil {
		return err
	}
	k.discard(ctx, old.ID)
	k.env.Log.Info("the key that signs identities was rotated", "key", s.id)
	return nil
}

// discard deletes a key that is not in use here and on the servers that answer.
func (k *Keystore) discard(ctx context.Context, id string) {
	if err := k.drop(id); err != nil {
		k.env.Log.Warn("the file of an unused key could not be deleted", "key", id, "error", err)
	}
	answers, addrs, _, err := k.askAll(ctx, &methods.SealKeyRequest{ID: id, Drop: true})
	if err != nil || len(answers) < len(addrs) {
		k.env.Log.Warn("an unused key may still be in the keystore of some servers", "key", id, "asked", len(addrs), "answered", len(answers), "error", err)
	}
}

// named returns the IDs of the keys that a server must have, according to the state.
func (k *Keystore) named() []string {
	snap := k.env.Published().Snapshot
	var ids []string
	for named := range snap.SealKeys() {
		ids = append(ids, named.ID)
	}
	if active := snap.ActiveSigningKey(); active != nil {
		ids = append(ids, active.ID)
	}
	return slices.Compact(ids)
}
