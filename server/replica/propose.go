package replica

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/structs"
)

// Lane says how urgent a command is.
type Lane uint8

// The priority lane carries what keeps a cluster alive (nodes, observations, drains, plans) and is not refused under
// load; the user lane is, before it can drown the other.
const (
	LaneUser Lane = iota
	LanePriority
)

// Limits of the command path.
const (
	userQueueMax     = 4096             // proposals waiting in the user lane; further ones are CodeBusy
	priorityQueueMax = 65536            // the same of the priority lane
	applyGapMax      = 2000             // entries between log and state; above it user writes are CodeBusy
	queueAgeMax      = time.Second      // age of the oldest waiting user write; above it further ones are CodeBusy
	inFlightMax      = 4096             // entries handed to raft and not answered; the proposer waits
	enqueueTimeout   = 10 * time.Second // for raft to take an entry; then CodeBusy, nothing was written
)

// Proposal is a command on its way. Done is closed when its outcome is known; Result says it.
type Proposal struct {
	cmd  structs.Command
	at   time.Time
	done chan struct{}
	res  structs.Result
	err  error
	fut  raft.ApplyFuture
}

// Done is closed when Result has an answer.
func (p *Proposal) Done() <-chan struct{} { return p.done }

// Result is the outcome, once Done is closed. The error is CodeNoLeader or CodeBusy when nothing was written, and
// CodeUnknown when leadership was lost in between, so that the entry may yet commit. A command that Apply refused has a
// nil error and Result.Err set.
func (p *Proposal) Result() (structs.Result, error) { return p.res, p.err }

// Wait is Result, waiting for it at most until ctx ends, which is CodeUnknown.
func (p *Proposal) Wait(ctx context.Context) (structs.Result, error) {
	select {
	case <-p.done:
		return p.res, p.err
	case <-ctx.Done():
		return structs.Result{}, structs.Errorf(structs.CodeUnknown, "the deadline passed before the write was confirmed; it may still take effect")
	}
}

func (p *Proposal) finish(res structs.Result, err error) {
	p.res, p.err = res, err
	close(p.done)
}

// proposals is the queue before raft: two lanes, the priority lane first.
type proposals struct {
	wake chan struct{}
	sent chan *Proposal // to the completer, in the order of the log

	mu       sync.Mutex
	user     []*Proposal
	priority []*Proposal
	closed   bool

	completing atomic.Bool   // runCompleter was started
	completed  chan struct{} // closed when everything that was given to raft is answered and nothing more comes

	proposed atomic.Int64
	refused  atomic.Int64
}

func newProposals() *proposals {
	return &proposals{wake: make(chan struct{}, 1), sent: make(chan *Proposal, inFlightMax), completed: make(chan struct{})}
}

// settleMax is how long a server that closes waits for raft to answer what it was given.
const settleMax = 5 * time.Second

// settle waits until raft has answered everything, for settleMax at most. It comes after the end of runProposer was asked
// for and before raft is shut down: raft buffers entries (BatchApplyCh), and one that is in the buffer when it shuts down is
// never answered.
func (q *proposals) settle() {
	if !q.completing.Load() {
		return
	}
	t := time.NewTimer(settleMax)
	defer t.Stop()
	select {
	case <-q.completed:
	case <-t.C:
	}
}

