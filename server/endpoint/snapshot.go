package endpoint

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/archive"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Limits of saving and restoring snapshots.
const (
	archiveFrame     = 256 << 10 // bytes that are gathered for one write
	restoreTimeout   = 10 * time.Minute
	restoreEpochsMax = 10_000
)

// snapshotSave streams an archive of the newest state.
func (s *Set) snapshotSave(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest, st *rpc.Stream) error {
	meta, rc, err := s.env.Replica.TakeSnapshot()
	if err != nil {
		return structs.Errorf(structs.CodeInternal, "taking a snapshot failed: %v", err)
	}
	defer rc.Close()
	w := bufio.NewWriterSize(rpc.Writer{Stream: st}, archiveFrame)
	if err := archive.Write(w, meta, rc); err != nil {
		return err
	}
	return w.Flush()
}

// snapshotRestore replaces the state of the cluster with that of an archive. It spools and checks the whole archive
// before it changes anything. Then it marks the history as a new one (D14), so that agents obey nothing older.
func (s *Set) snapshotRestore(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest, st *rpc.Stream) error {
	dir := s.env.DataDir
	tmp, err := os.CreateTemp(dir, "restore-*.snap")
	if err != nil {
		return fmt.Errorf("spool snapshot: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	buf := bufio.NewWriterSize(tmp, archiveFrame)
	meta, err := archive.Read(&rpc.Reader{Stream: st}, buf)
	if err != nil {
		return err
	}
	if err := buf.Flush(); err != nil {
		return fmt.Errorf("spool snapshot: %w", err)
	}
	size, err := tmp.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	// A state that this version cannot read must be refused before raft accepts it.
	state, err := replica.ReadState(tmp)
	if err != nil {
		return structs.Errorf(structs.CodeInvalid, "the state in the archive cannot be read: %v", err)
	}
	if now, format := s.env.Replica.Format(), state.Format(); format > now {
		return structs.Errorf(structs.CodeConflict, "the state in the archive has format %d and the cluster is at format %d: run `muster operator upgrade finish` first", format, now)
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	meta.Size = size
	var epoch uint64
	if m := s.published().Snapshot.ClusterMeta(); m != nil {
		epoch = m.RestoreEpoch
	}
	s.env.Log.Warn("restoring a snapshot", "index", meta.Index, "term", meta.Term, "bytes", size, "by", auth.Who(ctx).By.Name)
	if err := s.env.Replica.Restore(meta, tmp, state, restoreTimeout); err != nil {
		return structs.Errorf(structs.CodeInternal, "raft refused the snapshot: %v", err)
	}
	actx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if err := s.env.Members.InitCluster(actx); err != nil {
		return err
	}
	// The restored epoch is an older one. Raise it beyond every history that agents have seen.
	for range restoreEpochsMax {
		body := &structs.RestoredCommand{}
		if s.published().Snapshot.Has(feature.RestoreTimes) {
			body.Epoch = uint64(max(0, s.env.Now().UnixMilli()))
		}
		if _, err := s.env.Apply(actx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: body}); err != nil {
			return err
		}
		if m := s.published().Snapshot.ClusterMeta(); m != nil && m.RestoreEpoch > epoch {
			break
		}
	}
	return st.SendMsg(&methods.WriteResponse{Index: s.published().Index})
}
