package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// sender is another server, as far as raft's messages go.
type sender struct {
	t     *testing.T
	trans *raft.NetworkTransport
	to    raft.ServerAddress
}

// newSender returns a replica on disk that knows no cluster, and a server that sends messages to it.
func newSender(t *testing.T, exit func(string)) (*Replica, *sender) {
	t.Helper()
	net := memnet.New()
	conns := func(name string) (*rpc.Server, raft.ServerAddress) {
		h := net.Host(name)
		l, err := h.Listen(4647)
		if err != nil {
			t.Fatal(err)
		}
		s := rpc.NewServer(rpc.ServerConfig{Registry: rpc.NewRegistry(nil, nil), Dial: h.Dial, Advertise: l.Addr()})
		go s.Serve(l)
		t.Cleanup(func() { s.Close(); l.Close() })
		return s, raft.ServerAddress(l.Addr().String())
	}
	here, addr := conns("one")
	r := New(Config{ID: "one", DataDir: t.TempDir(), Logger: hclog.NewNullLogger(), Now: time.Now, Exit: exit})
	if err := r.Start(here.RaftConns()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Stop(); r.Close() })
	there, _ := conns("two")
	trans := raft.NewNetworkTransport(there.RaftConns(), 3, 10*time.Second, io.Discard)
	t.Cleanup(func() { trans.Close() })
	return r, &sender{t, trans, addr}
}

func header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("two"), Addr: []byte("two")}
}

// install sends a snapshot.
func (s *sender) install(term, index uint64, size int, content io.Reader) (raft.InstallSnapshotResponse, error) {
	var resp raft.InstallSnapshotResponse
	req := &raft.InstallSnapshotRequest{RPCHeader: header(), SnapshotVersion: raft.SnapshotVersionMax, Term: term, LastLogIndex: index, LastLogTerm: term,
		Configuration: raft.EncodeConfiguration(raft.Configuration{}), ConfigurationIndex: 1, Size: int64(size)}
	err := s.trans.InstallSnapshot("one", s.to, req, &resp, content)
	return resp, err
}

// vote asks for a vote, and returns how long the answer took.
func (s *sender) vote(term uint64) (granted bool, took time.Duration) {
	s.t.Helper()
	var resp raft.RequestVoteResponse
	began := time.Now()
	err := s.trans.RequestVote("one", s.to, &raft.RequestVoteRequest{RPCHeader: header(), Term: term, LastLogIndex: 1000, LastLogTerm: term}, &resp)
	if took = time.Since(began); err != nil {
		s.t.Errorf("a vote in term %d: %v after %s", term, err, took)
	}
	return resp.Granted, took
}

