package client

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// hook makes a fake task of a lifecycle hook.
func hook(name, when string, sidecar bool, config string) *structs.Task {
	t := clientfake.Task(name, "fake", config)
	if when != "" {
		t.Lifecycle = &structs.Lifecycle{Hook: when, Sidecar: sidecar}
	}
	return t
}

func eventTypes(st *structs.TaskState) string {
	var out []string
	for _, e := range st.Events {
		out = append(out, e.Type)
	}
	return strings.Join(out, ", ")
}

func TestLifecycleOrder(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	id := srv.Place(a.ID(), clientfake.Job("hooks", structs.JobBatch,
		hook("init", "prestart", false, `{"run_for":"30ms"}`),
		hook("side", "prestart", true, `{}`),
		hook("main", "", false, `{"run_for":"60ms"}`),
		hook("after", "poststart", false, `{"run_for":"10ms"}`),
		hook("log", "poststart", true, `{}`),
		hook("clean", "poststop", false, `{"run_for":"10ms"}`),
	))
	al := srv.WaitStatus(t, id, structs.ClientComplete)
	st := al.TaskStates.Expand()
	for _, o := range []struct {
		what string
		a, b structs.LogTime
	}{
		{"init ended before main started", st["init"].FinishedAt, st["main"].StartedAt},
		{"side started before main", st["side"].StartedAt, st["main"].StartedAt},
		{"main started before after", st["main"].StartedAt, st["after"].StartedAt},
		{"main started before log", st["main"].StartedAt, st["log"].StartedAt},
		{"main ended before side", st["main"].FinishedAt, st["side"].FinishedAt},
		{"side ended before clean started", st["side"].FinishedAt, st["clean"].StartedAt},
		{"log ended before clean started", st["log"].FinishedAt, st["clean"].StartedAt},
		{"clean ended with the allocation", st["clean"].FinishedAt, al.FinishedAt},
	} {
		if o.a == 0 || o.b == 0 || o.a > o.b {
			t.Errorf("not so: %s (%v, %v)", o.what, o.a.Time(), o.b.Time())
		}
	}
	if got := eventTypes(st["side"]); !strings.Contains(got, "Main Tasks Dead") {
		t.Errorf("events of the sidecar are %s", got)
	}
	// Once running, always running until the end.
	seen := srv.Seen(id)
	for i := 1; i < len(seen); i++ {
		if seen[i-1].Client == structs.ClientRunning && seen[i].Client == structs.ClientPending {
			t.Errorf("report %d went back from running to pending", i)
		}
	}
}

