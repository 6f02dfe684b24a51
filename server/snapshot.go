package server

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// A snapshot archive is a gzipped tar of meta.json (raft's metadata), state.bin (the state) and SHA256SUMS (of both, in
// the format of sha256sum).
const (
	archiveMeta  = "meta.json"
	archiveState = "state.bin"
	archiveSums  = "SHA256SUMS"

	archiveMetaMax   = 1 << 20
	archiveStateMax  = 64 << 30
	archiveFrame     = 256 << 10 // bytes of one frame on the wire
	restoreTimeout   = 10 * time.Minute
	restoreEpochsMax = 10_000
)

// WriteArchive writes a snapshot archive.
func WriteArchive(w io.Writer, meta *raft.SnapshotMeta, state io.Reader) error {
	gz := gzip.NewWriter(w)
	tw := tar.NewWriter(gz)
	mb, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return err
	}
	put := func(name string, size int64, r io.Reader) (string, error) {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
			return "", err
		}
		h := sha256.New()
		if _, err := io.CopyN(io.MultiWriter(tw, h), r, size); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return fmt.Sprintf("%s  %s\n", hex.EncodeToString(h.Sum(nil)), name), nil
	}
	m, err := put(archiveMeta, int64(len(mb)), bytes.NewReader(mb))
	if err != nil {
		return err
	}
	st, err := put(archiveState, meta.Size, state)
	if err != nil {
		return err
	}
	sums := m + st
	if _, err := put(archiveSums, int64(len(sums)), strings.NewReader(sums)); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return gz.Close()
}

// ReadArchive checks a snapshot archive and copies its state to out. Nothing of it may be used before it returned
// without an error: the sums come last.
func ReadArchive(r io.Reader, out io.Writer) (*raft.SnapshotMeta, error) {
	bad := func(format string, args ...any) (*raft.SnapshotMeta, error) {
		return nil, structs.Errorf(structs.CodeInvalid, "snapshot archive: "+format, args...)
	}
	gz, err := gzip.NewReader(r)
	if err != nil {
		return bad("not a gzip file: %v", err)
	}
	tr := tar.NewReader(gz)
	got := map[string]string{}
	var meta *raft.SnapshotMeta
	var sums []byte
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return bad("truncated or not a tar file: %v", err)
		}
		sum := sha256.New()
		switch h.Name {
		case archiveMeta:
			b, err := io.ReadAll(io.LimitReader(io.TeeReader(tr, sum), archiveMetaMax))
			if err != nil {
				return bad("%s: %v", archiveMeta, err)
			}
			meta = new(raft.SnapshotMeta)
			if err := json.Unmarshal(b, meta); err != nil {
				return bad("%s does not decode: %v", archiveMeta, err)
			}
		case archiveState:
			if h.Size > archiveStateMax {
				return bad("%s of %d bytes is over the limit", archiveState, h.Size)
			}
			if _, err := io.Copy(io.MultiWriter(out, sum), tr); err != nil {
				return bad("%s: %v", archiveState, err)
			}
		case archiveSums:
			if sums, err = io.ReadAll(io.LimitReader(tr, archiveMetaMax)); err != nil {
				return bad("%s: %v", archiveSums, err)
			}
			continue
		default:
			return bad("unexpected file %q", h.Name)
		}
		if _, twice := got[h.Name]; twice {
			return bad("%s occurs twice", h.Name)
		}
		got[h.Name] = hex.EncodeToString(sum.Sum(nil))
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(gz, 1<<20)); err != nil {
		return bad("%v", err)
	}
	if meta == nil || got[archiveState] == "" || sums == nil {
		return bad("%s, %s and %s are needed", archiveMeta, archiveState, archiveSums)
	}
	want := map[string]string{}
	sc := bufio.NewScanner(bytes.NewReader(sums))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) != 2 {
			return bad("%s has a line that is not a sum and a name", archiveSums)
		}
		want[f[1]] = f[0]
	}
	for _, name := range []string{archiveMeta, archiveState} {
		if want[name] != got[name] {
			return bad("the checksum of %s does not match; the file is damaged", name)
		}
	}
	return meta, nil
}

