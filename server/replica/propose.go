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

// Lane is the urgency of a command.
type Lane uint8

// The priority lane is for commands that keep the cluster alive (nodes, observations, drains, plans). Commands of the
// user lane are refused under load, long before those of the priority lane.
const (
	LaneUser Lane = iota
	LanePriority
)

// Limits of the command path. How many writes of users are in progress is bounded before (package admit); here counts how
// late the log is, for which commands of nodes and plans may be the cause.
const (
	priorityQueueMax = 65536            // proposals waiting in the priority lane; beyond it CodeBusy
	applyGapMax      = 2000             // entries between log and state; above it user writes fail with CodeBusy
	queueAgeMax      = time.Second      // age of the oldest waiting user write; above it user writes fail with CodeBusy
	inFlightMax      = 4096             // entries given to raft and not answered; at the limit the proposer waits
	enqueueTimeout   = 10 * time.Second // time for raft to accept an entry; then CodeBusy, and nothing was written
)

// Proposal is a command on its way into the log.
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

// Result returns the outcome; call it after Done is closed. The error is CodeNoLeader or CodeBusy if nothing was
// written, and CodeUnknown if leadership was lost meanwhile and the entry may still commit. If Apply refused the
// command, the error is nil and Result.Err is set.
func (p *Proposal) Result() (structs.Result, error) { return p.res, p.err }

// Wait waits for Done and returns Result. If ctx ends first, the error is CodeUnknown.
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

// proposals queues commands for raft in two lanes, of which the priority lane goes first.
type proposals struct {
	wake chan struct{}
	sent chan *Proposal // to the completer, in log order

	mu       sync.Mutex
	user     []*Proposal
	priority []*Proposal
	closed   bool

	completing atomic.Bool   // runCompleter has been started
	completed  chan struct{} // closed when every entry given to raft has been answered and no more will come

	proposed atomic.Int64
	refused  atomic.Int64
}

func newProposals() *proposals {
	return &proposals{wake: make(chan struct{}, 1), sent: make(chan *Proposal, inFlightMax), completed: make(chan struct{})}
}

// settleMax bounds how long a closing server waits for raft's answers.
const settleMax = 5 * time.Second

// settle waits up to settleMax until raft has answered everything. Call it after the context of runProposer has ended
// and before raft is shut down, because raft never answers entries that are in its buffer (BatchApplyCh) at shutdown.
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

// Propose queues a command without waiting for its outcome. Within a lane, commands enter the log in the order of their
// Propose calls.
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
	case lane == LaneUser && len(q.user) > 0 && time.Since(q.user[0].at) > queueAgeMax:
		n := len(q.user)
		q.mu.Unlock()
		q.refused.Add(1)
		p.finish(structs.Result{}, structs.Errorf(structs.CodeBusy, "%d writes are waiting, the oldest for more than %s; retry in a second", n, queueAgeMax))
		return p
	case lane != LaneUser && len(q.priority) >= priorityQueueMax:
		q.mu.Unlock()
		q.refused.Add(1)
		p.finish(structs.Result{}, structs.Errorf(structs.CodeBusy, "%d urgent writes are waiting; retry in a second", priorityQueueMax))
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

// applyGap returns how many entries the state is behind the log.
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

// runProposer gives proposals to raft one after the other, so that log times rise along the log. While raft writes, it
// gathers further entries into the next batch: that is the group commit.
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
		data, err := fsm.Encode(p.cmd, r.Format())
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

// runCompleter answers proposals in log order, as raft answers them.
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
		default: // leadership lost, shutdown, or aborted by a restore
			p.finish(structs.Result{}, errUnknownOutcome)
		}
	}
}
