// Package keystore holds the keys that seal variables and sign identities, distributes them to the other servers, and
// rotates them.
package keystore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/internal/identity"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// The log and snapshots hold only the IDs of keys. Each key is a file in the keystore of every server, and travels
// between servers over their RPC. The leader makes a key when the first variable is written, and another one when the
// first identity is signed. A key is used once most servers have it on disk, so that losing a minority does not lose it.
// The other servers fetch it when they read its ID in the log.

// Sizes and timings of the keystore.
const (
	keyBytes   = 32              // of a key for variables
	askTimeout = 3 * time.Second // for one server to store or return a key
	fetchRetry = 2 * time.Second // time between attempts to fetch a missing key, growing to 30 s
)

// Environment is what a keystore needs from its server.
type Environment struct {
	DataDir   string // parent of the directory keystore; "" keeps the keys in memory
	Log       hclog.Logger
	Exit      func(why string) // ends the process
	Published func() *replica.Published
	Apply     func(ctx context.Context, lane replica.Lane, cmd structs.Command) (structs.Result, error)
	To        func(addr string) rpc.Caller // returns a caller of another server
	// Servers returns the addresses of the other servers, each with whether it votes, and the number of voters
	// including this server.
	Servers func() (others map[string]bool, voters int, err error)
}

// Keystore holds this server's keys, on disk unless the server runs in memory.
type Keystore struct {
	env Environment
	dir string // "": in memory

	write func(path string, content []byte) error // replaces a file, durable on return

	mu   sync.Mutex
	keys map[string][]byte

	making sync.Mutex // held while a key is made and distributed
	signer atomic.Pointer[signer]
}

// keyID returns the ID of a key, a digest.
func keyID(key []byte) string {
	h := sha256.Sum256(append([]byte("muster seal key 1\x00"), key...))
	return hex.EncodeToString(h[:16])
}

// valid reports whether a key belongs to its ID, and is of a kind that this version uses.
func valid(id string, key []byte) bool {
	if keyID(key) != id {
		return false
	}
	if len(key) == keyBytes {
		return true
	}
	_, err := identity.ParseKey(key)
	return err == nil
}

var keyName = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Open opens the keystore.
func Open(env Environment) (*Keystore, error) {
	k := &Keystore{env: env, keys: map[string][]byte{}, write: fsync.WriteFile}
	if env.DataDir == "" {
		return k, nil
	}
	k.dir = filepath.Join(env.DataDir, "keystore")
	if err := fsync.MkdirAll(k.dir); err != nil {
		return nil, fmt.Errorf("keystore: %w", err)
	}
	return k, nil
}

// Get returns a key, or nil if it is not here. It also finds a file that an operator has just put into the directory.
func (k *Keystore) Get(id string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key := k.keys[id]; key != nil || k.dir == "" || !keyName.MatchString(id) {
		return key, nil
	}
	key, err := k.read(id)
	if key != nil {
		k.keys[id] = key
	}
	return key, err
}

// read reads the file of a key; nil without one.
func (k *Keystore) read(id string) ([]byte, error) {
	path := filepath.Join(k.dir, id+".key")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keystore: %w", err)
	}
	key, err := hex.DecodeString(string(slices.DeleteFunc(text, func(c byte) bool { return c == '\n' || c == ' ' })))
	if err != nil || !valid(id, key) {
		return nil, fmt.Errorf("keystore: %s does not hold the key of that name", path)
	}
	return key, nil
}

// put stores a key, on disk before it returns.
func (k *Keystore) put(id string, key []byte) error {
	if !valid(id, key) {
		return structs.Errorf(structs.CodeInvalid, "the key does not belong to its name")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys[id] != nil {
		return nil
	}
	if k.dir != "" {
		err := k.write(filepath.Join(k.dir, id+".key"), []byte(hex.EncodeToString(key)+"\n"))
		if fsync.Failed(err) {
			k.env.Exit(fmt.Sprintf("a key could not be synced to disk: %v", err))
		}
		if err != nil {
			return fmt.Errorf("keystore: %w", err)
		}
	}
	k.keys[id] = key
	return nil
}

// IDs returns the IDs of the keys in memory, sorted.
func (k *Keystore) IDs() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.keys))
}

// drop deletes a key.
func (k *Keystore) drop(id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, id)
	if k.dir == "" || !keyName.MatchString(id) {
		return nil
	}
	if err := os.Remove(filepath.Join(k.dir, id+".key")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keystore: %w", err)
	}
	return nil
}

