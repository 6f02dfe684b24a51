package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// The keys that variables are sealed with. Log and snapshots have their names only; the keys are in a file each, in the
// keystore of every server, and travel between servers over their RPC. A key is made by the leader when the first variable
// is written. It counts once most servers have it on disk, so that no minority's loss loses it; the others fetch it when
// they learn its name from the log.

// Patience of the keystore.
const (
	sealKeyBytes   = 32
	sealKeyTimeout = 3 * time.Second // for one server to take or give a key
	sealKeyRetry   = 2 * time.Second // between looks for a key that no server has given yet, growing to 30 s
)

// keystore is this server's keys, on disk unless everything is in memory.
type keystore struct {
	dir string // "" in memory

	mu   sync.Mutex
	keys map[string][]byte

	making sync.Mutex // held while a key is made and handed out
}

// sealKeyID is the name of a key: nobody can pass another key for it.
func sealKeyID(key []byte) string {
	h := sha256.Sum256(append([]byte("muster seal key 1\x00"), key...))
	return hex.EncodeToString(h[:16])
}

var sealKeyName = regexp.MustCompile(`^[0-9a-f]{32}$`)

func newKeystore(cfg *Config) (*keystore, error) {
	k := &keystore{keys: map[string][]byte{}}
	if cfg.InMemory {
		return k, nil
	}
	k.dir = filepath.Join(cfg.DataDir, "keystore")
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return nil, fmt.Errorf("keystore: %w", err)
	}
	return k, nil
}

// get gives a key, or nil. A file that an operator has put there counts at once.
func (k *keystore) get(id string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key := k.keys[id]; key != nil || k.dir == "" || !sealKeyName.MatchString(id) {
		return key, nil
	}
	path := filepath.Join(k.dir, id+".key")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keystore: %w", err)
	}
	key, err := hex.DecodeString(string(slices.DeleteFunc(text, func(c byte) bool { return c == '\n' || c == ' ' })))
	if err != nil || len(key) != sealKeyBytes || sealKeyID(key) != id {
		return nil, fmt.Errorf("keystore: %s does not hold the key of that name", path)
	}
	k.keys[id] = key
	return key, nil
}

// put keeps a key, on disk before it returns.
func (k *keystore) put(id string, key []byte) error {
	if len(key) != sealKeyBytes || sealKeyID(key) != id {
		return structs.Errorf(structs.CodeInvalid, "the key does not belong to its name")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys[id] != nil {
		return nil
	}
	if k.dir != "" {
		if err := renameio.WriteFile(filepath.Join(k.dir, id+".key"), []byte(hex.EncodeToString(key)+"\n"), 0o600, renameio.IgnoreUmask()); err != nil {
			return fmt.Errorf("keystore: %w", err)
		}
	}
	k.keys[id] = key
	return nil
}

// drop deletes a key.
func (k *keystore) drop(id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, id)
	if k.dir == "" || !sealKeyName.MatchString(id) {
		return nil
	}
	if err := os.Remove(filepath.Join(k.dir, id+".key")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keystore: %w", err)
	}
	return nil
}

// serverSealKey takes a key into the keystore, gives one, or deletes one.
func (s *Server) serverSealKey(_ context.Context, _ *rpc.Call, req *methods.SealKeyRequest) (*methods.SealKeyResponse, error) {
	if req.Drop {
		return &methods.SealKeyResponse{}, s.keys.drop(req.ID)
	}
	if req.Key != nil {
		return &methods.SealKeyResponse{}, s.keys.put(req.ID, req.Key)
	}
	key, err := s.keys.get(req.ID)
	return &methods.SealKeyResponse{Key: key}, err
}

// otherServers are the addresses of the other servers of the raft configuration; voters counts those with a vote, this one
// included.
func (s *Server) otherServers() (addrs map[string]bool, voters int, err error) {
	servers, err := s.raftServers()
	if err != nil {
		return nil, 0, err
	}
	addrs = map[string]bool{}
	for _, r := range servers {
		voter := r.Suffrage == raft.Voter
		if voter {
			voters++
		}
		if string(r.ID) != s.cfg.ID {
			addrs[string(r.Address)] = voter
		}
	}
	return addrs, voters, nil
}

