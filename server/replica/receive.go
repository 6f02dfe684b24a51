package replica

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/fsync"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/structs"
)

// A snapshot of 500,000 allocations takes seconds to receive, to write and to decode. Raft does all of it in the loop
// that also gives votes. So the work is done on another goroutine before raft is given the snapshot, and raft finds it done:
//
//	message -> receive: file of a snapshot, synced, and State  -> raft: sink.ReadFrom takes the file over
//	                                                           -> raft: machine.Restore publishes the State
//
// Nothing that raft relies on changes. It still decides whether it accepts the message (one of an earlier term is
// ignored, and its file removed), and when Restore returns the state has been restored. A snapshot that is cut short or
// damaged is refused before it becomes one of this server's.

// State is the state of a snapshot, decoded and ready to be published.
type State struct {
	store   *state.Store
	view    *model.View
	running int64 // allocations that agents report as running
}

// ReadState decodes the state of a snapshot. The error is a *feature.UnreadableError if a newer release wrote it.
func ReadState(r io.Reader) (*State, error) {
	store, err := fsm.Read(r, fsm.Options{})
	if err != nil {
		return nil, err
	}
	snap := store.Snapshot()
	s := &State{store: store, view: viewOf(snap)}
	for a := range snap.Allocs() {
		if isRunning(a) {
			s.running++
		}
	}
	return s, nil
}

// Format returns the format of the state.
func (s *State) Format() structs.Format { return s.store.Snapshot().Format() }

// received is a snapshot that was received before raft gets the message. It stands for the content that raft reads: Read
// returns it as its error, and sink.ReadFrom recognises it.
type received struct {
	sink  raft.SnapshotSink // complete, synced, not closed; nil once raft's sink has taken it over
	state *State
	size  int64
}

// Read implements io.Reader.
func (r *received) Read([]byte) (int, error) { return 0, r }

// Error implements error.
func (r *received) Error() string { return "this snapshot was received before" }

// restoring is the content of a snapshot that a user restores, with its decoded state.
type restoring struct {
	io.Reader
	state *State
}

// decoded is the content of a snapshot in the store, with its decoded state. The file is opened when it is read.
type decoded struct {
	state *State
	open  func() (io.ReadCloser, error)
	file  io.ReadCloser // or nil
}

// Read implements io.Reader.
func (d *decoded) Read(b []byte) (n int, err error) {
	if d.file == nil {
		if d.file, err = d.open(); err != nil {
			return 0, err
		}
	}
	return d.file.Read(b)
}

// Close implements io.Closer.
func (d *decoded) Close() error {
	if d.file == nil {
		return nil
	}
	return d.file.Close()
}

// decodedIn returns the decoded state that comes with the content that raft gives to Restore, or nil.
func decodedIn(r io.ReadCloser) *State {
	if w, ok := r.(raft.ReadCloserWrapper); ok {
		if d, ok := w.WrappedReadCloser().(*decoded); ok {
			return d.state
		}
	}
	return nil
}

// receive answers another server that sends a snapshot. It reads the content to its end, and gives the message to raft
// by deliver if the content is one that this build can restore.
func (r *Replica) receive(rpc raft.RPC, req *raft.InstallSnapshotRequest, deliver func(raft.RPC) (raft.RPCResponse, bool)) {
	began := time.Now()
	got, err := r.stores.received(rpc.Reader, req, r.transport)
	if err != nil {
		var other *feature.UnreadableError
		if errors.As(err, &other) { // it would be sent again for ever
			r.end(err)
		}
		r.log.Error("a snapshot from the leader was refused", "index", req.LastLogIndex, "error", err)
		_, _ = io.Copy(io.Discard, rpc.Reader) // the sender reads no answer before it has sent everything
		rpc.Respond(&raft.InstallSnapshotResponse{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: req.Term}, err)
		return
	}
	r.log.Info("received a snapshot", "index", req.LastLogIndex, "bytes", got.size, "took", time.Since(began))
	answer := rpc
	rpc.Reader = got
	resp, answered := deliver(rpc)
	if !answered {
		return // raft has been shut down
	}
	if got.sink != nil {
		got.sink.Cancel() // raft has ignored the message
	}
	answer.Respond(resp.Response, resp.Error)
}

