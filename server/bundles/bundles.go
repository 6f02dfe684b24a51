// Package bundles spreads bundles (structs.BundleMax) over the servers, and removes those that no job uses any more. Every
// server keeps all of them; one that lacks a bundle gets it from another. Nothing of this is replicated state: a bundle is
// named by what is in it, and the jobs say which ones are used.
package bundles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/bundle"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Limits of spreading bundles.
const (
	spreadTimeout = time.Minute      // for the other servers to get a new one
	sweepEvery    = time.Minute      // between looks at what is used
	afterUse      = 10 * time.Minute // how long one is kept whose last job has gone: the next run may send the same directory
)

// Environment is what a Keeper needs from its server.
type Environment struct {
	Log       hclog.Logger
	Now       func() time.Time
	Store     *bundle.Store   // nil: this server keeps none
	Others    func() []string // addresses of raft's other servers
	To        func(addr string) rpc.Caller
	Jobs      iter.Seq[*structs.Job] // all jobs, in all versions that are kept
	HasLeader func() bool            // whether this server follows a leader, or is one
}

// Keeper keeps a server's bundles.
type Keeper struct {
	env  Environment
	used map[bundle.Key]bool // those that some job has used; only Run has it
}

// New returns a Keeper. Run must be called for bundles to expire.
func New(env Environment) *Keeper {
	return &Keeper{env: env, used: map[bundle.Key]bool{}}
}

func (k *Keeper) store() (*bundle.Store, error) {
	if k.env.Store == nil {
		return nil, structs.Errorf(structs.CodeUnsupported, "this server keeps no bundles (server.bundles_max_mb): use a file system that the nodes share")
	}
	return k.env.Store, nil
}

// Bytes returns how much this server keeps.
func (k *Keeper) Bytes() int64 {
	if k.env.Store == nil {
		return 0
	}
	n, _ := k.env.Store.Bytes() // what cannot be listed counts as nothing
	return n
}

// Put keeps a new bundle, and returns once most servers have it; copies says how many.
func (k *Keeper) Put(ctx context.Context, key bundle.Key, size int64, r io.Reader) (copies int, err error) {
	store, err := k.store()
	if err != nil {
		return 0, err
	}
	if err := structs.CheckBundleSum(key.Sum); err != nil {
		return 0, err
	}
	if _, ok := store.Has(key); !ok {
		if err := store.PutShare(key, size, r); err != nil {
			return 0, err
		}
	}
	others := k.env.Others()
	ctx, cancel := context.WithTimeout(ctx, spreadTimeout)
	defer cancel()
	errs := make([]error, len(others))
	var wg sync.WaitGroup
	for i, addr := range others {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, errs[i] = rpc.Invoke(ctx, k.env.To(addr), methods.ServerBundleCollect, rpc.Header{}, &methods.ServerBundleRequest{Namespace: key.Namespace, Sum: key.Sum})
		}()
	}
	wg.Wait()
	copies = 1
	for i, err := range errs {
		if err == nil {
			copies++
			continue
		}
		errs[i] = fmt.Errorf("%s: %w", others[i], err)
	}
	if 2*copies <= len(others)+1 {
		return copies, structs.Errorf(structs.CodeUnavailable, "%d of %d servers have the bundle, which is not most of them: %v", copies, len(others)+1, errors.Join(errs...))
	}
	return copies, nil
}

// Here opens a bundle that this server itself has.
func (k *Keeper) Here(key bundle.Key) (f *os.File, size int64, err error) {
	return k.open(key, func(store *bundle.Store) (*os.File, error) { return store.Open(key) })
}

// Open opens a bundle. A server that lacks it gets it from another first.
func (k *Keeper) Open(ctx context.Context, key bundle.Key) (f *os.File, size int64, err error) {
	return k.open(key, func(store *bundle.Store) (*os.File, error) {
		return store.Fetch(ctx, key, func() error {
			ctx, cancel := context.WithTimeout(ctx, spreadTimeout)
			defer cancel()
			return k.fromOthers(ctx, key)
		})
	})
}