func TestHowAllocationsEnd(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	cfg.Tasks.ClaimPatience = 300 * time.Millisecond
	a := start(t, srv, cfg)
	type want struct {
		client structs.ClientStatus
		task   string
		failed bool
		events string // of the task; "" is not compared
	}
	quick := structs.Restart{Attempts: 1, Interval: time.Minute, Delay: time.Millisecond, Mode: "fail"}
	for _, c := range []struct {
		name  string
		typ   structs.JobType
		tasks []*structs.Task
		group func(*structs.Group)
		alloc func(*structs.Allocation)
		stop  bool // once it runs
		want  []want
	}{
		{name: "batch success", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{"run_for":"1ms"}`)},
			want: []want{{structs.ClientComplete, "m", false, "Received, Started, Terminated"}}},
		{name: "restarts are counted", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{"run_for":"1ms","exit_code":7}`)},
			want: []want{{structs.ClientFailed, "m", true, "Received, Started, Terminated, Restarting, Started, Terminated, Not Restarting"}}},
		{name: "service restarts on success too", typ: structs.JobService, tasks: []*structs.Task{hook("m", "", false, `{"run_for":"1ms"}`)},
			want: []want{{structs.ClientFailed, "m", true, "Received, Started, Terminated, Restarting, Started, Terminated, Not Restarting"}}},
		{name: "no restarts", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{"run_for":"1ms","exit_code":1}`)},
			group: func(g *structs.Group) { g.Restart = structs.Restart{Mode: "fail"} },
			want:  []want{{structs.ClientFailed, "m", true, "Received, Started, Terminated, Not Restarting"}}},
		{name: "start error is retried", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{"start_err":"no luck"}`)},
			want: []want{{structs.ClientFailed, "m", true, "Received, Driver Failure, Restarting, Driver Failure, Not Restarting"}}},
		{name: "permanent error is not", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{"cmmand":"x"}`)},
			want: []want{{structs.ClientFailed, "m", true, "Received, Driver Failure, Not Restarting"}}},
		{name: "unknown driver", typ: structs.JobBatch, tasks: []*structs.Task{clientfake.Task("m", "docker", `{}`)},
			want: []want{{structs.ClientFailed, "m", true, "Received, Setup Failure"}}},
		{name: "unknown user", typ: structs.JobBatch, tasks: []*structs.Task{func() *structs.Task {
			x := hook("m", "", false, `{}`)
			x.User = "no-such-user-here"
			return x
		}()}, want: []want{{structs.ClientFailed, "m", true, "Received, Setup Failure, Not Restarting"}}},
		{name: "prestart fails", typ: structs.JobBatch, tasks: []*structs.Task{hook("init", "prestart", false, `{"run_for":"1ms","exit_code":1}`), hook("m", "", false, `{}`), hook("end", "poststop", false, `{"run_for":"1ms"}`)},
			want: []want{{structs.ClientFailed, "init", true, ""}, {structs.ClientFailed, "m", false, "Received, Sibling Task Failed"}, {structs.ClientFailed, "end", false, "Received, Started, Terminated"}}},
		{name: "sibling fails", typ: structs.JobService, tasks: []*structs.Task{hook("bad", "", false, `{"run_for":"50ms","exit_code":1}`), hook("m", "", false, `{}`)},
			group: func(g *structs.Group) { g.Restart = structs.Restart{Mode: "fail"} },
			want:  []want{{structs.ClientFailed, "bad", true, ""}, {structs.ClientFailed, "m", false, "Received, Started, Sibling Task Failed, Killing, Terminated, Killed"}}},
		{name: "leader ends", typ: structs.JobBatch, tasks: []*structs.Task{func() *structs.Task {
			x := hook("boss", "", false, `{"run_for":"50ms"}`)
			x.Leader = true
			return x
		}(), hook("m", "", false, `{}`)},
			want: []want{{structs.ClientComplete, "boss", false, ""}, {structs.ClientComplete, "m", false, "Received, Started, Leader Task Dead, Killing, Terminated, Killed"}}},
		{name: "stopped", typ: structs.JobService, tasks: []*structs.Task{hook("m", "", false, `{}`), hook("end", "poststop", false, `{"run_for":"1ms"}`)}, stop: true,
			want: []want{{structs.ClientComplete, "m", false, "Received, Started, Killing, Terminated, Killed"}, {structs.ClientComplete, "end", false, "Received, Started, Terminated"}}},
		{name: "stopped with a shutdown delay", typ: structs.JobService, tasks: []*structs.Task{func() *structs.Task {
			x := hook("m", "", false, `{}`)
			x.ShutdownDelay = 30 * time.Millisecond
			return x
		}()}, group: func(g *structs.Group) { g.ShutdownDelay = 30 * time.Millisecond }, stop: true,
			want: []want{{structs.ClientComplete, "m", false, "Received, Started, Waiting for shutdown delay, Killing, Terminated, Killed"}}},
		{name: "too long", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{}`)}, group: func(g *structs.Group) { g.MaxRunDuration = 80 * time.Millisecond },
			want: []want{{structs.ClientFailed, "m", true, "Received, Started, Killing, Terminated, Killed"}}},
		{name: "device of another machine", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{}`)},
			alloc: func(al *structs.Allocation) {
				al.Grants = []structs.Grant{{Task: "m", Device: "nvidia/gpu/H100", Instance: "GPU-nowhere"}}
			},
			want: []want{{structs.ClientFailed, "m", true, "Received, Setup Failure"}}},
		{name: "cores not given", typ: structs.JobBatch, tasks: []*structs.Task{func() *structs.Task {
			x := hook("m", "", false, `{}`)
			x.Resources.Cores = 2
			return x
		}()}, want: []want{{structs.ClientFailed, "m", true, "Received, Setup Failure, Not Restarting"}}},
		{name: "more disk than there is", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{}`)}, group: func(g *structs.Group) { g.Disk.SizeMiB = 1 << 40 },
			want: []want{{structs.ClientFailed, "m", true, "Received, Setup Failure"}}},
		{name: "wrong node", typ: structs.JobBatch, tasks: []*structs.Task{hook("m", "", false, `{}`)},
			alloc: func(al *structs.Allocation) { al.Group = "other" },
			want:  nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			job := clientfake.Job(strings.ReplaceAll(c.name, " ", "-"), c.typ, c.tasks...)
			job.Groups[0].Restart = quick
			if c.group != nil {
				c.group(job.Groups[0])
			}
			var edit []func(*structs.Allocation)
			if c.alloc != nil {
				edit = append(edit, c.alloc)
			}
			id := srv.Place(a.ID(), job, edit...)
			if c.want == nil {
				srv.WaitStatus(t, id, structs.ClientFailed)
				return
			}
			if c.stop {
				srv.WaitStatus(t, id, structs.ClientRunning)
				srv.Stop(id)
			}
			al := srv.WaitStatus(t, id, c.want[0].client)
			for _, w := range c.want {
				st := al.TaskStates.Get(w.task)
				if st == nil || st.State != "dead" || st.Failed != w.failed {
					t.Errorf("task %s is %+v, want failed=%t", w.task, st, w.failed)
					continue
				}
				if got := eventTypes(st); w.events != "" && got != w.events {
					t.Errorf("events of %s are\n  %s, want\n  %s", w.task, got, w.events)
				}
			}
		})
	}
}

