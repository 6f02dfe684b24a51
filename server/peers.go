package server

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

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

// peerConns returns how other servers connect to this one (nil: as agents do) and how this one connects to them.
func peerConns(cfg *Config) (accept *tls.Config, dial rpc.Dialer, err error) {
	switch {
	case cfg.TLSClient != nil:
		return nil, rpc.TLSDialer(cfg.Dial, cfg.TLSClient), nil
	case !cfg.provesPeers():
		return nil, cfg.Dial, nil
	case len(cfg.JoinKey) == 0:
		return nil, func(context.Context, string) (net.Conn, error) { return nil, errNoPeers }, nil
	}
	src, err := tlsutil.FromJoinKey(cfg.JoinKey, cfg.Region)
	if err != nil {
		return nil, nil, fmt.Errorf("server.join_key: %w", err)
	}
	return src.RPCServer(), rpc.TLSDialer(cfg.Dial, src.Client), nil
}

// peers lets the replica ask the other servers for their state hashes.
type peers struct{ s *Server }

func (p peers) Others() []string { return p.s.members.OtherServers() }

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