// snapshotOf returns a snapshot of a state with one namespace.
func snapshotOf(t *testing.T, namespace string) []byte {
	t.Helper()
	f := fsm.New(fsm.Options{})
	for i, body := range []structs.CommandBody{
		&structs.ClusterInitCommand{ID: structs.ClusterID{1}, Format: feature.Newest, By: "test"},
		&structs.NamespaceUpsertCommand{Namespaces: []*structs.Namespace{{Name: namespace}}},
	} {
		l := logOf(t, uint64(i+3), body)
		if res, _, err := f.ApplyBatch([]fsm.Entry{{Index: structs.Index(l.Index), Data: l.Data}}); err != nil || res[0].Err != nil {
			t.Fatal(err, res)
		}
	}
	var b bytes.Buffer
	if err := fsm.WriteSnapshot(&b, f.Snapshot()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// halves gives a content in two halves, and calls a function between them.
type halves struct {
	rest  []byte
	half  int
	pause func() // nil once it has been called
}

func (s *halves) Read(b []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	if len(s.rest) <= s.half && s.pause != nil {
		s.pause()
		s.pause = nil
	}
	n := copy(b[:min(len(b), max(1, len(s.rest)-s.half))], s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// TestVotesWhileASnapshotIsReceived wants a server to which another one sends a snapshot to give votes meanwhile, and to
// have the state in the end. A leader of a later term does not wait for the snapshot of one that stopped in the middle.
func TestVotesWhileASnapshotIsReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := newSender(t, func(why string) { t.Error("ended: " + why) })
		first, second := snapshotOf(t, "first"), snapshotOf(t, "second")
		send := func(term, index uint64, content []byte, pause time.Duration) <-chan string {
			out := make(chan string, 1)
			go func() {
				resp, err := s.install(term, index, len(content), &halves{content, len(content) / 2, func() { time.Sleep(pause) }})
				out <- fmt.Sprint(resp.Success, " ", err)
			}()
			return out
		}
		sent := send(5, 100, first, 8*time.Second)
		for term := uint64(1); term <= 5; term++ {
			time.Sleep(time.Second)
			if granted, took := s.vote(term); !granted || took > 100*time.Millisecond {
				t.Errorf("granted %v after %s while a snapshot was received; want a vote within 100 ms", granted, took)
			}
		}
		if got := <-sent; got != "true <nil>" {
			t.Errorf("the snapshot was answered with %s", got)
		}
		if p := r.Published(); p.Snapshot.Namespace("first") == nil || r.raft.AppliedIndex() != 100 {
			t.Errorf("the state at %d is not that of the snapshot", r.raft.AppliedIndex())
		}

		frozen := send(5, 200, first, 10*time.Minute)
		time.Sleep(time.Second)
		began := time.Now()
		if got := <-send(6, 300, second, time.Second); got != "true <nil>" || time.Since(began) > 5*time.Second {
			t.Errorf("the snapshot of a later term was answered with %s after %s", got, time.Since(began))
		}
		if got := <-frozen; strings.HasPrefix(got, "true") {
			t.Errorf("the snapshot of the term before was accepted after it: %s", got)
		}
		if p := r.Published(); p.Snapshot.Namespace("second") == nil || p.Snapshot.Namespace("first") != nil {
			t.Error("the state is not that of the newer snapshot")
		}
		synctest.Wait()
		if left, _ := filepath.Glob(filepath.Join(r.stores.files.dir, "*"+tmpSuffix)); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// TestUnreadableSnapshotIsNotKept wants a snapshot that cannot be restored to be refused before it is one of the
// server's own, and one of a newer release to end the server with a sentence.
func TestUnreadableSnapshotIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var exits []string
		r, s := newSender(t, func(why string) { exits = append(exits, why) })
		good := snapshotOf(t, "good")
		damaged := bytes.Clone(good)
		damaged[len(damaged)-1]++
		if resp, err := s.install(5, 100, len(damaged), bytes.NewReader(damaged)); err == nil || resp.Success {
			t.Error("a damaged snapshot was accepted")
		}
		if list, err := r.stores.snaps.List(); err != nil || len(list) > 0 || len(exits) > 0 {
			t.Errorf("%d snapshots are kept, %v; ended with %q", len(list), err, exits)
		}
		at := bytes.Index(good, []byte("Format")) + len("Format") // as in TestNewerSnapshot
		newer := bytes.Clone(good)
		newer[at] = byte(feature.Newest) + 1
		if _, err := s.install(5, 100, len(newer), bytes.NewReader(newer)); err == nil || len(exits) != 1 || r.Quarantined() == "" {
			t.Errorf("a snapshot of a newer release: %v, ended with %q", err, exits)
		}
		left, _ := filepath.Glob(filepath.Join(r.stores.files.dir, "*"))
		if len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
}

// TestDecodedSnapshotIsAFile wants every reader of a snapshot that is about to be restored to get its content.
func TestDecodedSnapshotIsAFile(t *testing.T) {
	files, err := openSnapshots(t.TempDir(), hclog.NewNullLogger(), func(why string) { t.Error(why) })
	if err != nil {
		t.Fatal(err)
	}
	content := snapshotOf(t, "n")
	st, err := ReadState(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	_, trans := raft.NewInmemTransport("")
	sink, err := files.Create(raft.SnapshotVersionMax, 7, 1, raft.Configuration{}, 1, trans)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(sink, &restoring{bytes.NewReader(content), st})
	if err := errors.Join(err, sink.Close()); err != nil || n != int64(len(content)) {
		t.Fatal(n, err)
	}
	meta, rc, err := files.Open(sink.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	if d, ok := rc.(*decoded); !ok || d.state != st {
		t.Errorf("the snapshot comes as %T without its decoded state", rc)
	}
	if b, err := io.ReadAll(rc); err != nil || !bytes.Equal(b, content) || meta.Size != n || meta.Index != 7 {
		t.Errorf("read %d bytes, %v; meta %+v", len(b), err, meta)
	}
}