func TestStopInterruptsWaiting(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	// Waiting for a restart an hour away.
	job := clientfake.Job("later", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms","exit_code":1}`))
	job.Groups[0].Restart = structs.Restart{Attempts: 3, Interval: time.Hour, Delay: time.Hour, Mode: "delay"}
	later := srv.Place(a.ID(), job)
	srv.Wait(t, "the restart to be planned", func() bool {
		st := srv.Alloc(later).TaskStates.Get("m")
		return st != nil && st.Restarts == 1
	})
	// Waiting for another allocation.
	first := srv.Place(a.ID(), clientfake.Job("first", structs.JobService, hook("m", "", false, `{}`)))
	srv.WaitStatus(t, first, structs.ClientRunning)
	waits := srv.Place(a.ID(), clientfake.Job("waits", structs.JobService, hook("m", "", false, `{}`)), func(al *structs.Allocation) { al.WaitsOn = []structs.AllocID{first} })
	second := srv.Place(a.ID(), clientfake.Job("second", structs.JobService, hook("m", "", false, `{}`)), func(al *structs.Allocation) { al.WaitsOn = []structs.AllocID{first} })
	srv.Wait(t, "both to be known", func() bool { return a.Alloc(waits) != nil && a.Alloc(second) != nil })
	srv.Stop(later)
	srv.Stop(waits)
	srv.WaitStatus(t, later, structs.ClientComplete)
	al := srv.WaitStatus(t, waits, structs.ClientComplete)
	if al.StartedAt != 0 {
		t.Errorf("it started beside the one it waits for: got %v, want 0", al.StartedAt)
	}
	if srv.Alloc(second).Client != structs.ClientPending {
		t.Errorf("the second one is %s while the first runs", srv.Alloc(second).Client)
	}
	srv.Stop(first)
	end := srv.WaitStatus(t, first, structs.ClientComplete)
	al = srv.WaitStatus(t, second, structs.ClientRunning)
	if al.StartedAt < end.FinishedAt {
		t.Errorf("the second one started before the first had ended: got %v, want at least %v", al.StartedAt, end.FinishedAt)
	}
}

func TestDevicesAreNotShared(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	env := &spy{Driver: fake.New(), starts: map[string]int{}}
	cfg.Host.Drivers = driver.NewSet(env)
	a := start(t, srv, cfg)
	gpus := srv.Node(a.ID()).Resources.Devices[0].Instances
	grant := func(i int, mem int64) func(*structs.Allocation) {
		return func(al *structs.Allocation) {
			al.Grants = []structs.Grant{{Task: "m", Device: "nvidia/gpu/H100", Instance: gpus[i].ID, MemoryMiB: mem}}
		}
	}
	job := clientfake.Job("gpu", structs.JobService, hook("m", "", false, `{}`))
	one := srv.Place(a.ID(), job, grant(0, 0))
	srv.WaitStatus(t, one, structs.ClientRunning)
	env.mu.Lock()
	got := env.last["CUDA_VISIBLE_DEVICES"]
	env.mu.Unlock()
	if got != gpus[0].ID {
		t.Errorf("CUDA_VISIBLE_DEVICES is %q, want %q", got, gpus[0].ID)
	}
	two := srv.Place(a.ID(), job, grant(0, 0))
	shared := []structs.AllocID{srv.Place(a.ID(), job, grant(1, 40000)), srv.Place(a.ID(), job, grant(1, 41000))}
	for _, id := range shared { // 81,000 of 81,559 MiB
		srv.WaitStatus(t, id, structs.ClientRunning)
	}
	over := srv.Place(a.ID(), job, grant(1, 10000))
	srv.Wait(t, "the others to be known", func() bool { return a.Alloc(two) != nil && a.Alloc(over) != nil })
	srv.Stop(one)
	srv.WaitStatus(t, two, structs.ClientRunning)
	if c := srv.Alloc(over).Client; c != structs.ClientPending {
		t.Errorf("an allocation over the GPU's memory is %s", c)
	}
	srv.Stop(shared[0])
	srv.WaitStatus(t, over, structs.ClientRunning)
	// The claims survive a restart of the agent.
	a = a.restart()
	if n := a.ledger.Held(); n != 3 {
		t.Errorf("%d allocations hold devices after a restart, want 3", n)
	}
}

// spy is a driver that remembers what was started.
type spy struct {
	*fake.Driver
	mu     sync.Mutex
	last   map[string]string
	starts map[string]int
}

func (s *spy) Start(ctx context.Context, cfg *driver.TaskConfig) (driver.Task, error) {
	s.mu.Lock()
	s.last = cfg.Env()
	s.starts[cfg.TaskID]++
	s.mu.Unlock()
	return s.Driver.Start(ctx, cfg)
}

func TestRestartAndSignalByHand(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService,
		hook("init", "prestart", false, `{"run_for":"1ms"}`), hook("m", "", false, `{}`), hook("n", "", false, `{}`)))
	srv.Wait(t, "both tasks", func() bool { r := a.Alloc(id); return r != nil && len(r.Running()) == 2 })
	srv.WaitStatus(t, id, structs.ClientRunning)
	ctx := context.Background()
	restart := func(task string, all bool) error {
		_, err := rpc.Invoke(ctx, srv.Back(a.ID()), methods.ClientRestart, rpc.Header{}, &methods.AllocRestartRequest{AllocID: id, Task: task, All: all})
		return err
	}
	counts := func(init, m, n int64) {
		t.Helper()
		srv.Wait(t, "the restarts", func() bool {
			st := srv.Alloc(id).TaskStates.Expand()
			return st["init"].Restarts == init && st["m"].Restarts == m && st["n"].Restarts == n && st["m"].State == "running" && st["n"].State == "running"
		})
	}
	if err := restart("m", false); err != nil {
		t.Fatal(err)
	}
	counts(0, 1, 0)
	if err := restart("", false); err != nil {
		t.Fatal(err)
	}
	counts(0, 2, 1)
	if err := restart("", true); err != nil {
		t.Fatal(err)
	}
	counts(1, 3, 2)
	for task, want := range map[string]structs.ErrorCode{"init": structs.CodeInvalid, "nobody": structs.CodeNotFound} {
		if err := restart(task, false); structs.CodeOf(err) != want {
			t.Errorf("restart of %s: %v, want %s", task, err, want)
		}
	}
	signal := func(task, sig string) error {
		_, err := rpc.Invoke(ctx, srv.Back(a.ID()), methods.ClientSignal, rpc.Header{}, &methods.AllocSignalRequest{AllocID: id, Task: task, Signal: sig})
		return err
	}
	if err := signal("", "SIGHUP"); err != nil {
		t.Error(err)
	}
	if err := signal("m", "SIGNOPE"); structs.CodeOf(err) != structs.CodeInvalid {
		t.Errorf("an unknown signal: %v", err)
	}
	if srv.Alloc(id).Client != structs.ClientRunning {
		t.Errorf("the allocation is %s after restarts by hand", srv.Alloc(id).Client)
	}
}

