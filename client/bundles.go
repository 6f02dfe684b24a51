package client

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/muster-sched/muster/internal/bundle"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Limits of the bundles that a node keeps.
const (
	bundlesMax  = 20 << 30  // bytes; tasks have their own copies
	bundleSpare = time.Hour // how long one is kept that no allocation of the node uses: arrays start one member after the other
)

// bundles fetches bundles from the servers, each once for all allocations of the node. It implements runner.Bundles.
type bundles struct {
	c     *Client
	store *bundle.Store
}

func openBundles(c *Client) (*bundles, error) {
	store, err := bundle.Open(filepath.Join(c.cfg.Storage.DataDir, "bundles"), bundlesMax, time.Now)
	if err != nil {
		return nil, err
	}
	return &bundles{c: c, store: store}, nil
}

// Open implements runner.Bundles.
func (b *bundles) Open(ctx context.Context, alloc *structs.Allocation, task, sum string, progress func(got, size int64)) (*os.File, error) {
	key := bundle.Key{Namespace: alloc.Namespace, Sum: sum}
	return b.store.Fetch(ctx, key, func() error {
		return b.fetch(ctx, key, variables{b.c}.header(alloc.ID, task, alloc.Namespace), progress)
	})
}

func (b *bundles) fetch(ctx context.Context, key bundle.Key, h rpc.Header, progress func(got, size int64)) error {
	b.sweep()
	st, err := rpc.OpenStream(ctx, b.c.conn, methods.BundleGet, h, &methods.BundleRequest{Sum: key.Sum})
	if err != nil {
		return err
	}
	defer st.Close(nil)
	var info methods.BundleResponse
	if err := st.RecvMsg(&info); err != nil {
		return err
	}
	return b.store.Put(key, info.Size, &counted{r: &rpc.Reader{Stream: st}, size: info.Size, progress: progress})
}

func (b *bundles) close() error {
	if b == nil {
		return nil
	}
	return b.store.Close()
}

// counted reports what was read.
type counted struct {
	r         io.Reader
	got, size int64
	progress  func(got, size int64)
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.got += int64(n)
	c.progress(c.got, c.size)
	return n, err
}

// sweep removes what no allocation has used for a while.
func (b *bundles) sweep() {
	used := map[bundle.Key]bool{}
	for _, r := range b.c.Allocs() {
		if a := r.Alloc(); !r.Ended() && a.Job != nil {
			for _, sum := range a.Job.Bundles() {
				used[bundle.Key{Namespace: a.Namespace, Sum: sum}] = true
			}
		}
	}
	if err := b.store.Sweep(func(k bundle.Key) time.Duration {
		if used[k] {
			return math.MaxInt64
		}
		return bundleSpare
	}); err != nil {
		b.c.log.Warn("bundles could not be removed", "error", err)
	}
}
