package replica

import (
	"io"
	"time"

	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/structs"
)

// barrierTimeout bounds a Barrier.
const barrierTimeout = 10 * time.Second

// Configuration returns raft's members and the log index of that configuration.
func (r *Replica) Configuration() (servers []raft.Server, at structs.Index, err error) {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, 0, err
	}
	return f.Configuration().Servers, structs.Index(f.Index()), nil
}

// voters counts the members that vote; 0 when the configuration is not known.
func (r *Replica) voters() (n int) {
	servers, _, _ := r.Configuration()
	for _, x := range servers {
		if x.Suffrage == raft.Voter {
			n++
		}
	}
	return n
}

// RemoveServer removes a member and waits for it. Only the leader can.
func (r *Replica) RemoveServer(id raft.ServerID, timeout time.Duration) (structs.Index, error) {
	f := r.raft.RemoveServer(id, 0, timeout)
	if err := f.Error(); err != nil {
		return 0, err
	}
	return structs.Index(f.Index()), nil
}

// TransferLeadership hands leadership to the member that raft chooses, and waits for it.
func (r *Replica) TransferLeadership() error { return r.raft.LeadershipTransfer().Error() }

// TransferLeadershipTo hands leadership to a member, and waits for it.
func (r *Replica) TransferLeadershipTo(to raft.Server) error {
	return r.raft.LeadershipTransferToServer(to.ID, to.Address).Error()
}

// LeaderCh says when this server begins (true) and ceases (false) to lead. The channel keeps the newest value only.
func (r *Replica) LeaderCh() <-chan bool { return r.raft.LeaderCh() }

// Term is raft's current term.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// Barrier waits until everything that is in the log now has been applied. Only the leader can.
func (r *Replica) Barrier() error { return r.raft.Barrier(barrierTimeout).Error() }

// VerifyLeader asks the other servers whether this one still leads.
func (r *Replica) VerifyLeader() error { return r.raft.VerifyLeader().Error() }

// Restore replaces the state of the whole cluster by a snapshot. Only the leader can.
func (r *Replica) Restore(meta *raft.SnapshotMeta, state io.Reader, timeout time.Duration) error {
	return r.raft.Restore(meta, state, timeout)
}

// LastIndex is the index of the newest entry of the log, applied or not.
func (r *Replica) LastIndex() uint64 { return r.raft.LastIndex() }

// RaftStats are raft's own metrics, and the backend of its log.
func (r *Replica) RaftStats() map[string]string {
	out := r.raft.Stats()
	out["logstore_backend"] = r.LogBackend()
	return out
}

// NewAutopilot returns an autopilot that manages the members of this replica's cluster.
func (r *Replica) NewAutopilot(app autopilot.ApplicationIntegration, options ...autopilot.Option) *autopilot.Autopilot {
	return autopilot.New(r.raft, app, options...)
}
