package gossip

import (
	"bytes"
	"crypto/aes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/hashicorp/memberlist"

	"github.com/muster-sched/muster/internal/fsync"
)

// ErrPlain is returned by key operations of a member that gossips without encryption.
var ErrPlain = errors.New("gossip is not encrypted here")

// keyring returns the keys to start with, or nil without any. A file of keys exists once they have been changed, and then
// the configuration does not count: a key that was removed must not come back with a restart.
func keyring(cfg *Config) (*memberlist.Keyring, error) {
	keys, err := readKeys(cfg.KeyFile)
	switch {
	case err != nil:
		return nil, err
	case keys == nil && len(cfg.Key) == 0:
		return nil, nil
	case keys == nil:
		keys = [][]byte{cfg.Key}
	case !bytes.Equal(keys[0], cfg.Key):
		cfg.Log.Warn("server.encrypt is not the gossip key in use: commands have changed the keys, and since then this file has them; put the key in use into the configuration, too",
			"file", cfg.KeyFile, "configured_key_accepted", slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, cfg.Key) }))
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("gossip: encryption key: %w", err)
	}
	return ring, nil
}

// readKeys reads a file of keys, the one in use first. It returns nil if there is none.
func readKeys(path string) ([][]byte, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("gossip keys: %w", err)
	}
	var keys [][]byte // base64 in JSON
	if json.Unmarshal(b, &keys) != nil || len(keys) == 0 || slices.ContainsFunc(keys, func(k []byte) bool { return checkKey(k) != nil }) {
		return nil, fmt.Errorf("gossip keys: %s is damaged: it is no JSON list of gossip keys; copy the file from another server, or remove it, and server.encrypt is used", path)
	}
	return keys, nil
}

// checkKey refuses a key of a wrong length.
func checkKey(key []byte) error {
	if _, err := aes.NewCipher(key); err != nil {
		return fmt.Errorf("a gossip key has 16, 24 or 32 bytes, not %d", len(key))
	}
	return nil
}

// change changes the keys, first those in the file. When it returns nil, a restart brings the new ones.
func (g *Gossip) change(do func(*memberlist.Keyring) error) error {
	if g.ring == nil {
		return ErrPlain
	}
	g.changing.Lock()
	defer g.changing.Unlock()
	if g.cfg.KeyFile != "" {
		old := g.ring.GetKeys()
		next, err := memberlist.NewKeyring(old, old[0])
		if err != nil {
			return err
		}
		if err := do(next); err != nil {
			return err
		}
		b, err := json.MarshalIndent(next.GetKeys(), "", "  ")
		if err != nil {
			return err
		}
		if err := fsync.WriteFile(g.cfg.KeyFile, append(b, '\n')); err != nil {
			return fmt.Errorf("keep the gossip keys: %w", err)
		}
	}
	return do(g.ring)
}

// Keys returns the installed keys; the first one encrypts.
func (g *Gossip) Keys() [][]byte {
	if g.ring == nil {
		return nil
	}
	return g.ring.GetKeys()
}

// InstallKey accepts a further key.
func (g *Gossip) InstallKey(key []byte) error {
	return g.change(func(r *memberlist.Keyring) error {
		if err := checkKey(key); err != nil {
			return err
		}
		return r.AddKey(key)
	})
}

// UseKey encrypts with an installed key from now on.
func (g *Gossip) UseKey(key []byte) error {
	return g.change(func(r *memberlist.Keyring) error { return r.UseKey(key) })
}

// RemoveKey stops accepting a key; the one in use cannot be removed.
func (g *Gossip) RemoveKey(key []byte) error {
	return g.change(func(r *memberlist.Keyring) error { return r.RemoveKey(key) })
}
