package replica

import (
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// recoverFSM lets raft.RecoverCluster rebuild a state that is not published.
type recoverFSM struct{ fsm *fsm.FSM }

func (f recoverFSM) Apply(l *raft.Log) any {
	if l.Type != raft.LogCommand {
		return nil
	}
	results, _, err := f.fsm.ApplyBatch([]fsm.Entry{{Index: structs.Index(l.Index), Data: l.Data}})
	if err != nil {
		panic(err.Error()) // raft.RecoverCluster takes no error, and must not go on without the entry
	}
	return results[0]
}

func (f recoverFSM) Snapshot() (raft.FSMSnapshot, error) { return recovered{f.fsm.Snapshot()}, nil }

func (f recoverFSM) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	_, err := f.fsm.Restore(rc)
	return err
}

// recovered is a state that was never published.
type recovered struct{ snap *state.Snapshot }

func (p recovered) Persist(sink raft.SnapshotSink) error { return persist(sink, p.snap) }

func (recovered) Release() {}

func persist(sink raft.SnapshotSink, snap *state.Snapshot) error {
	if err := fsm.WriteSnapshot(sink, snap); err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot %s: %w", sink.ID(), err)
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("close snapshot %s: %w", sink.ID(), err)
	}
	return nil
}
