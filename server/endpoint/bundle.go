package endpoint

import (
	"context"
	"io"
	"os"

	"github.com/muster-sched/muster/internal/bundle"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerBundles() {
	rpc.HandleStream(s.env.Registry, methods.BundlePut, s.bundlePut)
	rpc.HandleStream(s.env.Registry, methods.BundleGet, s.bundleGet)
	rpc.HandleStream(s.env.Registry, methods.ServerBundle, s.serverBundle)
	handle(s, methods.BundleStat, s.bundleStat)
	handle(s, methods.ServerBundleCollect, s.serverBundleCollect)
}

// bundlePut receives a bundle.
func (s *Set) bundlePut(ctx context.Context, c *rpc.Call, req *methods.BundlePutRequest, st *rpc.Stream) error {
	ns := auth.NamespaceOf(c)
	if s.published().Snapshot.Namespace(ns) == nil {
		return structs.Errorf(structs.CodeNotFound, "namespace %q does not exist", ns)
	}
	copies, err := s.env.Bundles.Put(ctx, bundle.Key{Namespace: ns, Sum: req.Sum}, req.Size, &rpc.Reader{Stream: st})
	if err != nil {
		return err
	}
	return st.SendMsg(&methods.BundleResponse{Size: req.Size, Copies: copies})
}

// bundleStat says whether a bundle can be used in a job.
func (s *Set) bundleStat(ctx context.Context, c *rpc.Call, req *methods.BundleRequest) (*methods.BundleResponse, error) {
	f, size, err := s.env.Bundles.Open(ctx, bundle.Key{Namespace: auth.NamespaceOf(c), Sum: req.Sum})
	if err != nil {
		return nil, err
	}
	return &methods.BundleResponse{Size: size}, f.Close()
}

// bundleGet sends a bundle to the node of a task, or to a user.
func (s *Set) bundleGet(ctx context.Context, c *rpc.Call, req *methods.BundleRequest, st *rpc.Stream) error {
	f, size, err := s.env.Bundles.Open(ctx, bundle.Key{Namespace: auth.NamespaceOf(c), Sum: req.Sum})
	if err != nil {
		return err
	}
	return sendBundle(f, size, st)
}

// serverBundle sends a bundle to another server.
func (s *Set) serverBundle(ctx context.Context, _ *rpc.Call, req *methods.ServerBundleRequest, st *rpc.Stream) error {
	f, size, err := s.env.Bundles.Here(bundle.Key(*req))
	if err != nil {
		return err
	}
	return sendBundle(f, size, st)
}

func sendBundle(f *os.File, size int64, st *rpc.Stream) error {
	defer f.Close()
	if err := st.SendMsg(&methods.BundleResponse{Size: size}); err != nil {
		return err
	}
	_, err := io.Copy(rpc.Writer{Stream: st}, f)
	return err
}

// serverBundleCollect gets a bundle that another server has received.
func (s *Set) serverBundleCollect(ctx context.Context, _ *rpc.Call, req *methods.ServerBundleRequest) (*methods.BundleResponse, error) {
	f, size, err := s.env.Bundles.Open(ctx, bundle.Key(*req))
	if err != nil {
		return nil, err
	}
	return &methods.BundleResponse{Size: size}, f.Close()
}

// checkBundles returns an error if a job fetches a bundle that no server keeps. A caller who may not submit the job does not make
// this server fetch one: it answers for itself alone.
func (s *Set) checkBundles(ctx context.Context, j *structs.Job) error {
	submits := auth.Allow(auth.Who(ctx), methods.Need{Namespace: acl.CapSubmitJob}, j.Namespace) == nil
	for _, sum := range j.Bundles() {
		key := bundle.Key{Namespace: j.Namespace, Sum: sum}
		open := func() (*os.File, int64, error) { return s.env.Bundles.Open(ctx, key) }
		if !submits {
			open = func() (*os.File, int64, error) { return s.env.Bundles.Here(key) }
		}
		f, _, err := open()
		if structs.CodeOf(err) == structs.CodeNotFound && !submits {
			return structs.Errorf(structs.CodeUnavailable, "artifact source %s: this server does not have it; the others are asked for a caller with the capability %s", structs.BundleSource(sum), acl.CapSubmitJob)
		}
		if structs.CodeOf(err) == structs.CodeNotFound {
			return structs.Errorf(structs.CodeInvalid, "artifact source %s: %v; it has expired or was never sent: `muster run -pack` sends a directory", structs.BundleSource(sum), err)
		}
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}
