package client

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/muster-sched/muster/structs"
)

// identity identifies the node to the servers. It lasts as long as the data directory.
type identity struct {
	id     structs.NodeID
	secret structs.SecretID
}

// newIdentity makes a random identity.
func newIdentity() identity {
	var seed structs.Seed
	rand.Read(seed[:]) // never fails
	id := identity{id: structs.DeriveID[structs.NodeID](seed, "node", "", 0)}
	rand.Read(id.secret[:])
	id.secret[6] = id.secret[6]&0x0f | 0x40
	id.secret[8] = id.secret[8]&0x3f | 0x80
	return id
}

// loadIdentity reads the node's id and secret from dir, or creates them there, readable by the agent only.
func loadIdentity(dir string) (identity, error) {
	id, err := loadID[structs.NodeID](filepath.Join(dir, "client-id"))
	if err != nil {
		return identity{}, err
	}
	secret, err := loadID[structs.SecretID](filepath.Join(dir, "secret-id"))
	if err != nil {
		return identity{}, err
	}
	out := newIdentity()
	if !secret.IsZero() {
		out.secret = secret
	} else if err := saveID(filepath.Join(dir, "secret-id"), out.secret.String()); err != nil {
		return identity{}, err
	}
	// The id is written last: an id on disk always has its secret.
	if !id.IsZero() {
		out.id = id
	} else if err := saveID(filepath.Join(dir, "client-id"), out.id.String()); err != nil {
		return identity{}, err
	}
	return out, nil
}

func loadID[T interface {
	~[16]byte
	IsZero() bool
}](path string) (T, error) {
	var zero T
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return zero, nil
	}
	if err != nil {
		return zero, fmt.Errorf("node identity: %w", err)
	}
	id, err := structs.ParseID[T](strings.TrimSpace(string(b)))
	if err != nil || id.IsZero() {
		// Do not guess: under a new identity the tasks of the old node would belong to no known node.
		return zero, fmt.Errorf("node identity: %s does not hold an id; restore it, or remove it to make this a new node", path)
	}
	return id, nil
}

func saveID(path, text string) error {
	if err := renameio.WriteFile(path, []byte(text+"\n"), 0o600, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("node identity: %w", err)
	}
	return nil
}
