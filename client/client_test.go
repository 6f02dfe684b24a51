package client

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/client/fingerprint"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// agent is a client under test with its servers.
type agent struct {
	*Client
	t    *testing.T
	srv  *clientfake.Server
	cfg  Config
	done chan struct{}
}

// newConfig makes a configuration for a real client with the fake driver and a machine made up.
func newConfig(t *testing.T, srv *clientfake.Server) Config {
	return Config{
		Node:    NodeConfig{Name: "n1", Version: "0.0.0-test"},
		Storage: StorageConfig{DataDir: t.TempDir(), SecretsOnDisk: true},
		Host: HostConfig{
			Drivers:        driver.NewSet(fake.New()),
			Fingerprinters: machine(fingerprint.Options{Drivers: driver.NewSet(fake.New()), Version: "0.0.0-test"}),
		},
		Connect:      InProcess(srv.InProcess),
		ObserveEvery: time.Millisecond,
	}
}

// machine returns what TestMachine's fingerprinters see: 4 cores, 8 GiB and 8 H100.
func machine(o fingerprint.Options) []fingerprint.Fingerprinter {
	gpus, err := fingerprint.ParseGPUs("2xH100", structs.Seed{9})
	if err != nil {
		panic(err)
	}
	o.Devices = []fingerprint.DeviceFingerprinter{gpus}
	list := fingerprint.List(o)
	keep := func(name string) fingerprint.Fingerprinter {
		i := slices.IndexFunc(list, func(f fingerprint.Fingerprinter) bool { return f.Name == name })
		f := list[i]
		f.Period = 0
		return f
	}
	fixed := fingerprint.Fingerprinter{Name: "fixed", Look: func(_ context.Context, f *fingerprint.Facts) error {
		f.Resources = structs.NodeResources{
			CPU: 8000, Cores: 4, MHzPerCore: 2000, MemoryMiB: 8192, DiskMiB: 10000, ReservableCPUs: []int64{0, 1, 2, 3},
			Networks: []structs.NodeNetwork{{Device: "eth0", IP: "192.0.2.7", Alias: "default"}},
		}
		f.BootID = "boot-1"
		f.Attributes["cpu.arch"] = "amd64"
		return nil
	}}
	return []fingerprint.Fingerprinter{keep("version"), fixed, keep("drivers"), keep("devices")}
}

func start(t *testing.T, srv *clientfake.Server, cfg Config) *agent {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{Client: c, t: t, srv: srv, cfg: cfg, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		if err := c.Run(context.Background()); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-a.done
	})
	select {
	case <-c.Joined():
	case <-time.After(20 * time.Second):
		t.Fatal("the node was not registered")
	}
	return a
}

// restart stops the agent and starts another one on the same data, as kill -9 would as far as the disk is concerned:
// nothing is written when an agent stops.
func (a *agent) restart() *agent {
	a.t.Helper()
	a.Close()
	<-a.done
	return start(a.t, a.srv, a.cfg)
}

// TestRegistersForANewFormat: when a newer format is in force than at the registration, which may have been left out in part,
// the agent registers again, once.
func TestRegistersForANewFormat(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = 300 * time.Millisecond
	srv.SetFormat(1)
	a := start(t, srv, newConfig(t, srv))
	registered := func() int { return srv.Calls(methods.NodeRegister.Name) }
	beats := func() {
		t.Helper()
		from := srv.Beats(a.ID())
		srv.Wait(t, "3 heartbeats", func() bool { return srv.Beats(a.ID()) >= from+3 })
	}
	beats()
	before := registered()
	srv.SetFormat(2)
	srv.Wait(t, "a new registration", func() bool { return registered() == before+1 })
	beats()
	srv.SetFormat(1) // another server, which is behind
	beats()
	if n := registered() - before; n != 1 {
		t.Errorf("it registered %d times for one format", n)
	}
}