func TestServersSilence(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = 200 * time.Millisecond
	a := start(t, srv, newConfig(t, srv))
	job := clientfake.Job("exclusive", structs.JobService, hook("m", "", false, `{}`))
	limit := 2 * time.Second
	job.Groups[0].Disconnect = &structs.Disconnect{StopOnClientAfter: &limit}
	exclusive := srv.Place(a.ID(), job)
	other := srv.Place(a.ID(), clientfake.Job("other", structs.JobService, hook("m", "", false, `{}`)))
	srv.WaitStatus(t, exclusive, structs.ClientRunning)
	srv.WaitStatus(t, other, structs.ClientRunning)
	at := time.Now()
	srv.Fail(func(string) error { return structs.Errorf(structs.CodeUnavailable, "cut off by the test") })
	srv.Wait(t, "the exclusive one to end", func() bool { return a.Alloc(exclusive).Final() != nil })
	if d := time.Since(at); d < limit-srv.TTL || d > limit+3*time.Second {
		t.Errorf("it ended after %s of silence, want about %s", d, limit)
	}
	if a.Alloc(other).Final() != nil {
		t.Error("a task without such a limit was ended too")
	}
	srv.Fail(nil)
	srv.WaitStatus(t, exclusive, structs.ClientLost) // reported once they are back
}

