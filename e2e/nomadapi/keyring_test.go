package nomadapi

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// rootKeyring rotates the key of the variables with Nomad's own types.
func rootKeyring(t *testing.T, a *agent, _ *api.NodeListStub) {
	v := api.NewVariable("contract/rotated")
	v.Items = api.VariableItems{"k": "kept"}
	_, _, err := a.Variables().Create(v, nil)
	ok(t, err)
	list := func() ([]*api.RootKeyMeta, *api.QueryMeta, error) { // of the keys for variables, not those of identities
		keys, qm, err := a.Keyring().List(nil)
		return slices.DeleteFunc(keys, func(k *api.RootKeyMeta) bool { return k.Algorithm != api.EncryptionAlgorithmAES256GCM }), qm, err
	}
	keys, qm, err := list()
	ok(t, err)
	check(t, len(keys) == 1 && qm.LastIndex > 0, "keys %+v at %d", keys, qm.LastIndex)
	old := keys[0]
	check(t, old.KeyID != "" && old.Algorithm == api.EncryptionAlgorithmAES256GCM && old.State == api.RootKeyStateActive && old.CreateTime > 0 && old.CreateIndex > 0, "key %+v", old)
	_, err = a.Keyring().Delete(&api.KeyringDeleteOptions{KeyID: old.KeyID}, nil)
	check(t, err != nil, "the active key was removed")
	key, wm, err := a.Keyring().Rotate(&api.KeyringRotateOptions{Full: true, Algorithm: api.EncryptionAlgorithmAES256GCM}, nil)
	ok(t, err)
	check(t, key != nil && key.KeyID != old.KeyID && key.State == api.RootKeyStateActive && key.CreateIndex == 0 && wm.LastIndex > old.CreateIndex, "rotated %+v", key)
	_, _, err = a.Keyring().Rotate(&api.KeyringRotateOptions{Algorithm: "rot13"}, nil)
	check(t, err != nil, "rotated to an algorithm that is not there")
	eventually(t, "the old key to be inactive", func() error {
		keys, _, err := list()
		if err == nil && (len(keys) != 2 || keys[0].KeyID != old.KeyID || keys[0].State != api.RootKeyStateInactive || keys[1].State != api.RootKeyStateActive) {
			err = fmt.Errorf("keys %+v", keys)
		}
		return err
	})
	_, err = a.Keyring().Delete(&api.KeyringDeleteOptions{KeyID: old.KeyID}, nil)
	ok(t, err)
	_, err = a.Keyring().Delete(&api.KeyringDeleteOptions{KeyID: old.KeyID}, nil)
	check(t, err != nil, "a key was removed twice")
	got, _, err := a.Variables().Read("contract/rotated", nil)
	ok(t, err)
	equal(t, "the variable after the rotation", got.Items["k"], "kept")
}