func (k *Keeper) open(key bundle.Key, get func(*bundle.Store) (*os.File, error)) (f *os.File, size int64, err error) {
	store, err := k.store()
	if err != nil {
		return nil, 0, err
	}
	if err := structs.CheckBundleSum(key.Sum); err != nil {
		return nil, 0, err
	}
	f, err = get(store)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, notKept(key)
	}
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open a bundle: %w", err)
	}
	return f, st.Size(), nil
}

func notKept(key bundle.Key) error {
	return structs.Errorf(structs.CodeNotFound, "no server keeps bundle %s in namespace %q", key.Sum, key.Namespace)
}

func (k *Keeper) fromOthers(ctx context.Context, key bundle.Key) error {
	var failed []error
	for _, addr := range k.env.Others() {
		err := k.from(ctx, addr, key)
		if err == nil {
			return nil
		}
		if structs.CodeOf(err) != structs.CodeNotFound {
			failed = append(failed, fmt.Errorf("%s: %w", addr, err))
		}
	}
	if len(failed) > 0 {
		return structs.Errorf(structs.CodeUnavailable, "bundle %s of namespace %q cannot be had from another server: %v", key.Sum, key.Namespace, errors.Join(failed...))
	}
	return notKept(key)
}

func (k *Keeper) from(ctx context.Context, addr string, key bundle.Key) error {
	st, err := rpc.OpenStream(ctx, k.env.To(addr), methods.ServerBundle, rpc.Header{}, &methods.ServerBundleRequest{Namespace: key.Namespace, Sum: key.Sum})
	if err != nil {
		return err
	}
	defer st.Close(nil)
	var info methods.BundleResponse
	if err := st.RecvMsg(&info); err != nil {
		return err
	}
	return k.env.Store.Put(key, info.Size, &rpc.Reader{Stream: st})
}

// Close closes the store.
func (k *Keeper) Close() {
	if k.env.Store != nil {
		k.env.Store.Close()
	}
}

// Run removes bundles that no job uses, and gets those that this server lacks, until ctx ends. It removes none until the
// server has caught up with the others: before, its state may lack the jobs that use them.
func (k *Keeper) Run(ctx context.Context) {
	if k.env.Store == nil {
		return
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for begun := k.env.Now(); ; {
		now := k.fetchUsed(ctx)
		if k.env.Now().Sub(begun) > afterUse && k.env.HasLeader() {
			k.sweep(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// fetchUsed gets what jobs use and this server lacks, and returns all that they use.
func (k *Keeper) fetchUsed(ctx context.Context) map[bundle.Key]bool {
	used := map[bundle.Key]bool{}
	for j := range k.env.Jobs {
		for _, sum := range j.Bundles() {
			used[bundle.Key{Namespace: j.Namespace, Sum: sum}] = true
		}
	}
	for key := range used {
		k.used[key] = true
		f, _, err := k.Open(ctx, key)
		switch code := structs.CodeOf(err); {
		case err == nil:
			f.Close()
		case code != structs.CodeNotFound && code != structs.CodeInvalid && ctx.Err() == nil:
			k.env.Log.Warn("a bundle that a job uses could not be had from another server", "namespace", key.Namespace, "sum", key.Sum, "error", err)
		}
	}
	return used
}

// sweep removes what no job uses.
func (k *Keeper) sweep(used map[bundle.Key]bool) {
	kept := map[bundle.Key]bool{}
	err := k.env.Store.Sweep(func(key bundle.Key) time.Duration {
		kept[key] = k.used[key]
		switch {
		case used[key]:
			return math.MaxInt64
		case k.used[key]:
			return afterUse
		}
		return structs.BundleKeep
	})
	if err != nil {
		k.env.Log.Warn("bundles could not be removed", "error", err)
		return
	}
	k.used = kept
}