// TestLostWorkEnds: servers that had no contact with the node for long take its work for lost, and other work is in its place. When the
// node is back, the agent ends what it still runs, also after a restart in between, and its reports change nothing about that.
func TestLostWorkEnds(t *testing.T) {
	for _, restart := range []bool{false, true} {
		srv := clientfake.New()
		cfg := newConfig(t, srv)
		a := start(t, srv, cfg)
		id := srv.Place(a.ID(), clientfake.Job("web", structs.JobService, hook("m", "", false, `{}`)))
		srv.WaitStatus(t, id, structs.ClientRunning)
		srv.Fail(func(string) error { return structs.Errorf(structs.CodeUnavailable, "cut off by the test") })
		srv.Change(id, func(a *structs.Allocation) {
			a.Desired, a.DesiredDesc, a.Client = structs.DesiredStop, "alloc is lost since its node is down", structs.ClientLost
		})
		if a.Alloc(id).Final() != nil {
			t.Fatal("the work ended although it may run without contact")
		}
		srv.Fail(nil)
		if restart {
			a = a.restart()
		}
		srv.Wait(t, "lost work to end", func() bool { return a.Alloc(id) != nil && a.Alloc(id).Final() != nil })
		if got := srv.Alloc(id).Client; got != structs.ClientLost {
			t.Errorf("the allocation is %s", got)
		}
	}
}

