package server

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/tlsutil"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// provesPeers reports whether other servers must prove that they are servers. Where access control is on, a server holds
// every secret of the cluster, so the network is not trusted, loopback included (ADR 0019).
func (c *Config) provesPeers() bool { return c.ACL || c.TLSServer != nil }

var errNoPeers = errors.New("access control is on, and without tls and server.join_key servers cannot prove to each other who they are")

// peerConns returns how other servers connect to this one (nil: as agents do) and how this one connects to those of a
// region.
func peerConns(cfg *Config) (accept *tls.Config, dialTo func(region string) rpc.Dialer, err error) {
	always := func(d rpc.Dialer) func(string) rpc.Dialer { return func(string) rpc.Dialer { return d } }
	switch {
	case cfg.TLSClient != nil:
		return nil, func(region string) rpc.Dialer {
			return rpc.TLSDialer(cfg.Dial, func() *tls.Config { return cfg.TLSClient(region) })
		}, nil
	case !cfg.provesPeers():
		return nil, always(cfg.Dial), nil
	case len(cfg.JoinKey) == 0:
		return nil, always(func(context.Context, string) (net.Conn, error) { return nil, errNoPeers }), nil
	}
	src, err := tlsutil.FromJoinKey(cfg.JoinKey, cfg.Region)
	if err != nil {
		return nil, nil, fmt.Errorf("server.join_key: %w", err)
	}
	return src.RPCServer(), always(rpc.TLSDialer(cfg.Dial, src.Client)), nil
}

// regions holds the sessions to servers of other regions, a pool for each: a server proves the region that it belongs
// to when the connection is made.
type regions struct {
	open func(region string) *rpc.Pool

	mu    sync.Mutex
	pools map[string]*rpc.Pool
}

func (r *regions) to(region string) *rpc.Pool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[region]
	if p == nil {
		p = r.open(region)
		if r.pools == nil {
			r.pools = map[string]*rpc.Pool{}
		}
		r.pools[region] = p
	}
	return p
}

func (r *regions) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		p.Close()
	}
}

// peers lets the replica ask the other servers.
type peers struct{ s *Server }

func (p peers) Others() []string { return p.s.members.OtherServers() }

func (p peers) Silence(ctx context.Context, addr string, term uint64) (replica.Silence, error) {
	resp, err := rpc.Invoke(ctx, p.s.vital.To(addr), methods.ServerSilence, rpc.Header{}, &methods.ServerSilenceRequest{Term: term})
	if err != nil {
		return replica.Silence{}, err
	}
	return replica.Silence(*resp), nil
}

func (p peers) Hashes(ctx context.Context, addr string) (replica.Hashes, error) {
	resp, err := rpc.Invoke(ctx, p.s.pool.To(addr), methods.ServerHashes, rpc.Header{}, &methods.EmptyRequest{})
	if err != nil {
		return replica.Hashes{}, err
	}
	var out replica.Hashes
	for _, m := range resp.Marks {
		hash, err := hex.DecodeString(m.Hash)
		if err != nil || len(hash) != len(replica.Mark{}.Hash) {
			return replica.Hashes{}, structs.Errorf(structs.CodeInvalid, "server %s answered with an invalid hash: %q", resp.Server, m.Hash)
		}
		out.Marks = append(out.Marks, replica.Mark{Index: m.Index, Format: m.Format, Hash: [32]byte(hash)})
	}
	return out, nil
}