// Answer stores, returns or deletes a key for another server.
func (k *Keystore) Answer(req *methods.SealKeyRequest) (*methods.SealKeyResponse, error) {
	if req.Drop {
		return &methods.SealKeyResponse{}, k.drop(req.ID)
	}
	if req.Key != nil {
		return &methods.SealKeyResponse{}, k.put(req.ID, req.Key)
	}
	if req.Look != nil {
		return &methods.SealKeyResponse{Looked: true, Absent: k.absent(req.Look)}, nil
	}
	key, err := k.Get(req.ID)
	return &methods.SealKeyResponse{Key: key}, err
}

// askAll calls every other server concurrently. Servers that fail are missing in answers.
func (k *Keystore) askAll(ctx context.Context, req *methods.SealKeyRequest) (answers map[string]*methods.SealKeyResponse, addrs map[string]bool, voters int, err error) {
	addrs, voters, err = k.env.Servers()
	if err != nil {
		return nil, nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answers = map[string]*methods.SealKeyResponse{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for addr := range addrs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			resp, err := rpc.Invoke(ctx, k.env.To(addr), methods.ServerSealKey, rpc.Header{}, req)
			if err != nil {
				k.env.Log.Debug("a server did not answer about a key of the keystore", "server", addr, "error", err)
				return
			}
			mu.Lock()
			answers[addr] = resp
			mu.Unlock()
		}()
	}
	wg.Wait()
	return answers, addrs, voters, nil
}

// Fetch returns a key from this keystore or another server's. lost means that every server has answered and none has
// it.
func (k *Keystore) Fetch(ctx context.Context, id string) (key []byte, lost bool, err error) {
	if key, err := k.Get(id); key != nil || err != nil {
		return key, false, err
	}
	answers, addrs, _, err := k.askAll(ctx, &methods.SealKeyRequest{ID: id})
	if err != nil {
		return nil, false, err
	}
	for _, r := range answers {
		if r.Key == nil {
			continue
		}
		if err := k.put(id, r.Key); err != nil {
			k.env.Log.Error("a key could not be stored", "key", id, "error", err)
			continue
		}
		key, err := k.Get(id)
		return key, false, err
	}
	return nil, len(answers) == len(addrs), structs.Errorf(structs.CodeUnavailable,
		"the key %s is on no server that answers; put its file %s.key into the directory keystore of a server", id, id)
}

// Active returns the key to seal variables with. The first write of a variable makes one. A new one is also made after
// all servers have lost the active key, as when a snapshot was restored without its keystore; variables sealed with the
// lost key stay unreadable until its file is put back.
func (k *Keystore) Active(ctx context.Context) (id string, key []byte, err error) {
	k.making.Lock()
	defer k.making.Unlock()
	if id = k.env.Published().Snapshot.ActiveSealKey(); id != "" {
		key, lost, err := k.Fetch(ctx, id)
		if err == nil || !lost {
			return id, key, err
		}
		k.env.Log.Warn("no server has the key of the variables; a new one is made, and older variables cannot be read until its file is put back", "key", id)
	}
	var have, voters int
	key = make([]byte, keyBytes)
	rand.Read(key) // never fails
	if id, have, voters, _, err = k.handOut(ctx, key); err != nil {
		return "", nil, err
	}
	if have <= voters/2 {
		return "", nil, structs.Errorf(structs.CodeUnavailable, "a key for variables reached %d of %d servers; variables can be written once most answer", have, voters)
	}
	_, err = k.env.Apply(ctx, replica.LanePriority, structs.Command{Body: &structs.SealKeyCommand{ID: id}})
	return id, key, err
}

// handOut stores a new key and sends it to every server. have counts the voters, including this one, that have it on disk;
// without lists the servers that may lack it. The caller holds making.
func (k *Keystore) handOut(ctx context.Context, key []byte) (id string, have, voters int, without []string, err error) {
	id = keyID(key)
	if err := k.put(id, key); err != nil {
		return "", 0, 0, nil, err
	}
	answers, addrs, voters, err := k.askAll(ctx, &methods.SealKeyRequest{ID: id, Key: key})
	if err != nil {
		return "", 0, 0, nil, err
	}
	have = 1
	for addr, voter := range addrs {
		switch {
		case answers[addr] == nil:
			without = append(without, addr)
		case voter:
			have++
		}
	}
	slices.Sort(without)
	return id, have, voters, without, nil
}

// Run fetches keys that the state names and this server lacks.
func (k *Keystore) Run(ctx context.Context) {
	wait := fetchRetry
	for {
		snap := k.env.Published().Snapshot
		changed, signing := snap.Watch(state.SealKeys), snap.Watch(state.SigningKeys)
		missing := false
		for _, id := range k.named() {
			if _, _, err := k.Fetch(ctx, id); err != nil {
				missing = true
				if wait == fetchRetry {
					k.env.Log.Warn("a key of the keystore is missing", "error", err)
				}
			}
		}
		if !missing {
			wait = fetchRetry
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-signing:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, 30*time.Second)
	}
}
