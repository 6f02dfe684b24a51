package replica

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/structs"
)

// verifyTimeout bounds the confirmation of a linearizable read.
const verifyTimeout = time.Second

// verifier confirms leadership for reads. A read may only be confirmed by a round of heartbeats that began after it, so
// readers join the next round. While one round runs, the next one collects readers.
type verifier struct {
	raft *raft.Raft

	mu      sync.Mutex
	next    *verifyRound
	running bool
	closed  bool
	idle    chan struct{} // closed when the running round ends and closed is set
}

type verifyRound struct {
	done chan struct{}
	err  error
}

func newVerifier(r *raft.Raft) *verifier { return &verifier{raft: r, idle: make(chan struct{})} }

func (v *verifier) verify(ctx context.Context) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return structs.Errorf(structs.CodeNoLeader, "this server is shutting down")
	}
	if v.next == nil {
		v.next = &verifyRound{done: make(chan struct{})}
	}
	r := v.next
	if !v.running {
		v.running = true
		go v.run()
	}
	v.mu.Unlock()
	t := time.NewTimer(verifyTimeout)
	defer t.Stop()
	select {
	case <-r.done:
		return r.err
	case <-t.C:
		return structs.Errorf(structs.CodeNoLeader, "leadership was not confirmed within %s", verifyTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run runs rounds until no reader waits.
func (v *verifier) run() {
	for {
		v.mu.Lock()
		r := v.next
		v.next = nil
		if r == nil {
			v.running = false
			if v.closed {
				close(v.idle)
			}
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		r.err = v.raft.VerifyLeader().Error()
		close(r.done)
	}
}

// settle refuses further reads and waits for the running round: raft answers none of those that it has when it is shut
// down. A leader that is cut off steps down first; one whose disk hangs is not waited for.
func (v *verifier) settle() {
	v.mu.Lock()
	v.closed = true
	running := v.running
	v.mu.Unlock()
	if !running {
		return
	}
	t := time.NewTimer(2 * verifyTimeout)
	defer t.Stop()
	select {
	case <-v.idle:
	case <-t.C:
	}
}

// VerifyRead confirms that this server still led after the call began, so that what was read before the call is
// current.
func (r *Replica) VerifyRead(ctx context.Context) error { return r.verifier.verify(ctx) }

// LastContact returns how long ago this server heard from a leader; ever is false if it never did. For the leader
// itself it is 0.
func (r *Replica) LastContact() (ago time.Duration, ever bool) {
	if r.IsRaftLeader() {
		return 0, true
	}
	t := r.raft.LastContact()
	return time.Since(t), !t.IsZero()
}
