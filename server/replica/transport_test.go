package replica

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// sentPipeline records what was sent.
type sentPipeline struct {
	raft.AppendPipeline
	sent []raft.AppendEntriesRequest
}

func (p *sentPipeline) AppendEntries(a *raft.AppendEntriesRequest, _ *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.sent = append(p.sent, *a)
	return nil, nil
}

func TestFollowersAreToldNewsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wire := &sentPipeline{}
		p := &quietPipeline{AppendPipeline: wire}
		say := func(a raft.AppendEntriesRequest) bool {
			n := len(wire.sent)
			if _, err := p.AppendEntries(&a, &raft.AppendEntriesResponse{}); err != nil {
				t.Fatal(err)
			}
			return len(wire.sent) > n
		}
		base := raft.AppendEntriesRequest{Term: 2, PrevLogEntry: 7, PrevLogTerm: 2, LeaderCommitIndex: 6}
		with := func(edit func(*raft.AppendEntriesRequest)) raft.AppendEntriesRequest { a := base; edit(&a); return a }
		steps := []bool{
			say(base), say(base), // news, then the same again
			say(with(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = 7 })),
			say(with(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = 7 })),
			say(with(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = 7; a.Entries = []*raft.Log{{Index: 8}} })),
			say(with(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = 7; a.Entries = []*raft.Log{{Index: 8}} })), // entries are always sent
			say(with(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = 7; a.PrevLogEntry = 8 })),
			say(with(func(a *raft.AppendEntriesRequest) { a.LeaderCommitIndex = 7; a.PrevLogEntry = 8; a.Term = 3 })),
		}
		if want := []bool{true, false, true, false, true, true, true, true}; !slices.Equal(steps, want) {
			t.Errorf("sent %v, want %v", steps, want)
		}
		n := len(wire.sent)
		say(base)
		for range 1000 { // ten seconds without news
			time.Sleep(10 * time.Millisecond)
			say(base)
		}
		if got := len(wire.sent) - n; got < 150 || got > 201 {
			t.Errorf("%d messages in ten seconds of nothing new, want one in %s", got, appendAgain)
		}
	})
}