// TestLimitsWithoutContactAreKnown: the agent looks at its allocations for stop_on_client_after only once one has had it, be it
// new, changed, or restored.
func TestLimitsWithoutContactAreKnown(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	limit := time.Hour
	plain := srv.Place(a.ID(), clientfake.Job("plain", structs.JobService, hook("m", "", false, `{}`)))
	srv.WaitStatus(t, plain, structs.ClientRunning)
	if a.limited.Load() {
		t.Error("the agent looks for limits that no allocation has")
	}
	srv.Change(plain, func(al *structs.Allocation) {
		job := *al.Job
		g := *job.Groups[0]
		g.StopAfterDisc = &limit
		job.Groups, job.Version = []*structs.Group{&g}, job.Version+1
		al.Job, al.JobVersion = &job, job.Version
	})
	srv.Wait(t, "the changed limit", func() bool { return a.shortestSilence() == limit })
	if a = a.restart(); a.shortestSilence() != limit {
		t.Error("a restored limit is not known")
	}
	shorter := limit / 2
	job := clientfake.Job("new", structs.JobService, hook("m", "", false, `{}`))
	job.Groups[0].StopAfterDisc = &shorter
	srv.Place(a.ID(), job)
	srv.Wait(t, "the new limit", func() bool { return a.shortestSilence() == shorter })
}

// TestStoppedAgent: an agent that was itself stopped for too long ends the allocation when its next heartbeat is
// answered, before anything of it starts again.
func TestStoppedAgent(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = time.Minute
	a := start(t, srv, newConfig(t, srv))
	job := clientfake.Job("exclusive", structs.JobService, hook("m", "", false, `{}`))
	limit := time.Hour
	job.Groups[0].StopAfterDisc = &limit
	id := srv.Place(a.ID(), job)
	srv.WaitStatus(t, id, structs.ClientRunning)
	a.connected.mu.Lock()
	a.connected.last -= limit // as if it had not run since
	a.connected.mu.Unlock()
	a.heard(supervisor.Boottime())
	srv.WaitStatus(t, id, structs.ClientLost)
}

// TestContactBeforeStart: a task that may not run without contact waits for recent contact, and until the agent knows
// what the servers wanted when it registered.
func TestContactBeforeStart(t *testing.T) {
	c := &Client{connected: newContact(), obeyed: make(chan struct{}), beatNow: make(chan struct{}, 1), registered: 10}
	result := make(chan error, 1)
	limit := supervisor.Boottime() // the machine may have been up for minutes only
	ask := func() { result <- c.inContact(t.Context(), limit) }
	waits := func(why string) {
		t.Helper()
		select {
		case err := <-result:
			t.Fatalf("it started before %s (%v)", why, err)
		case <-time.After(3 * contactLook):
		}
	}
	c.connected.heard(limit - 2*limit/3)
	go ask()
	waits("the agent obeyed an answer")
	if c.noteObeyed(&methods.NodePollResponse{StateIndex: 9}) {
		t.Error("an answer that is older than the registration counts")
	}
	waits("a recent answer")
	if !c.noteObeyed(&methods.NodePollResponse{StateIndex: 10}) {
		t.Error("a recent answer does not count")
	}
	waits("recent contact")
	select {
	case <-c.beatNow:
	default:
		t.Error("no heartbeat was asked for")
	}
	c.connected.heard(supervisor.Boottime())
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestLeave(t *testing.T) {
	srv := clientfake.New()
	a := start(t, srv, newConfig(t, srv))
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, hook("m", "", false, `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	if err := a.Leave(context.Background()); err != nil {
		t.Fatal(err)
	}
	if st := srv.Node(a.ID()).Status; st != structs.NodeDown {
		t.Errorf("the node is %s after it left", st)
	}
	if got := len(a.Alloc(id).Running()); got != 0 {
		t.Errorf("a task runs on: got %v, want 0", got)
	}
	if c := srv.Alloc(id).Client; c != structs.ClientRunning {
		t.Errorf("the allocation was reported as %s: the servers would not replace it", c)
	}
}

// TestCollectByAgeAndDisk: what has ended goes after its time, or when the disk is fuller than it may be; what runs stays.
func TestCollectByAgeAndDisk(t *testing.T) {
	for name, gc := range map[string]GCConfig{"age": {MaxAge: 300 * time.Millisecond}, "disk": {DiskPercent: -1}, "inodes": {InodePercent: -1}} {
		t.Run(name, func(t *testing.T) {
			srv := clientfake.New()
			cfg := newConfig(t, srv)
			cfg.GC = gc
			cfg.GC.Interval = 50 * time.Millisecond
			a := start(t, srv, cfg)
			runs := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, hook("m", "", false, `{}`)))
			ended := srv.Place(a.ID(), clientfake.Job("done", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms"}`)))
			srv.WaitStatus(t, runs, structs.ClientRunning)
			srv.WaitStatus(t, ended, structs.ClientComplete)
			dir := a.Alloc(ended)
			srv.Wait(t, "the ended allocation to be removed", func() bool { return a.Alloc(ended) == nil })
			if dir != nil {
				if _, err := os.Stat(dir.Dir().Root); !os.IsNotExist(err) {
					t.Errorf("its directory: %v", err)
				}
			}
			if _, err := os.Stat(a.Alloc(runs).Dir().Root); err != nil {
				t.Errorf("the directory of the one that runs: %v", err)
			}
		})
	}
}

