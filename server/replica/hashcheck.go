package replica

import (
	"context"
	"fmt"
	"time"

	"github.com/muster-sched/muster/structs"
)

// HashCheckInterval is the time between checks for a new hash to compare.
const HashCheckInterval = 5 * time.Second

// hashTimeout bounds the call of one server.
const hashTimeout = 5 * time.Second

// Hashes are the marks of one server, oldest first.
type Hashes struct{ Marks []Mark }

// Peers calls the other servers.
type Peers interface {
	// Others returns the addresses of the other servers.
	Others() []string
	// Hashes returns the marks of the server at an address.
	Hashes(ctx context.Context, addr string) (Hashes, error)
	// Silence asks the server at an address whether it hears the leader of a term.
	Silence(ctx context.Context, addr string, term uint64) (Silence, error)
}

// Hashes returns the marks of this server.
func (r *Replica) Hashes() Hashes { return Hashes{r.Marks()} }

// Quarantined returns why this server's state is not trusted, or "" if it is.
func (r *Replica) Quarantined() string {
	if why := r.quarantine.Load(); why != nil {
		return *why
	}
	return ""
}

// runHashCheck compares this server's state with the others' whenever there is a new mark. A server in the minority
// hands leadership over and ends its process, so that it can be restarted with a copy of a good server's state. If too
// few other servers answer to keep a quorum without its vote, it stays in quarantine instead: it votes, but neither
// leads nor answers.
func (r *Replica) runHashCheck(ctx context.Context, peers Peers) {
	ticker := time.NewTicker(HashCheckInterval)
	defer ticker.Stop()
	var seen structs.Index
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		mine := r.Hashes()
		if n := len(mine.Marks); n == 0 || mine.Marks[n-1].Index <= seen {
			continue
		}
		all := []Hashes{mine}
		for _, addr := range peers.Others() {
			cctx, cancel := context.WithTimeout(ctx, hashTimeout)
			theirs, err := peers.Hashes(cctx, addr)
			cancel()
			if err == nil {
				all = append(all, theirs)
			}
		}
		voters := r.voters()
		verdict, at := compareHashes(mine, all, voters)
		seen = max(seen, at)
		if verdict == hashMinority {
			r.distrustSelf(at, len(all)-1, voters)
		}
	}
}

type hashVerdict int

const (
	hashUndecided hashVerdict = iota
	hashAgrees
	hashMinority
)

// compareHashes finds the newest mark on which a majority of the voters agree, and reports on which side mine is. Marks
// are compared in equal formats only. The format in force follows from the log, so servers of different releases compute
// the same hashes; one that computed in another format says nothing about the rows.
func compareHashes(mine Hashes, all []Hashes, voters int) (hashVerdict, structs.Index) {
	for i := len(mine.Marks) - 1; i >= 0; i-- {
		at := mine.Marks[i].Index
		votes := map[[32]byte]int{}
		for _, h := range all {
			for _, m := range h.Marks {
				if m.Index == at && m.Format == mine.Marks[i].Format {
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

// distrustSelf puts this server into quarantine and ends its process, unless the cluster needs its vote. others counts
// the other servers that answered.
func (r *Replica) distrustSelf(at structs.Index, others, voters int) {
	why := fmt.Sprintf("its state differs from the majority's at index %d", at)
	r.log.Error("STATE DIVERGED: "+why, "server", r.cfg.ID)
	r.quarantine.Store(&why)
	if r.IsRaftLeader() {
		if err := r.TransferLeadership(); err != nil {
			r.log.Error("handing leadership over failed", "error", err)
		}
	}
	if others > voters/2 {
		r.cfg.Exit(why + "; move the data directory aside and start again to copy the state of the others")
		return
	}
	r.log.Error("staying in quarantine, because the cluster would lose its quorum without this server's vote")
}
