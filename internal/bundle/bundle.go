// Package bundle keeps bundles (structs.BundleMax) as files, by namespace and sum. Servers keep what users send, and agents
// what they fetched.
package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/structs"
)

// Key names a bundle.
type Key struct{ Namespace, Sum string }

func (k Key) path() string { return path.Join(k.Namespace, k.Sum) }

// partial begins the name of a file that is not complete. No namespace begins with a dot.
const partial = ".partial-"

// spareMiB is what a bundle must leave free on the file system: the same disk has the raft log or the tasks' files.
const spareMiB = 1 << 10

// Store is a directory of bundles. Its methods may be called concurrently.
type Store struct {
	dir    string
	root   *os.Root
	max    int64 // bytes of all bundles
	next   atomic.Uint64
	now    func() time.Time
	mu     sync.Mutex
	coming map[string]int64 // bytes that are being written, by namespace
	gets   map[Key]*transfer
}

// transfer is a bundle on its way, for all who want it.
type transfer struct {
	done chan struct{}
	err  error
	left bool // the caller that got it did not wait for its end
}

// Open opens a directory, which it makes if necessary, and removes what an earlier process left incomplete. max bounds
// the bytes of all bundles.
func Open(dir string, max int64, now func() time.Time) (*Store, error) {
	if err := fsync.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("bundles: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("bundles: %w", err)
	}
	s := &Store{dir: dir, root: root, max: max, now: now, coming: map[string]int64{}, gets: map[Key]*transfer{}}
	old, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("bundles: %w", err)
	}
	for _, f := range old {
		if strings.HasPrefix(f.Name(), partial) {
			_ = root.Remove(f.Name()) // takes room until the next start otherwise
		}
	}
	return s, nil
}

// Close closes the directory.
func (s *Store) Close() error { return s.root.Close() }

// Open opens a bundle, and counts that as use. The error is fs.ErrNotExist if there is none.
func (s *Store) Open(k Key) (*os.File, error) {
	f, err := s.root.Open(k.path())
	if err != nil {
		return nil, err
	}
	now := s.now()
	_ = s.root.Chtimes(k.path(), now, now) // an old time only removes it sooner
	return f, nil
}

// Fetch opens a bundle. One that is not there is put there by get first, once for all who ask meanwhile: they get its
// error, too, unless the one that called get has left.
func (s *Store) Fetch(ctx context.Context, k Key, get func() error) (*os.File, error) {
	for {
		f, err := s.Open(k)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		s.mu.Lock()
		g := s.gets[k]
		if g == nil {
			g = &transfer{done: make(chan struct{})}
			s.gets[k] = g
			s.mu.Unlock()
			g.err = get()
			g.left = ctx.Err() != nil
			s.mu.Lock()
			delete(s.gets, k)
			s.mu.Unlock()
			close(g.done)
			if g.err != nil {
				return nil, g.err
			}
			return s.Open(k)
		}
		s.mu.Unlock()
		select {
		case <-g.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if g.err != nil && !g.left {
			return nil, g.err
		}
	}
}

// Has reports whether the store has a bundle, and counts that as use.
func (s *Store) Has(k Key) (size int64, ok bool) {
	f, err := s.Open(k)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	st, err := f.Stat()
	return st.Size(), err == nil
}

// Put writes a bundle of size bytes and returns once it is on disk. It refuses what does not have the sum that names it.
func (s *Store) Put(k Key, size int64, r io.Reader) error { return s.put(k, size, r, false) }

// PutShare is Put for what users send: it also refuses what its namespace has no room for. A namespace may have
// shareOfFree times what is left for all, so that one alone fills three quarters, two have three sevenths each, and one
// that comes later always finds room (dynamic thresholds: Choudhury and Hahne, Dynamic Queue Length Thresholds for
// Shared-Memory Packet Switches, 1998). What another server or a job needs is put regardless.
func (s *Store) PutShare(k Key, size int64, r io.Reader) error { return s.put(k, size, r, true) }

const shareOfFree = 3

func (s *Store) put(k Key, size int64, r io.Reader, share bool) error {
	if err := structs.CheckBundleSum(k.Sum); err != nil {
		return err
	}
	done, err := s.admit(k.Namespace, size, share)
	if err != nil {
		return err
	}
	defer done()
	name := partial + strconv.FormatUint(s.next.Add(1), 10)
	f, err := s.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("keep a bundle: %w", err)
	}
	defer s.root.Remove(name) // is gone if all is well
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(r, size+1))
	if err == nil && n == size && hex.EncodeToString(sum.Sum(nil)) == k.Sum {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return fmt.Errorf("keep a bundle: %w", err)
	case n != size:
		return structs.Errorf(structs.CodeInvalid, "the bundle was announced with %d bytes and has %s", size, counted(n, size))
	case hex.EncodeToString(sum.Sum(nil)) != k.Sum:
		return structs.Errorf(structs.CodeInvalid, "the bundle has the sum %s, not %s: it was damaged on its way, or the directory changed meanwhile", hex.EncodeToString(sum.Sum(nil)), k.Sum)
	}
	now := s.now()
	_ = s.root.Chtimes(name, now, now) // an old time only removes it sooner
	if err := s.root.MkdirAll(k.Namespace, 0o700); err != nil {
		return fmt.Errorf("keep a bundle: %w", err)
	}
	if err := s.root.Rename(name, k.path()); err != nil {
		return fmt.Errorf("keep a bundle: %w", err)
	}
	return errors.Join(fsync.Dir(s.dir), fsync.Dir(path.Join(s.dir, k.Namespace)))
}

