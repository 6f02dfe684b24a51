package replica

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// appendAgain is how soon a leader repeats to a follower what it told it last. Heartbeats go a way of their own.
const appendAgain = 50 * time.Millisecond

// quietTransport leaves out what a follower was just told. Raft tells followers how far the log is committed with the next
// entries, or when CommitTimeout has passed without any, again and again. CommitTimeout is short, because followers answer
// polls and reads from what they applied; without this an idle cluster sends hundreds of messages a second that say nothing.
// A message that is left out is to raft a message that was lost: it has no entries and no answer, so that neither the
// follower's place in the log nor a leader's proof of leadership counts on it.
type quietTransport struct{ *raft.NetworkTransport }

// AppendEntriesPipeline opens the way for entries to a follower.
func (t quietTransport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &quietPipeline{AppendPipeline: p}, nil
}

// quietPipeline is used by one goroutine, as raft promises of a pipeline's sends.
type quietPipeline struct {
	raft.AppendPipeline
	told struct{ term, prev, prevTerm, commit uint64 } // with the last message
	at   time.Time                                     // of the last message
}

// AppendEntries sends a message if it says something new, or nothing was said for a while.
func (p *quietPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	told, now := p.told, time.Now()
	told.term, told.prev, told.prevTerm, told.commit = args.Term, args.PrevLogEntry, args.PrevLogTerm, args.LeaderCommitIndex
	if len(args.Entries) == 0 && told == p.told && now.Sub(p.at) < appendAgain {
		return unsent{args, resp, now}, nil
	}
	p.told, p.at = told, now
	return p.AppendPipeline.AppendEntries(args, resp)
}

// unsent is the future of a message that was left out. Nobody waits for it.
type unsent struct {
	args *raft.AppendEntriesRequest
	resp *raft.AppendEntriesResponse
	at   time.Time
}

var errUnsent = errors.New("not sent: the follower was just told the same")

func (u unsent) Error() error                          { return errUnsent }
func (u unsent) Start() time.Time                      { return u.at }
func (u unsent) Request() *raft.AppendEntriesRequest   { return u.args }
func (u unsent) Response() *raft.AppendEntriesResponse { return u.resp }