// Propose starts a command without waiting. Commands of one caller enter the log in the order of their Propose calls
// within a lane.
func (r *Replica) Propose(lane Lane, cmd structs.Command) *Proposal {
	p := &Proposal{cmd: cmd, at: time.Now(), done: make(chan struct{})}
	if r.raft.State() != raft.Leader {
		p.finish(structs.Result{}, structs.ErrNoLeader)
		return p
	}
	if lane == LaneUser {
		if gap := r.applyGap(); gap > applyGapMax {
			r.props.refused.Add(1)
			p.finish(structs.Result{}, structs.Errorf(structs.CodeBusy, "the server is %d entries behind its log (limit %d); retry in a second", gap, applyGapMax))
			return p
		}
	}
	q := r.props
	q.mu.Lock()
	switch {
	case q.closed:
		q.mu.Unlock()
		p.finish(structs.Result{}, structs.Errorf(structs.CodeUnavailable, "the server is shutting down"))
		return p
	case lane == LaneUser && (len(q.user) >= userQueueMax || len(q.user) > 0 && time.Since(q.user[0].at) > queueAgeMax):
		n := len(q.user)
		q.mu.Unlock()
		q.refused.Add(1)
		p.finish(structs.Result{}, structs.Errorf(structs.CodeBusy, "%d writes wait already, the oldest for more than %s or the queue is full; retry in a second", n, queueAgeMax))
		return p
	case lane != LaneUser && len(q.priority) >= priorityQueueMax:
		q.mu.Unlock()
		q.refused.Add(1)
		p.finish(structs.Result{}, structs.Errorf(structs.CodeBusy, "%d urgent writes wait already; retry in a second", priorityQueueMax))
		return p
	case lane == LaneUser:
		q.user = append(q.user, p)
	default:
		q.priority = append(q.priority, p)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return p
}

// applyGap is how far the state is behind the log.
func (r *Replica) applyGap() uint64 {
	last, applied := r.raft.LastIndex(), r.raft.AppliedIndex()
	if last < applied {
		return 0
	}
	return last - applied
}

func (q *proposals) take() *Proposal {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.priority) > 0 {
		p := q.priority[0]
		q.priority[0] = nil
		q.priority = q.priority[1:]
		return p
	}
	if len(q.user) > 0 {
		p := q.user[0]
		q.user[0] = nil
		q.user = q.user[1:]
		return p
	}
	return nil
}

// runProposer hands proposals to raft one after the other, so that log times rise along the log. Raft gathers what
// arrives while it writes into one batch: that is the group commit.
func (r *Replica) runProposer(ctx context.Context) {
	q := r.props
	defer func() {
		q.mu.Lock()
		q.closed = true
		q.mu.Unlock()
		for p := q.take(); p != nil; p = q.take() {
			p.finish(structs.Result{}, structs.Errorf(structs.CodeUnavailable, "the server is shutting down"))
		}
		close(q.sent)
	}()
	for {
		p := q.take()
		if p == nil {
			select {
			case <-q.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if r.raft.State() != raft.Leader {
			p.finish(structs.Result{}, structs.ErrNoLeader)
			continue
		}
		p.cmd.Time = r.clock.mint(structs.LogTime(r.lastTime.Load()))
		if p.cmd.Seed == (structs.Seed{}) {
			rand.Read(p.cmd.Seed[:])
		}
		data, err := fsm.Encode(p.cmd)
		if err != nil {
			p.finish(structs.Result{}, err)
			continue
		}
		p.fut = r.raft.ApplyLog(raft.Log{Data: data}, enqueueTimeout)
		q.proposed.Add(1)
		select {
		case q.sent <- p:
		case <-ctx.Done():
			p.finish(structs.Result{}, errUnknownOutcome)
			return
		}
	}
}

var errUnknownOutcome = structs.Errorf(structs.CodeUnknown, "leadership was lost while the write was in flight; it may or may not take effect")

// runCompleter answers proposals as raft answers them, which is in the order of the log.
func (r *Replica) runCompleter() {
	defer close(r.props.completed)
	for p := range r.props.sent {
		err := p.fut.Error()
		switch {
		case err == nil:
			res, ok := p.fut.Response().(structs.Result)
			if !ok {
				p.finish(structs.Result{}, structs.Errorf(structs.CodeInternal, "the state machine answered %T", p.fut.Response()))
				continue
			}
			p.finish(res, nil)
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
			p.finish(structs.Result{}, structs.ErrNoLeader)
		case errors.Is(err, raft.ErrEnqueueTimeout):
			p.finish(structs.Result{}, structs.Errorf(structs.CodeBusy, "the log took no entry within %s; nothing was written", enqueueTimeout))
		default: // leadership lost, shutdown, aborted by a restore
			p.finish(structs.Result{}, errUnknownOutcome)
		}
	}
}