func counted(n, size int64) string {
	if n > size {
		return "more"
	}
	return strconv.FormatInt(n, 10)
}

// admit reserves room for a bundle.
func (s *Store) admit(namespace string, size int64, share bool) (done func(), err error) {
	switch {
	case size <= 0:
		return nil, structs.Errorf(structs.CodeInvalid, "a bundle is sent with its size, as Content-Length")
	case size > structs.BundleMax:
		return nil, structs.Errorf(structs.CodeTooLarge, "a bundle has at most %d bytes, not %d", int64(structs.BundleMax), size)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own, has, coming := s.coming[namespace], int64(0), int64(0)
	for _, n := range s.coming {
		coming += n
	}
	err = s.each(func(k Key, info fs.FileInfo) {
		has += info.Size()
		if k.Namespace == namespace {
			own += info.Size()
		}
	})
	if err != nil {
		return nil, err
	}
	const cure = "those that no job uses are removed after %s; purge jobs that have ended, or use a file system that the nodes share"
	if has+coming+size > s.max {
		return nil, structs.Errorf(structs.CodeBusy, "bundles take %d MiB of the %d MiB that this server keeps (server.bundles_max_mb): "+cure, (has+coming)>>20, s.max>>20, structs.BundleKeep)
	}
	if free := s.max - has - coming - size; share && own+size > shareOfFree*free {
		return nil, structs.Errorf(structs.CodeBusy, "bundles of namespace %q take %d MiB of the %d MiB that this server keeps (server.bundles_max_mb), and one of %d MiB would leave %d MiB for all; a namespace may have %d times what it leaves: "+cure,
			namespace, own>>20, s.max>>20, size>>20, free>>20, shareOfFree, structs.BundleKeep)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return nil, fmt.Errorf("keep a bundle: %w", err)
	}
	if free := int64(st.Bavail) * st.Bsize >> 20; free < (coming+size)>>20+spareMiB {
		return nil, structs.Errorf(structs.CodeBusy, "the disk has %d MiB left, and a bundle must leave %d MiB", free, spareMiB)
	}
	s.coming[namespace] += size
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.coming[namespace] -= size; s.coming[namespace] == 0 {
			delete(s.coming, namespace)
		}
	}, nil
}

// Bytes returns the size of all bundles.
func (s *Store) Bytes() (n int64, err error) {
	err = s.each(func(_ Key, info fs.FileInfo) { n += info.Size() })
	return n, err
}

// each visits all bundles.
func (s *Store) each(visit func(k Key, info fs.FileInfo)) error {
	namespaces, err := fs.ReadDir(s.root.FS(), ".")
	if err != nil {
		return fmt.Errorf("list bundles: %w", err)
	}
	for _, ns := range namespaces {
		if !ns.IsDir() {
			continue
		}
		files, err := fs.ReadDir(s.root.FS(), ns.Name())
		if err != nil {
			return fmt.Errorf("list bundles: %w", err)
		}
		for _, f := range files {
			if info, err := f.Info(); err == nil { // it may have been removed
				visit(Key{ns.Name(), f.Name()}, info)
			}
		}
	}
	return nil
}

// Sweep removes each bundle whose last use is longer ago than keep says.
func (s *Store) Sweep(keep func(k Key) time.Duration) error {
	now := s.now()
	var failed error
	err := s.each(func(k Key, info fs.FileInfo) {
		if now.Sub(info.ModTime()) > keep(k) {
			if err := s.root.Remove(k.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = err
			}
		}
	})
	return errors.Join(err, failed)
}
