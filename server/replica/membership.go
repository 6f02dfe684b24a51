package replica

import (
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/structs"
)

// barrierTimeout bounds a Barrier.
const barrierTimeout = 10 * time.Second

// Configuration returns raft's members and the log index of their configuration.
func (r *Replica) Configuration() (servers []raft.Server, at structs.Index, err error) {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, 0, err
	}
	return f.Configuration().Servers, structs.Index(f.Index()), nil
}

// voters returns the number of voting members, or 0 if the configuration is not known.
func (r *Replica) voters() (n int) {
	servers, _, _ := r.Configuration()
	for _, x := range servers {
		if x.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// RemoveServer removes a member and waits until that is committed. Only the leader can.
func (r *Replica) RemoveServer(id raft.ServerID, timeout time.Duration) (structs.Index, error) {
	f := r.raft.RemoveServer(id, 0, timeout)
	if err := f.Error(); err != nil {
		return 0, err
	}
	return structs.Index(f.Index()), nil
}

// TransferLeadership hands leadership to a member that raft chooses, and waits until it is done.
func (r *Replica) TransferLeadership() error { return r.raft.LeadershipTransfer().Error() }

// TransferLeadershipTo hands leadership to a member, and waits until it is done.
func (r *Replica) TransferLeadershipTo(to raft.Server) error {
	return r.raft.LeadershipTransferToServer(to.ID, to.Address).Error()
}

// LeaderCh receives true when this server starts to lead and false when it stops. The channel keeps only the newest
// value.
func (r *Replica) LeaderCh() <-chan bool { return r.raft.LeaderCh() }

// LeaderChanges receives a value after another server, or none, has become the leader that raft knows. Several changes
// may give one value. It is called once, after Start.
func (r *Replica) LeaderChanges() <-chan raft.Observation {
	ch := make(chan raft.Observation, 1)
	r.raft.RegisterObserver(raft.NewObserver(ch, false, func(o *raft.Observation) bool {
		_, is := o.Data.(raft.LeaderObservation)
		return is
	}))
	return ch
}

// Term returns raft's current term.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// Barrier waits until everything in the log at the time of the call has been applied. Only the leader can.
func (r *Replica) Barrier() error { return r.raft.Barrier(barrierTimeout).Error() }

// VerifyLeader asks the other servers to confirm that this one still leads.
func (r *Replica) VerifyLeader() error { return r.raft.VerifyLeader().Error() }

// Restore replaces the state of the whole cluster with a snapshot, which is given as its content and as its decoded
// state. Only the leader can.
func (r *Replica) Restore(meta *raft.SnapshotMeta, content io.Reader, state *State, timeout time.Duration) error {
	return r.raft.Restore(meta, &restoring{content, state}, timeout)
}

// LastIndex returns the index of the newest log entry, applied or not.
func (r *Replica) LastIndex() uint64 { return r.raft.LastIndex() }

// lagMax is how many entries a server may have to apply, or to receive, before it is not healthy: as many as a burst of
// writes that is taken on makes.
const lagMax = applyGapMax

// Problem returns in a sentence what keeps this server from doing its part, or "". leaderLast is the newest entry of the
// leader's log, or 0 if it is unknown.
func (r *Replica) Problem(leaderLast uint64) string {
	if why := r.Quarantined(); why != "" {
		return "this server distrusts its own state: " + why
	}
	if why := r.disk.Problem(); why != "" {
		return "the disk of the raft log takes no writes: " + why
	}
	last, applied := r.raft.LastIndex(), r.raft.AppliedIndex()
	if leaderLast > last+lagMax {
		return fmt.Sprintf("its log is %d entries behind the leader's", leaderLast-last)
	}
	if last > applied+lagMax {
		return fmt.Sprintf("%d entries of its log are not applied yet", last-applied)
	}
	return ""
}

// RaftStats returns raft's own metrics and the backend of its log.
func (r *Replica) RaftStats() map[string]string {
	out := r.raft.Stats()
	out["logstore_backend"] = r.LogBackend()
	return out
}

// NewAutopilot returns an autopilot that manages the members of this replica's cluster.
func (r *Replica) NewAutopilot(app autopilot.ApplicationIntegration, options ...autopilot.Option) *autopilot.Autopilot {
	return autopilot.New(r.raft, app, options...)
}
