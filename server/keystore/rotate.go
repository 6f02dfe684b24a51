package keystore

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// This file rotates the key that seals variables. Every server has a new key before the log names it, which makes it
// the active one. A full rotation retires the earlier keys in the same entry. From then on Apply refuses variables
// sealed with those, so their number only falls, and the leader reseals the rest in batches. The progress is in the
// state alone: a new leader continues with what is still sealed with retired keys.

// Limits of one log entry of resealed variables; one variable always fits.
const (
	resealBatchMax = 128
	resealBytesMax = 512 << 10
	resealRetry    = 30 * time.Second // time between attempts to open variables whose key was missing
)

// States of a key, as the API shows them.
const (
	StateActive   = "active"
	StateRekeying = "rekeying" // retired, and still needed by some variables
	StateInactive = "inactive"
)

// Algorithm encrypts variables, in the API's words.
const Algorithm = "aes256-gcm"

// Infos returns the keys of a state, oldest first.
func Infos(snap *state.Snapshot) []methods.SealKeyInfo {
	sealed := map[string]int64{}
	for v := range snap.Variables("*", "") {
		sealed[v.KeyID]++
	}
	var out []methods.SealKeyInfo
	for k := range snap.SealKeys() {
		i := methods.SealKeyInfo{ID: k.ID, Algorithm: Algorithm, State: StateInactive, Variables: sealed[k.ID], CreateTime: k.CreateTime, CreateIndex: k.CreateIndex, ModifyIndex: k.ModifyIndex}
		switch {
		case k.Active:
			i.State = StateActive
		case k.Retired && i.Variables > 0:
			i.State = StateRekeying
		}
		out = append(out, i)
	}
	for k := range snap.SigningKeys() {
		i := methods.SealKeyInfo{ID: k.ID, Algorithm: k.Algorithm, State: StateInactive, CreateTime: k.CreateTime, CreateIndex: k.CreateIndex, ModifyIndex: k.ModifyIndex}
		if k.Active {
			i.State = StateActive
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b methods.SealKeyInfo) int {
		return cmp.Or(cmp.Compare(a.CreateIndex, b.CreateIndex), strings.Compare(a.ID, b.ID))
	})
	return out
}

// Rotate makes new keys active once every server has them on disk: the one that signs identities, if any was signed, then
// the one that seals variables. A full rotation retires the earlier keys for variables. If Rotate fails, the active key
// for variables stays.
func (k *Keystore) Rotate(ctx context.Context, by structs.Submitter, full bool) (*methods.SealKeyRotateResponse, error) {
	k.making.Lock()
	defer k.making.Unlock()
	if err := k.rotateSigner(ctx, by); err != nil {
		return nil, err
	}
	key := make([]byte, keyBytes)
	rand.Read(key) // never fails
	id, _, _, without, err := k.handOut(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(without) > 0 {
		k.discard(ctx, id) // the log does not name it
		return nil, structs.Errorf(structs.CodeUnavailable, "the key was not rotated, because these servers did not store the new one: %s; rotate when they answer, or remove a server that is gone for good (muster operator raft remove-peer)", strings.Join(without, ", "))
	}
	var body structs.CommandBody = &structs.SealKeyCommand{ID: id}
	if full {
		body = &structs.SealRekeyCommand{ID: id}
	}
	res, err := k.env.Apply(ctx, replica.LanePriority, structs.Command{By: by, Body: body})
	if err != nil {
		return nil, err
	}
	resp := &methods.SealKeyRotateResponse{Index: res.Index, Key: methods.SealKeyInfo{ID: id, Algorithm: Algorithm, State: StateActive, CreateIndex: res.Index, ModifyIndex: res.Index}}
	if made := k.env.Published().Snapshot.SealKey(id); made != nil {
		resp.Key.CreateTime = made.CreateTime
	}
	k.env.Log.Info("the key of the variables was rotated", "key", id, "full", full)
	return resp, nil
}

// Remove deletes a key from the state, then its file on the servers that answer: a key that no variable needs, or an
// earlier one that signed identities, whose tokens are then invalid.
func (k *Keystore) Remove(ctx context.Context, by structs.Submitter, id string) (*methods.WriteResponse, error) {
	res, err := k.env.Apply(ctx, replica.LanePriority, structs.Command{By: by, Body: &structs.SealKeyDeleteCommand{ID: id}})
	if err != nil {
		return nil, err
	}
	k.discard(ctx, id)
	return &methods.WriteResponse{Index: res.Index}, nil
}

// Reseal seals variables with the active key if theirs is retired.
func (k *Keystore) Reseal(ctx context.Context, term uint64) error {
	told := 0
	for {
		snap := k.env.Published().Snapshot
		changed := snap.Watch(state.SealKeys)
		left, err := k.resealOnce(ctx, snap)
		if err != nil {
			return err
		}
		if left != told && left > 0 {
			k.env.Log.Warn("variables cannot be resealed: their key is on no server, or they are damaged", "variables", left)
		}
		told = left
		var again <-chan time.Time
		if left > 0 {
			again = time.After(resealRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again:
		}
	}
}

// resealOnce goes once through the variables of a state. left counts those that it could not open.
func (k *Keystore) resealOnce(ctx context.Context, snap *state.Snapshot) (left int, err error) {
	old := map[string][]byte{} // nil: on no server
	for named := range snap.SealKeys() {
		if named.Retired {
			old[named.ID] = nil
		}
	}
	if len(old) == 0 {
		return 0, nil
	}
	for id := range old {
		if old[id], _, err = k.Fetch(ctx, id); err != nil {
			k.env.Log.Debug("a retired key for variables is missing", "error", err)
		}
	}
	to := snap.ActiveSealKey()
	var key []byte
	batch := &structs.VariableResealCommand{KeyID: to}
	size, done := 0, 0
	flush := func() error {
		_, err := k.env.Apply(ctx, replica.LaneUser, structs.Command{Body: batch})
		done += len(batch.Variables)
		batch, size = &structs.VariableResealCommand{KeyID: to}, 0
		return err
	}
	for v := range snap.Variables("*", "") {
		from, retired := old[v.KeyID]
		if !retired {
			continue
		}
		if key == nil {
			if key, _, err = k.Fetch(ctx, to); err != nil {
				return 0, err
			}
		}
		if from == nil {
			left++
			continue
		}
		plain, err := unsealBytes(from, v)
		if err != nil {
			left++
			k.env.Log.Debug("a variable cannot be resealed", "error", err)
			continue
		}
		sealed, err := sealBytes(key, v.Namespace, v.Path, plain)
		if err != nil {
			return 0, err
		}
		batch.Variables = append(batch.Variables, structs.ResealedVariable{Namespace: v.Namespace, Path: v.Path, ModifyIndex: v.ModifyIndex, OldKeyID: v.KeyID, Sealed: sealed})
		size += len(sealed) + len(v.Path)
		if len(batch.Variables) >= resealBatchMax || size >= resealBytesMax {
			if err := flush(); err != nil {
				return 0, err
			}
		}
	}
	if len(batch.Variables) > 0 {
		if err := flush(); err != nil {
			return 0, err
		}
	}
	if done > 0 {
		k.env.Log.Info("variables were resealed", "key", to, "variables", done)
	}
	return left, nil
}