// streamWriter sends what is written as frames.
type streamWriter struct{ st *rpc.Stream }

func (w streamWriter) Write(b []byte) (int, error) {
	n := 0
	for len(b) > 0 {
		k := min(len(b), archiveFrame)
		if err := w.st.Send(b[:k]); err != nil {
			return n, err
		}
		n, b = n+k, b[k:]
	}
	return n, nil
}

// streamReader reads frames as bytes.
type streamReader struct {
	st   *rpc.Stream
	left []byte
}

func (r *streamReader) Read(b []byte) (int, error) {
	for len(r.left) == 0 {
		f, err := r.st.Recv()
		if err != nil {
			return 0, err
		}
		r.left = f
	}
	n := copy(b, r.left)
	r.left = r.left[n:]
	return n, nil
}

// snapshotSave streams an archive of the newest state.
func (s *Server) snapshotSave(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest, st *rpc.Stream) error {
	meta, rc, err := s.takeSnapshot()
	if err != nil {
		return structs.Errorf(structs.CodeInternal, "taking a snapshot failed: %v", err)
	}
	defer rc.Close()
	w := bufio.NewWriterSize(streamWriter{st}, archiveFrame)
	if err := WriteArchive(w, meta, rc); err != nil {
		return err
	}
	return w.Flush()
}

func (s *Server) takeSnapshot() (*raft.SnapshotMeta, io.ReadCloser, error) {
	f := s.raft.Snapshot()
	err := f.Error()
	if err == nil {
		return f.Open()
	}
	if !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil, nil, err
	}
	list, lerr := s.stores.snaps.List()
	if lerr != nil {
		return nil, nil, lerr
	}
	if len(list) == 0 {
		return nil, nil, err
	}
	return s.stores.snaps.Open(list[0].ID)
}

// snapshotRestore replaces the state of the cluster by that of an archive. The archive is spooled and checked whole
// before anything is touched; then the history is marked as another one (D14), so that agents obey nothing older.
func (s *Server) snapshotRestore(ctx context.Context, c *rpc.Call, req *methods.EmptyRequest, st *rpc.Stream) error {
	dir := s.cfg.DataDir
	if s.cfg.InMemory {
		dir = ""
	}
	tmp, err := os.CreateTemp(dir, "restore-*.snap")
	if err != nil {
		return fmt.Errorf("spool snapshot: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	buf := bufio.NewWriterSize(tmp, archiveFrame)
	meta, err := ReadArchive(&streamReader{st: st}, buf)
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
	// A state that this version cannot read is refused before raft takes it.
	if _, err := newFSM().Restore(tmp); err != nil {
		return structs.Errorf(structs.CodeInvalid, "the state in the archive cannot be read by this version: %v", err)
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	meta.Size = size
	var epoch uint64
	if m := s.Published().Snapshot.ClusterMeta(); m != nil {
		epoch = m.RestoreEpoch
	}
	s.log.Warn("restoring a snapshot", "index", meta.Index, "term", meta.Term, "bytes", size, "by", who(ctx).by.Name)
	if err := s.raft.Restore(meta, tmp, restoreTimeout); err != nil {
		return structs.Errorf(structs.CodeInternal, "raft refused the snapshot: %v", err)
	}
	actx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if err := s.found(actx); err != nil {
		return err
	}
	// The epoch in the archive is an older one: it is raised until it is beyond every history that agents have seen.
	for range restoreEpochsMax {
		if _, err := s.ApplyLane(actx, LanePriority, structs.Command{By: who(ctx).by, Body: &structs.RestoredCommand{}}); err != nil {
			return err
		}
		if m := s.Published().Snapshot.ClusterMeta(); m != nil && m.RestoreEpoch > epoch {
			break
		}
	}
	return st.SendMsg(&methods.WriteResponse{Index: s.Published().Index})
}
