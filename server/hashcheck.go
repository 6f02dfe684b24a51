package server

import (
	"context"
	"encoding/hex"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Limits of the comparison of states (D8).
const (
	hashLook    = 5 * time.Second
	hashTimeout = 5 * time.Second // of the question to one server
)

// hashes are this server's marks, for the others.
func (s *Server) hashes() *methods.ServerHashesResponse {
	resp := &methods.ServerHashesResponse{Server: s.cfg.ID}
	if meta := s.Published().Snapshot.ClusterMeta(); meta != nil {
		resp.StateVersion = meta.StateVersion
	}
	for _, m := range s.replica.Marks() {
		resp.Marks = append(resp.Marks, methods.StateMark{Index: m.Index, Hash: hex.EncodeToString(m.Hash[:])})
	}
	return resp
}

// runHashCheck compares this server's state with the others' whenever there is something new to compare. A server that
// finds itself in the minority no longer leads, and then ends its process, so that it comes back from a snapshot of a
// good one; when the others are too few to go on without its vote, it stays in quarantine instead: it votes, but neither
// leads nor answers.
func (s *Server) runHashCheck(ctx context.Context) {
	var seen structs.Index
	for pause(ctx, hashLook) {
		mine := s.hashes()
		if n := len(mine.Marks); n == 0 || mine.Marks[n-1].Index <= seen {
			continue
		}
		all := []*methods.ServerHashesResponse{mine}
		for _, addr := range s.gossip.otherServers() {
			cctx, cancel := context.WithTimeout(ctx, hashTimeout)
			resp, err := rpc.Invoke(cctx, s.pool.To(addr), methods.ServerHashes, rpc.Header{}, &methods.EmptyRequest{})
			cancel()
			if err == nil && resp.StateVersion == mine.StateVersion {
				all = append(all, resp)
			}
		}
		voters := 0
		if f := s.replica.Raft().GetConfiguration(); f.Error() == nil {
			for _, x := range f.Configuration().Servers {
				if x.Suffrage == raft.Voter {
					voters++
				}
			}
		}
		verdict, at := compareHashes(mine, all, voters)
		if at > seen {
			seen = at
		}
		if verdict == hashMinority {
			s.distrustSelf(at, len(all)-1, voters)
		}
	}
}

type hashVerdict int

const (
	hashUndecided hashVerdict = iota
	hashAgrees
	hashMinority
)

// compareHashes looks at the newest place where a majority of voters agree, and says on which side mine is.
func compareHashes(mine *methods.ServerHashesResponse, all []*methods.ServerHashesResponse, voters int) (hashVerdict, structs.Index) {
	for i := len(mine.Marks) - 1; i >= 0; i-- {
		at := mine.Marks[i].Index
		votes := map[string]int{}
		for _, r := range all {
			for _, m := range r.Marks {
				if m.Index == at {
					votes[m.Hash]++
				}
			}
		}
		for hash, n := range votes {
			if n > voters/2 {
				if hash == mine.Marks[i].Hash {
					return hashAgrees, at
				}
				return hashMinority, at
			}
		}
	}
	return hashUndecided, 0
}

func (s *Server) distrustSelf(at structs.Index, others, voters int) {
	why := "its state differs from the majority's at index " + formatIndex(at)
	s.log.Error("STATE DIVERGED: "+why, "server", s.cfg.Name)
	s.quarantine.Store(&why)
	if s.replica.IsRaftLeader() {
		if err := s.replica.Raft().LeadershipTransfer().Error(); err != nil {
			s.log.Error("handing leadership over failed", "error", err)
		}
	}
	if others > voters/2 {
		s.exit(why + "; move the data directory aside and start again to copy the state of the others")
		return
	}
	s.log.Error("staying in quarantine, because the cluster would lose its quorum without this server's vote")
}