func TestRegisterHeartbeatRun(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = 300 * time.Millisecond
	cfg := newConfig(t, srv)
	a := start(t, srv, cfg)
	n := srv.Node(a.ID())
	if n.Name != "n1" || n.Datacenter != "dc1" || n.Pool != "default" || n.Attributes["driver.fake"] != "1" || !n.Drivers["fake"].Healthy {
		t.Fatalf("registered node is %+v", n)
	}
	if len(n.Resources.Devices) != 1 || len(n.Resources.Devices[0].Instances) != 2 {
		t.Fatalf("devices are %+v", n.Resources.Devices)
	}
	srv.Wait(t, "5 heartbeats", func() bool { return srv.Beats(a.ID()) >= 5 })

	id := srv.Place(a.ID(), clientfake.Job("batch", structs.JobBatch, clientfake.Task("main", "fake", `{"run_for":"50ms"}`)))
	al := srv.WaitStatus(t, id, structs.ClientComplete)
	st := al.TaskStates.Get("main")
	if st == nil || st.State != "dead" || st.Failed || al.StartedAt == 0 || al.FinishedAt < al.StartedAt || al.NetworkIP != "192.0.2.7" {
		t.Fatalf("allocation ended as %+v, task %+v", al, st)
	}
	var kinds []string
	for _, e := range st.Events {
		kinds = append(kinds, e.Type)
	}
	if got := strings.Join(kinds, " "); got != "Received Started Terminated" {
		t.Errorf("events are %q", got)
	}
	for _, f := range []string{"client-id", "secret-id", "client.db"} {
		if info, err := os.Stat(filepath.Join(cfg.Storage.DataDir, f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, mode %v", f, err, info.Mode())
		}
	}

	// A service runs until it is stopped.
	id = srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	srv.Stop(id)
	al = srv.WaitStatus(t, id, structs.ClientComplete)
	last := al.TaskStates.Get("main").Events
	if last[len(last)-1].Type != "Killed" {
		t.Errorf("events of a stopped task are %+v", last)
	}

	// The servers forget the node: it registers again.
	srv.Unregister(a.ID())
	srv.Wait(t, "a new registration", func() bool { return srv.Node(a.ID()) != nil })
}

func TestRestoreKeepsTasks(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	a := start(t, srv, cfg)
	live := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	done := srv.Place(a.ID(), clientfake.Job("done", structs.JobBatch, clientfake.Task("main", "fake", `{"run_for":"1ms"}`)))
	srv.WaitStatus(t, live, structs.ClientRunning)
	ended := srv.WaitStatus(t, done, structs.ClientComplete)
	started := srv.Alloc(live).TaskStates.Get("main").StartedAt
	id := a.ID()
	for i := range 20 {
		a = a.restart()
		if a.ID() != id {
			t.Fatalf("restart %d: the node's id changed", i)
		}
		if i%5 == 4 { // some work in between, killed in any state
			srv.Place(a.ID(), clientfake.Job("x", structs.JobBatch, clientfake.Task("main", "fake", `{"run_for":"5ms"}`)))
		}
	}
	srv.Wait(t, "all short jobs", func() bool {
		for _, r := range a.Allocs() {
			if r.ID() != live && r.Final() == nil {
				return false
			}
		}
		return len(a.Allocs()) == 6
	})
	st := srv.Alloc(live).TaskStates.Get("main")
	if st.StartedAt != started || st.Restarts != 0 || srv.Alloc(live).Client != structs.ClientRunning {
		t.Errorf("the service was restarted: %+v", st)
	}
	if e := srv.Alloc(done); e.FinishedAt != ended.FinishedAt {
		t.Errorf("the completed job ran again: finished at %v, then %v", ended.FinishedAt.Time(), e.FinishedAt.Time())
	}
	srv.Stop(live)
	srv.WaitStatus(t, live, structs.ClientComplete)
}

func TestHistoryIsNotObeyedBackwards(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	empty := func(r *methods.NodePollResponse) { r.Refs, r.Changed, r.Index = nil, nil, 1 }
	history := func() agentstore.History {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.history
	}
	srv.Wait(t, "the agent to know the history", func() bool { return history().Index > 0 })
	for name, change := range map[string]func(*methods.NodePollResponse){
		"an older state with an empty list": func(r *methods.NodePollResponse) { empty(r); r.StateIndex = 1 },
		"the same state with an empty list": func(r *methods.NodePollResponse) {
			empty(r)
			a.mu.Lock()
			r.StateIndex = a.history.Index
			a.mu.Unlock()
		},
		"another cluster": func(r *methods.NodePollResponse) { empty(r); r.Cluster = structs.ClusterID{7}; r.StateIndex += 99 },
	} {
		t.Run(name, func(t *testing.T) {
			before := srv.Calls("Node.Poll")
			have := history()
			srv.Answer(change)
			srv.Wait(t, "the answer was seen", func() bool { return srv.Calls("Node.Poll") >= before+2 })
			srv.Answer(nil)
			if a.Alloc(id) == nil || a.Alloc(id).Final() != nil || len(a.Alloc(id).Running()) != 1 {
				t.Fatal("the task was stopped")
			}
			if now := history(); now.Older(have) || now.Cluster != have.Cluster {
				t.Errorf("the agent goes by %+v after %+v", now, have)
			}
		})
	}
	// A newer index with an empty list is obeyed.
	srv.Forget(id)
	srv.Wait(t, "the forgotten allocation to end", func() bool { return a.Alloc(id) == nil || a.Alloc(id).Final() != nil })
}

func TestManyAllocationsComeInParts(t *testing.T) {
	srv := clientfake.New()
	srv.Most = 7
	a := start(t, srv, newConfig(t, srv))
	job := clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`))
	var ids []structs.AllocID
	for range 50 {
		ids = append(ids, srv.Place(a.ID(), job))
	}
	for _, id := range ids {
		srv.WaitStatus(t, id, structs.ClientRunning)
	}
	a = a.restart()
	late := srv.Place(a.ID(), job)
	srv.WaitStatus(t, late, structs.ClientRunning)
	for _, id := range ids { // the newest is garbage and the polls' index goes back: nothing else changes
		if a.Alloc(id) == nil || a.Alloc(id).Final() != nil {
			t.Fatalf("allocation %s is gone after a restart", id.Short())
		}
	}
	srv.Stop(late)
	srv.WaitStatus(t, late, structs.ClientComplete)
	srv.Forget(late)
	a = a.restart()
	more := srv.Place(a.ID(), job)
	srv.WaitStatus(t, more, structs.ClientRunning)
	if n := len(a.Allocs()); n != 51 {
		t.Errorf("%d allocations, want 51", n)
	}
}

func TestRestoredServersReportFirst(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	cfg.UnknownGrace = 1500 * time.Millisecond
	a := start(t, srv, cfg)
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	at := time.Now()
	srv.Restore(id)
	srv.Wait(t, "the event", func() bool { return len(srv.Events()) == 1 })
	if r := a.Alloc(id); r == nil || r.Final() != nil {
		t.Fatal("stopped before its grace")
	}
	srv.Wait(t, "its end", func() bool { return a.Alloc(id) == nil || a.Alloc(id).Final() != nil })
	if d := time.Since(at); d < cfg.UnknownGrace {
		t.Errorf("ended after %s, grace is %s", d, cfg.UnknownGrace)
	}
	if e := srv.Events()[0]; !strings.Contains(e.Message, "unknown to the restored servers") {
		t.Errorf("event is %+v", e)
	}
	// The new history's indexes are lower than those that the agent waited beyond.
	srv.WaitStatus(t, srv.Place(a.ID(), clientfake.Job("next", structs.JobService, clientfake.Task("main", "fake", `{}`))), structs.ClientRunning)
}

func TestServersFailOver(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = 400 * time.Millisecond
	var addrs []string
	var stops []func()
	for range 3 {
		addr, stop := listen(t, srv)
		addrs = append(addrs, addr)
		stops = append(stops, stop)
	}
	cfg := newConfig(t, srv)
	cfg.Connect = Dial(DialConfig{Servers: addrs[:1]})
	srv.Servers(addrs...)
	a := start(t, srv, cfg)
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	stops[0]() // the one that the node was configured with
	beats := srv.Beats(a.ID())
	srv.Wait(t, "heartbeats over another server", func() bool { return srv.Beats(a.ID()) > beats+2 })
	srv.Stop(id)
	srv.WaitStatus(t, id, structs.ClientComplete)
	// Servers call back over the session.
	meta, err := rpc.Invoke(context.Background(), srv.Back(a.ID()), methods.ClientMetaApply, rpc.Header{}, &methods.NodeMetaRequest{NodeID: a.ID(), Meta: map[string]*string{"rack": ptr("r1")}})
	if err != nil || meta.Meta["rack"] != "r1" {
		t.Fatalf("metadata: %v, %+v", err, meta)
	}
	srv.Wait(t, "the node with its new metadata", func() bool { return srv.Node(a.ID()).Meta["rack"] == "r1" })
}

func ptr[T any](v T) *T { return &v }

// TestRefusesForeignServers: a node that belongs to another cluster is not ready, and its heartbeats say why, until it
// meets its own again.
func TestRefusesForeignServers(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = 300 * time.Millisecond
	a := start(t, srv, newConfig(t, srv))
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	own := srv.Become(structs.ClusterID{7})
	a = a.restart()
	srv.Wait(t, "the node to say what it refuses", func() bool {
		n := srv.Node(a.ID())
		return n.Status == structs.NodeInit && strings.Contains(n.StatusDesc, own.String()) && strings.Contains(n.StatusDesc, "obeys no other")
	})
	srv.Wait(t, "the task to run under the new agent", func() bool { // which takes it over while it registers
		r := a.Alloc(id)
		return r != nil && r.Final() == nil && len(r.Running()) == 1
	})
	srv.Become(own)
	srv.Wait(t, "the node to be ready again", func() bool {
		n := srv.Node(a.ID())
		return n.Status == structs.NodeReady && n.StatusDesc == ""
	})
}

// TestRefusesOlderServers: the heartbeats report servers that have lost what the node has obeyed after staleGrace, not
// during the first moments of a new leader.
func TestRefusesOlderServers(t *testing.T) {
	srv := clientfake.New()
	c, err := New(newConfig(t, srv))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.history = agentstore.History{Cluster: structs.ClusterID{1}, Index: 100}
	c.judge(structs.ClusterID{}, 99)
	if h := c.heartbeat(); h.Refuses != "" || h.Status != structs.NodeReady {
		t.Fatalf("while a leader is behind for a moment, the heartbeat says %q", h.Refuses)
	}
	c.refused.stale = c.refused.stale.Add(-staleGrace)
	c.judge(structs.ClusterID{}, 99)
	if h := c.heartbeat(); !strings.Contains(h.Refuses, "ends at index 99, and this node has obeyed index 100") || h.Status != structs.NodeInit {
		t.Fatalf("to servers that lost their newest state the heartbeat says %q", h.Refuses)
	}
	first := c.heartbeat().Refuses
	c.judge(structs.ClusterID{}, 98)
	if again := c.heartbeat().Refuses; again != first {
		t.Errorf("the reason changed to %q: the servers would log each", again)
	}
	c.judge(structs.ClusterID{}, 100)
	c.accept()
	if h := c.heartbeat(); h.Refuses != "" || h.Status != structs.NodeReady {
		t.Errorf("after an answer was obeyed the heartbeat says %q", h.Refuses)
	}
}
