package client

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/structs"
)

// identity identifies the node to the servers. id and secret last as long as the data directory.
type identity struct {
	id     structs.NodeID
	secret structs.SecretID
	start  structs.StartID // of this agent; never stored, so that a copy of the data directory has another one
	place  string          // of this agent: see placeOf; "" if nothing is stored
	moved  bool            // the data directory was last used at another place, or never
}

// newIdentity makes a random identity.
func newIdentity() identity {
	var seed structs.Seed
	rand.Read(seed[:]) // never fails
	id := identity{id: structs.DeriveID[structs.NodeID](seed, "node", "", 0)}
	rand.Read(id.secret[:])
	rand.Read(id.start[:])
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
	if out.place, err = placeOf(dir); err != nil {
		return identity{}, fmt.Errorf("node identity: %w", err)
	}
	was, err := os.ReadFile(filepath.Join(dir, placeFile))
	out.moved = err != nil || strings.TrimSpace(string(was)) != out.place
	return out, nil
}

// settle stores that the servers accept the agent at this place.
func (id *identity) settle(dir string) error { return saveID(filepath.Join(dir, placeFile), id.place) }

const placeFile = "place"

// placeOf identifies this machine and a directory on it. It is equal after a restart of the agent and of the machine,
// and differs for a copy of the directory and for a copy of the machine's disk in another machine.
func placeOf(dir string) (string, error) {
	// The number of the file system's device is no help, for it changes with the order in which disks are found.
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", err
	}
	read := func(path string) string {
		b, _ := os.ReadFile(path) // one that is missing distinguishes nothing
		return strings.TrimSpace(string(b))
	}
	machine := []string{read("/etc/machine-id"), read("/sys/class/dmi/id/product_uuid")}
	if machine[1] == "" { // not a PC: the addresses of hardware network cards instead
		cards, _ := filepath.Glob("/sys/class/net/*/device")
		for _, c := range cards {
			machine = append(machine, read(filepath.Join(filepath.Dir(c), "address")))
		}
		slices.Sort(machine)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d %d.%d %q", st.Ino, st.Btime.Sec, st.Btime.Nsec, machine)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
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
	if err := fsync.WriteFile(path, []byte(text+"\n")); err != nil {
		return fmt.Errorf("node identity: %w", err)
	}
	return nil
}
