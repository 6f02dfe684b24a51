package server

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	autopilot "github.com/hashicorp/raft-autopilot"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/smalldisk"
	"github.com/muster-sched/muster/server/archive"
	"github.com/muster-sched/muster/server/member"
	"github.com/muster-sched/muster/server/raftlog"
	"github.com/muster-sched/muster/structs"
)

// diskServer runs a server with a data directory. It returns the server and the function that ends it.
func diskServer(t *testing.T, dir string, edit func(*Config)) (*Server, func()) {
	t.Helper()
	h := memnet.New().Host("one")
	l, err := h.Listen(4647)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "one", DataDir: dir, Dev: true, Listeners: []net.Listener{l}, Dial: h.Dial, Gossip: member.GossipConfig{Disabled: true}, Logger: testLogger(t),
		Testing: TestingKnobs{NoSigningKey: true}}
	if edit != nil {
		edit(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	stop := func() { s.Close(); <-done }
	t.Cleanup(stopOnce(&stop))
	waitFor(t, 10*time.Second, "leadership", func() bool { return s.IsLeader() && s.Published().Snapshot.ClusterMeta() != nil })
	return s, stop
}

func stopOnce(stop *func()) func() {
	f := *stop
	var ended atomic.Bool
	once := func() {
		if ended.CompareAndSwap(false, true) {
			f()
		}
	}
	*stop = once
	return once
}

// eachBackend runs a test for each backend of the raft log; edit selects it.
func eachBackend(t *testing.T, f func(t *testing.T, edit func(*Config))) {
	for _, b := range []raftlog.Backend{raftlog.WAL, raftlog.BoltDB} {
		t.Run(string(b), func(t *testing.T) { f(t, func(c *Config) { c.Raft.Log.Backend = b }) })
	}
}

// TestRaftLogSettings: each setting of the log changes the behaviour of a server.
func TestRaftLogSettings(t *testing.T) {
	dir := t.TempDir()
	s, stop := diskServer(t, dir, nil)
	if got := s.RaftStats()["logstore_backend"]; got != string(raftlog.Default) {
		t.Errorf("the default backend is %q, want %q", got, raftlog.Default)
	}
	if !s.replica.LogCached() {
		t.Error("the log has no cache")
	}
	stop()
	dir = t.TempDir()
	s, stop = diskServer(t, dir, func(c *Config) {
		c.Raft.Log, c.Raft.NoLogCache = raftlog.Options{Backend: raftlog.WAL, SegmentBytes: 1 << 20}, true
	})
	if s.replica.LogCached() {
		t.Error("the log has a cache that was disabled")
	}
	stop()
	files, err := filepath.Glob(filepath.Join(dir, "raft", "wal", "*.wal"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	if st, err := os.Stat(files[0]); err != nil || st.Size() != 1<<20 {
		t.Errorf("a file of the log has %d bytes, %v; want 1 MiB", st.Size(), err)
	}
	h := memnet.New().Host("two")
	l, _ := h.Listen(4647)
	cfg := Config{Name: "two", DataDir: dir, Listeners: []net.Listener{l}, Gossip: member.GossipConfig{Disabled: true}}
	cfg.Raft.Log.Backend = raftlog.BoltDB
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "muster operator raft migrate-backend -to boltdb") {
		t.Errorf("a server with the other backend: %v, want a refusal that names the command", err)
	}
}

func TestRestartFromDisk(t *testing.T) { eachBackend(t, testRestartFromDisk) }

func testRestartFromDisk(t *testing.T, edit func(*Config)) {
	dir := t.TempDir()
	s, stop := diskServer(t, dir, edit)
	id := s.ID()
	for _, j := range []string{"a", "b", "c"} {
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(j, 1)})
	}
	takeSnapshot(t, s)
	call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("d", 1)})
	cluster := s.Published().Snapshot.ClusterMeta().ID
	stop()
	s, stop = diskServer(t, dir, edit)
	defer stop()
	if s.ID() != id || s.Published().Snapshot.ClusterMeta().ID != cluster {
		t.Errorf("the server came back as another one: got %v, %v; want %v, %v", s.ID(), s.Published().Snapshot.ClusterMeta().ID, id, cluster)
	}
	for _, j := range []string{"a", "b", "c", "d"} {
		if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: j}) == nil {
			t.Errorf("job %s is lost", j)
		}
	}
	// A second process on the same directory gets an error, instead of hanging or damaging it.
	h := memnet.New().Host("two")
	l, _ := h.Listen(4647)
	if _, err := New(Config{Name: "two", DataDir: dir, Listeners: []net.Listener{l}, Gossip: member.GossipConfig{Disabled: true}}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second server on the directory: %v", err)
	}
}

// takeSnapshot writes a snapshot of the newest state.
func takeSnapshot(t *testing.T, s *Server) {
	t.Helper()
	_, state, err := s.replica.TakeSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	state.Close()
}

// A damaged snapshot does no harm while the older one and the log lead to the newest state. If they do not, the server
// says what is missing and what to do, instead of ending at the first entry that it does not find.
func TestDamagedSnapshot(t *testing.T) { eachBackend(t, testDamagedSnapshot) }