// received writes a snapshot to the store and decodes it.
func (st *stores) received(content io.Reader, req *raft.InstallSnapshotRequest, trans raft.Transport) (*received, error) {
	if req.SnapshotVersion < raft.SnapshotVersionMin || req.SnapshotVersion > raft.SnapshotVersionMax || req.SnapshotVersion == 0 {
		return nil, fmt.Errorf("a snapshot of version %d is not supported", req.SnapshotVersion)
	}
	file, err := st.files.create(raft.SnapshotVersionMax, req.LastLogIndex, req.LastLogTerm,
		raft.DecodeConfiguration(req.Configuration), req.ConfigurationIndex, trans)
	if err != nil {
		return nil, fmt.Errorf("create a snapshot: %w", err)
	}
	count := &counter{}
	content = io.TeeReader(content, io.MultiWriter(file, count))
	decodedState, err := ReadState(content)
	if err == nil {
		_, err = io.Copy(io.Discard, content)
	}
	if err == nil && count.n != req.Size {
		err = fmt.Errorf("%d of %d bytes were received", count.n, req.Size)
	}
	if err == nil {
		err = st.files.sync(file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Cancel())
	}
	return &received{sink: file, state: decodedState, size: count.n}, nil
}

// counter counts the bytes that are written to it.
type counter struct{ n int64 }

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) { c.n += int64(len(b)); return len(b), nil }

// sync syncs what has been written of a snapshot, so that little is left to sync when it is closed.
func (s *snapshots) sync(sink raft.SnapshotSink) error {
	f, err := os.Open(filepath.Join(s.dir, sink.ID()+tmpSuffix, "state.bin"))
	if err != nil {
		return err
	}
	err = errors.Join(f.Sync(), f.Close())
	s.checkSync(err)
	return err
}

// checkSync ends the process if a snapshot could not be synced. Nothing was lost yet, but the log is on the same disk.
func (s *snapshots) checkSync(err error) {
	if fsync.Failed(err) {
		s.exit(fmt.Sprintf("a snapshot could not be synced to disk: %v", err))
	}
}

// sink is a snapshot that raft writes. Its directory is made by the first write, or taken over from what was received.
type sink struct {
	store  *snapshots
	create func() (raft.SnapshotSink, error)
	file   raft.SnapshotSink // nil before the first write
	state  *State            // of the content, or nil if it was not decoded
}

// Write implements io.Writer.
func (s *sink) Write(b []byte) (n int, err error) {
	if s.file == nil {
		if s.file, err = s.create(); err != nil {
			return 0, err
		}
	}
	return s.file.Write(b)
}

// ReadFrom implements io.ReaderFrom, which io.Copy prefers: raft copies what was received or is restored by it.
func (s *sink) ReadFrom(r io.Reader) (int64, error) {
	if x, ok := r.(*restoring); ok {
		r, s.state = x.Reader, x.state
	}
	n, err := io.Copy(struct{ io.Writer }{s}, r)
	if got, ok := err.(*received); ok && n == 0 {
		s.file, s.state, got.sink = got.sink, got.state, nil
		return got.size, nil
	}
	return n, err
}

// ID implements raft.SnapshotSink.
func (s *sink) ID() string {
	if s.file == nil {
		return "not begun"
	}
	return s.file.ID()
}

// Cancel implements raft.SnapshotSink.
func (s *sink) Cancel() error {
	if s.file == nil {
		return nil
	}
	return s.file.Cancel()
}

// Close implements raft.SnapshotSink.
func (s *sink) Close() error {
	if _, err := s.Write(nil); err != nil {
		return err
	}
	err := s.file.Close()
	s.store.checkSync(err)
	if err == nil && s.state != nil {
		s.store.decoded.Store(&decodedSnapshot{s.file.ID(), s.state})
	}
	return err
}