func TestCollect(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	cfg.GC = GCConfig{MaxAllocs: 3}
	a := start(t, srv, cfg)
	var ids []structs.AllocID
	for range 6 {
		ids = append(ids, srv.Place(a.ID(), clientfake.Job("b", structs.JobBatch, hook("m", "", false, `{"run_for":"1ms"}`))))
		srv.WaitStatus(t, ids[len(ids)-1], structs.ClientComplete)
	}
	srv.Wait(t, "the oldest to be collected", func() bool { return a.Alloc(ids[2]) == nil })
	if a.Alloc(ids[3]) == nil || a.Alloc(ids[5]) == nil {
		t.Error("too much was collected")
	}
	// They are listed by the servers still, and do not come back: not now and not after a restart.
	live := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, hook("m", "", false, `{}`)))
	srv.WaitStatus(t, live, structs.ClientRunning)
	a = a.restart()
	srv.Wait(t, "the first poll", func() bool { return a.Alloc(live) != nil && len(a.Alloc(live).Running()) == 1 })
	if a.Alloc(ids[0]) != nil {
		t.Error("a collected allocation came back")
	}
	if err := a.Collect(live); structs.CodeOf(err) != structs.CodeInvalid {
		t.Errorf("collecting a running allocation: %v", err)
	}
	if err := a.Collect(structs.AllocID{}); err != nil {
		t.Fatal(err)
	}
	if n := len(a.Allocs()); n != 1 {
		t.Errorf("%d allocations are left, want the running one", n)
	}
	// When the servers forget one, it goes.
	srv.Forget(live)
	srv.Wait(t, "the forgotten one to be removed", func() bool {
		srv.Answer(nil)
		return a.Alloc(live) == nil || a.Alloc(live).Final() != nil
	})
}

// TestOnePoisonedReport lets the servers refuse one report for ever; the others must get through.
func TestOnePoisonedReport(t *testing.T) {
	srv := clientfake.New()
	var mu sync.Mutex
	var poison structs.AllocID
	srv.Registry().Wrap(func(next rpc.Handler) rpc.Handler {
		return func(ctx context.Context, c *rpc.Call) (*rpc.Reply, error) {
			if req, err := c.Request(); err == nil {
				if o, ok := req.(*methods.NodeObserveRequest); ok {
					mu.Lock()
					defer mu.Unlock()
					for _, u := range o.Updates {
						if u.ID == poison {
							return nil, structs.Errorf(structs.CodeInvalid, "refused by the test")
						}
					}
				}
			}
			return next(ctx, c)
		}
	})
	a := start(t, srv, newConfig(t, srv))
	job := clientfake.Job("svc", structs.JobService, hook("m", "", false, `{}`))
	mu.Lock()
	var ids []structs.AllocID
	for i := range 9 {
		ids = append(ids, srv.Place(a.ID(), job))
		if i == 4 {
			poison = ids[4]
		}
	}
	mu.Unlock()
	for _, id := range ids {
		if id != poison {
			srv.WaitStatus(t, id, structs.ClientRunning)
		}
	}
}