func testDamagedSnapshot(t *testing.T, edit func(*Config)) {
	for _, c := range []struct {
		name     string
		trailing uint64
		damage   int // of the two snapshots, newest first
		want     string
	}{
		{"the newest and the log reaches the older one", 10_000, 1, ""},
		{"the newest and the log does not reach the older one", 1, 1, "are neither in an older one nor in the log"},
		{"both", 1, 2, "no snapshot in"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			with := func(cfg *Config) { edit(cfg); cfg.Raft.TrailingLogs = c.trailing }
			s, stop := diskServer(t, dir, with)
			for i := range 6 {
				call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob(fmt.Sprint("job-", i), 1)})
				if i%3 == 2 {
					takeSnapshot(t, s)
				}
			}
			stop()
			at := filepath.Join(dir, "raft", "snapshots")
			if st, err := os.Stat(at); err != nil || st.Mode().Perm() != 0o700 {
				t.Errorf("%v has mode %v, want 0700", at, st.Mode())
			}
			files, err := filepath.Glob(filepath.Join(at, "*", "state.bin"))
			if err != nil || len(files) != 2 {
				t.Fatalf("snapshots %q, %v", files, err)
			}
			slices.SortFunc(files, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(b, a)) }) // newest first: index 15 before 9
			for _, f := range files[:c.damage] {
				b, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				b[len(b)/2] ^= 4
				if err := os.WriteFile(f, b, 0o600); err != nil {
					t.Fatal(err)
				}
				if st, err := os.Stat(filepath.Dir(f)); err != nil || st.Mode().Perm() != 0o700 {
					t.Errorf("%s has mode %v, want 0700", filepath.Dir(f), st.Mode())
				}
			}
			if c.want != "" {
				cfg := Config{Name: "one", DataDir: dir, Dev: true, Gossip: member.GossipConfig{Disabled: true}, Logger: testLogger(t)}
				with(&cfg)
				l, lerr := memnet.New().Host("one").Listen(4647)
				if lerr != nil {
					t.Fatal(lerr)
				}
				cfg.Listeners = []net.Listener{l}
				_, err := New(cfg)
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), raftlog.Advice) {
					t.Errorf("the server started: %v", err)
				}
				return
			}
			s, stop = diskServer(t, dir, with)
			defer stop()
			for i := range 6 {
				if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: fmt.Sprint("job-", i)}) == nil {
					t.Errorf("job-%d is lost", i)
				}
			}
		})
	}
}

func TestPeersRecovery(t *testing.T) { eachBackend(t, testPeersRecovery) }

func testPeersRecovery(t *testing.T, edit func(*Config)) {
	dir := t.TempDir()
	s, stop := diskServer(t, dir, edit)
	call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("a", 1)})
	// Two dead servers make a majority unreachable.
	if err := s.members.Autopilot.AddServer(&autopilot.Server{ID: "dead", Address: "dead:1"}); err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	stop()
	peers := `[{"id": "` + id + `", "address": "one:4647"}]`
	if err := os.WriteFile(filepath.Join(dir, "raft", "peers.json"), []byte(peers), 0o600); err != nil {
		t.Fatal(err)
	}
	s, stop = diskServer(t, dir, edit)
	defer stop()
	servers, err := s.members.RaftServers()
	if err != nil || len(servers) != 1 {
		t.Fatalf("servers after recovery: %v, %v", servers, err)
	}
	if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "a"}) == nil {
		t.Error("the job is lost")
	}
	if _, err := os.Stat(filepath.Join(dir, "raft", "peers.json.applied")); err != nil {
		t.Errorf("peers.json was not kept aside: %v", err)
	}
}

// A server whose disk is full refuses writes and keeps answering. Once there is room it accepts them again, and
// everything that it acknowledged is there.
func TestServerOutlivesAFullDisk(t *testing.T) { eachBackend(t, testServerOutlivesAFullDisk) }

func testServerOutlivesAFullDisk(t *testing.T, edit func(*Config)) {
	dir, fill, free := smalldisk.Mount(t, 48<<20)
	exits := make(chan string, 10)
	s, stop := diskServer(t, dir, func(c *Config) { edit(c); c.Exit = func(why string) { exits <- why } })
	defer stop()
	var known []string
	register := func(id string) error {
		j := apiJob(id, 1)
		j.Meta = map[string]string{}
		for i := range 6 {
			j.Meta[fmt.Sprint("ballast-", i)] = strings.Repeat("x", 16<<10)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := rpc.Invoke(ctx, s.Caller(rpc.Peer{}), methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j})
		if err == nil {
			known = append(known, id)
		}
		return err
	}
	if err := register("before"); err != nil {
		t.Fatal(err)
	}
	fill()
	var err error
	for i := 0; err == nil; i++ {
		if err = register(fmt.Sprint("job-", i)); i > 1000 {
			t.Fatal("the disk does not fill up")
		}
	}
	t.Logf("%d jobs, then: %v", len(known), err)
	if why := s.replica.Problem(0); why != "the disk of the raft log takes no writes: no space left on device" {
		t.Errorf("the server says of its full disk: %q", why)
	}
	if s.Problem(t.Context()) == "" {
		t.Error("a server with a full disk is healthy")
	}
	free()
	waitFor(t, 30*time.Second, "a write after there was room", func() bool { return register("after") == nil })
	waitFor(t, 10*time.Second, "health", func() bool { return s.Problem(t.Context()) == "" })
	stop()
	s, stop = diskServer(t, dir, edit)
	defer stop()
	for _, id := range known {
		if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: id}) == nil {
			t.Errorf("job %s was acknowledged and is lost", id)
		}
	}
	select {
	case why := <-exits:
		t.Errorf("the process would have ended: %s", why)
	default:
	}
}