// askSealKey makes one call of every other server at once.
func (s *Server) askSealKey(ctx context.Context, req *methods.SealKeyRequest) (answers map[string]*methods.SealKeyResponse, addrs map[string]bool, voters int, err error) {
	addrs, voters, err = s.otherServers()
	if err != nil {
		return nil, nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, sealKeyTimeout)
	defer cancel()
	answers = map[string]*methods.SealKeyResponse{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for addr := range addrs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			resp, err := rpc.Invoke(ctx, s.pool.To(addr), methods.ServerSealKey, rpc.Header{}, req)
			if err != nil {
				s.log.Debug("a server did not answer about a key for variables", "server", addr, "error", err)
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

// fetchSealKey gives a key from the keystore, or else from another server's. lost means that every server has answered and
// none has it.
func (s *Server) fetchSealKey(ctx context.Context, id string) (key []byte, lost bool, err error) {
	if key, err := s.keys.get(id); key != nil || err != nil {
		return key, false, err
	}
	answers, addrs, _, err := s.askSealKey(ctx, &methods.SealKeyRequest{ID: id})
	if err != nil {
		return nil, false, err
	}
	for _, r := range answers {
		if r.Key == nil {
			continue
		}
		if err := s.keys.put(id, r.Key); err != nil {
			s.log.Error("a key for variables could not be kept", "key", id, "error", err)
			continue
		}
		key, err := s.keys.get(id)
		return key, false, err
	}
	return nil, len(answers) == len(addrs), structs.Errorf(structs.CodeUnavailable,
		"the key %s that variables are sealed with is on no server that answers; put its file %s.key into the directory keystore of a server", id, id)
}

// activeSealKey is the key that a variable is sealed with now. The first write makes it; so does one after all servers have
// lost the last one, as after a snapshot was restored without its keystore: what that one sealed stays unreadable until
// its file is put back.
func (s *Server) activeSealKey(ctx context.Context) (id string, key []byte, err error) {
	s.keys.making.Lock()
	defer s.keys.making.Unlock()
	if id = s.Published().Snapshot.ActiveSealKey(); id != "" {
		key, lost, err := s.fetchSealKey(ctx, id)
		if err == nil || !lost {
			return id, key, err
		}
		s.log.Warn("no server has the key of the variables; a new one is made, and older variables cannot be read until its file is put back", "key", id)
	}
	var have, voters int
	if id, key, have, voters, _, err = s.handOutSealKey(ctx); err != nil {
		return "", nil, err
	}
	if have <= voters/2 {
		return "", nil, structs.Errorf(structs.CodeUnavailable, "a key for variables reached %d of %d servers; variables can be written once most answer", have, voters)
	}
	_, err = s.ApplyLane(ctx, replica.LanePriority, structs.Command{Body: &structs.SealKeyCommand{ID: id}})
	return id, key, err
}

// handOutSealKey makes a key and gives it to every server. have counts the voters, this one included, that have it on disk;
// without names the servers that may lack it. The caller holds keys.making.
func (s *Server) handOutSealKey(ctx context.Context) (id string, key []byte, have, voters int, without []string, err error) {
	key = make([]byte, sealKeyBytes)
	rand.Read(key) // never fails
	id = sealKeyID(key)
	if err := s.keys.put(id, key); err != nil {
		return "", nil, 0, 0, nil, err
	}
	answers, addrs, voters, err := s.askSealKey(ctx, &methods.SealKeyRequest{ID: id, Key: key})
	if err != nil {
		return "", nil, 0, 0, nil, err
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
	return id, key, have, voters, without, nil
}

// runKeystore fetches the keys that the state names and this server does not have.
func (s *Server) runKeystore(ctx context.Context) {
	wait := sealKeyRetry
	for {
		snap := s.Published().Snapshot
		changed := snap.Watch(state.SealKeys)
		missing := false
		for k := range snap.SealKeys() {
			if _, _, err := s.fetchSealKey(ctx, k.ID); err != nil {
				missing = true
				if wait == sealKeyRetry {
					s.log.Warn("a key for variables is missing", "error", err)
				}
			}
		}
		if !missing {
			wait = sealKeyRetry
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			continue
		}
		if !pause(ctx, wait) {
			return
		}
		wait = min(2*wait, 30*time.Second)
	}
}
