package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/server/raftlog"
)

// appendAgain is the time after which a leader repeats the same message to a follower. Heartbeats are sent separately.
const appendAgain = 50 * time.Millisecond

// transport is raft's network with four rules of our own: it asks for no votes while this server's disk takes no
// writes, its pipelines drop messages that repeat the last one (quietPipeline), it can have raft elect (elect), and raft
// is given a snapshot only when it has been received and decoded (Replica.receive).
//
// Messages to another server never wait for each other: each call has its own connection while it runs, entries
// have their pipeline, and each snapshot has a connection. Raft answers heartbeats on the goroutine of their connection.
type transport struct {
	*raft.NetworkTransport
	disk    *raftlog.Health
	receive func(raft.RPC, *raft.InstallSnapshotRequest, func(raft.RPC) (raft.RPCResponse, bool)) // Replica.receive, or nil: raft receives snapshots
	rpcs    chan raft.RPC                                                                         // to raft's main goroutine
	done    chan struct{}                                                                         // closed when the replica stops
	running sync.WaitGroup
}

func newTransport(net *raft.NetworkTransport, disk *raftlog.Health) *transport {
	return &transport{NetworkTransport: net, disk: disk, rpcs: make(chan raft.RPC), done: make(chan struct{})}
}

// start starts the delivery of messages to raft. It ends with stop.
func (t *transport) start() { t.running.Go(t.deliver) }

// deliver passes messages on until stop. Snapshots are received on goroutines of their own, those of a term one after the
// other. A sender of an earlier term may be frozen with half of its snapshot sent, so a newer leader's does not wait for it.
func (t *transport) deliver() {
	var term uint64          // of the newest snapshot
	var last <-chan struct{} // closed when it has been answered; nil: none was sent
	for {
		var rpc raft.RPC
		select {
		case rpc = <-t.NetworkTransport.Consumer():
		case <-t.done:
			return
		}
		if req, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok && t.receive != nil {
			earlier, answered := last, make(chan struct{})
			if req.Term != term {
				earlier = nil
			}
			term, last = req.Term, answered
			t.running.Go(func() {
				defer close(answered)
				if earlier != nil {
					<-earlier
				}
				t.receive(rpc, req, t.ask)
			})
			continue
		}
		select {
		case t.rpcs <- rpc:
		case <-t.done:
			return
		}
	}
}

// ask passes a message on and waits for raft's answer. It returns false if the replica stops meanwhile.
func (t *transport) ask(rpc raft.RPC) (answer raft.RPCResponse, answered bool) {
	answers := make(chan raft.RPCResponse, 1)
	rpc.RespChan = answers
	select {
	case t.rpcs <- rpc:
	case <-t.done:
		return answer, false
	}
	select {
	case answer = <-answers:
		return answer, true
	case <-t.done:
		return answer, false
	}
}

// Consumer returns the messages for raft's main goroutine.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

// stop ends the goroutines and closes the connections. Raft must have been shut down.
func (t *transport) stop() {
	close(t.done)
	t.NetworkTransport.Close()
	t.running.Wait()
}

// elect has raft stand for election at once and without a pre-vote, as if the leader had handed leadership over.
func (t *transport) elect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, silenceStepTry)
	defer cancel()
	answer := make(chan raft.RPCResponse, 1)
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}}
	select {
	case t.rpcs <- raft.RPC{Command: req, RespChan: answer}:
	case <-ctx.Done():
		return
	}
	select {
	case <-answer:
	case <-ctx.Done():
	}
}

// errIllDisk answers a candidate that could not store what it would have to store as a leader.
var errIllDisk = errors.New("not sent: the newest write to the raft log failed, so this server must not lead")

// RequestPreVote asks for a promise to vote for this server. A leader whose disk fails steps down, but its log is the
// longest, and its last message delays the others' timeouts. Without this rule it wins one election after another.
func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if t.disk.Ill() {
		return errIllDisk
	}
	return t.NetworkTransport.RequestPreVote(id, target, args, resp)
}

// RequestVote asks for a vote for this server.
func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if t.disk.Ill() {
		return errIllDisk
	}
	return t.NetworkTransport.RequestVote(id, target, args, resp)
}

// AppendEntriesPipeline opens a pipeline of entries to a follower.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return &quietPipeline{AppendPipeline: p}, nil
}

// quietPipeline drops messages that repeat the last one. Raft reports the commit index to followers with the next
// entries, or whenever CommitTimeout has passed without any. CommitTimeout is short, because followers answer polls and
// reads from what they have applied, so an idle cluster would send hundreds of empty messages a second. Raft treats a
// dropped message like a lost one. It carries no entries and gets no answer, so neither the follower's position in the
// log nor the leader's lease depends on it. It needs no lock, because raft sends on a pipeline from one goroutine.
type quietPipeline struct {
	raft.AppendPipeline
	told struct{ term, prev, prevTerm, commit uint64 } // in the last message
	at   time.Time                                     // when the last message was sent
}

// AppendEntries sends a message unless it repeats the last one within appendAgain.
func (p *quietPipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	told, now := p.told, time.Now()
	told.term, told.prev, told.prevTerm, told.commit = args.Term, args.PrevLogEntry, args.PrevLogTerm, args.LeaderCommitIndex
	if len(args.Entries) == 0 && told == p.told && now.Sub(p.at) < appendAgain {
		return unsent{args, resp, now}, nil
	}
	p.told, p.at = told, now
	return p.AppendPipeline.AppendEntries(args, resp)
}

// unsent is the future of a dropped message. Raft does not wait for it.
type unsent struct {
	args *raft.AppendEntriesRequest
	resp *raft.AppendEntriesResponse
	at   time.Time
}

var errUnsent = errors.New("not sent: it repeats the last message")

func (u unsent) Error() error                          { return errUnsent }
func (u unsent) Start() time.Time                      { return u.at }
func (u unsent) Request() *raft.AppendEntriesRequest   { return u.args }
func (u unsent) Response() *raft.AppendEntriesResponse { return u.resp }