func saveArchive(t *testing.T, s *Server) []byte {
	t.Helper()
	st, err := rpc.OpenStream(t.Context(), s.Caller(rpc.Peer{}), methods.SnapshotSave, rpc.Header{}, &methods.EmptyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(&rpc.Reader{Stream: st})
	if err != nil {
		t.Fatalf("save: %v", err)
	}
	return b
}

func restoreArchive(t *testing.T, s *Server, b []byte) error {
	t.Helper()
	st, err := rpc.OpenStream(t.Context(), s.Caller(rpc.Peer{}), methods.SnapshotRestore, rpc.Header{}, &methods.EmptyRequest{})
	if err != nil {
		return err
	}
	defer st.Close(nil)
	if _, err := (rpc.Writer{Stream: st}).Write(b); err != nil && err != io.EOF {
		return err
	}
	st.CloseWrite()
	var resp methods.WriteResponse
	return st.RecvMsg(&resp)
}

func TestSnapshotSaveAndRestore(t *testing.T) { eachBackend(t, testSnapshotSaveAndRestore) }

func testSnapshotSaveAndRestore(t *testing.T, edit func(*Config)) {
	s, stop := diskServer(t, t.TempDir(), edit)
	defer stop()
	call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("kept", 1)})
	saved := saveArchive(t, s)
	var state bytes.Buffer
	if meta, err := archive.Read(bytes.NewReader(saved), &state); err != nil || meta.Index == 0 || state.Len() == 0 {
		t.Fatalf("archive: %+v, %v", meta, err)
	}
	call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("later", 1)})
	var epoch uint64
	for round := 1; round <= 2; round++ {
		if err := restoreArchive(t, s, saved); err != nil {
			t.Fatalf("restore %d: %v", round, err)
		}
		snap := s.Published().Snapshot
		if snap.JobByKey(structs.JobKey{Namespace: "default", ID: "kept"}) == nil || snap.JobByKey(structs.JobKey{Namespace: "default", ID: "later"}) != nil {
			t.Fatalf("restore %d: the state is not the archive's", round)
		}
		// Each restore starts a new history, even from the same archive (D14).
		if got := snap.ClusterMeta().RestoreEpoch; got <= epoch {
			t.Fatalf("restore epoch is %d after restore %d, it was %d", got, round, epoch)
		}
		epoch = snap.ClusterMeta().RestoreEpoch
		call(t, s, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: apiJob("later", 1)})
	}
	// The history of a new cluster from the same archive is newer than the last one of the old cluster, of which the new one knows nothing:
	// agents that saw it obey nothing older.
	next, stopNext := diskServer(t, t.TempDir(), edit)
	if err := restoreArchive(t, next, saved); err != nil {
		t.Fatal(err)
	}
	if got := next.Published().Snapshot.ClusterMeta().RestoreEpoch; got <= epoch {
		t.Errorf("a new cluster has the restore epoch %d, and agents have seen %d", got, epoch)
	}
	stopNext()
	// Any damage is refused and changes nothing.
	index := s.Published().Index
	for name, bad := range map[string][]byte{
		"empty": nil, "text": []byte("not an archive"), "truncated": saved[:len(saved)/2], "half a gzip header": saved[:5],
		"flipped": flip(saved, len(saved)/2), "sums missing": rewrite(t, saved, ""), "wrong sums": rewrite(t, saved, "00  meta.json\n00  state.bin\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if err := restoreArchive(t, s, bad); structs.CodeOf(err) != structs.CodeInvalid {
				t.Errorf("%s: %v; want structs.CodeOf(err) = %v", name, err, structs.CodeInvalid)
			}
		})
	}
	waitFor(t, time.Second, "the old state", func() bool { return s.Published().Index >= index })
	if s.Published().Snapshot.JobByKey(structs.JobKey{Namespace: "default", ID: "later"}) == nil {
		t.Error("a refused archive changed the state")
	}
}

func flip(b []byte, at int) []byte {
	c := bytes.Clone(b)
	c[at] ^= 0x40
	return c
}

// rewrite packs the archive again with other checksums, or none.
func rewrite(t *testing.T, saved []byte, sums string) []byte {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(saved))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tr, tw := tar.NewReader(gz), tar.NewWriter(zw)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "SHA256SUMS" {
			if sums == "" {
				continue
			}
			b = []byte(sums)
		}
		h.Size = int64(len(b))
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		tw.Write(b)
	}
	tw.Close()
	zw.Close()
	return out.Bytes()
}
