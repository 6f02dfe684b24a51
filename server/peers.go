package server

import (
	"context"
	"encoding/hex"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// peers lets the replica ask the other servers for their state hashes.
type peers struct{ s *Server }

func (p peers) Others() []string { return p.s.members.OtherServers() }

func (p peers) Hashes(ctx context.Context, addr string) (replica.Hashes, error) {
	resp, err := rpc.Invoke(ctx, p.s.pool.To(addr), methods.ServerHashes, rpc.Header{}, &methods.EmptyRequest{})
	if err != nil {
		return replica.Hashes{}, err
	}
	out := replica.Hashes{StateVersion: resp.StateVersion}
	for _, m := range resp.Marks {
		hash, err := hex.DecodeString(m.Hash)
		if err != nil || len(hash) != len(replica.Mark{}.Hash) {
			return replica.Hashes{}, structs.Errorf(structs.CodeInvalid, "server %s answered with an invalid hash: %q", resp.Server, m.Hash)
		}
		out.Marks = append(out.Marks, replica.Mark{Index: m.Index, Hash: [32]byte(hash)})
	}
	return out, nil
}
