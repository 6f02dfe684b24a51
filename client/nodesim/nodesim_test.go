package nodesim

import (
	"context"
	"net"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/muster-sched/muster/client"
	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func listen(t testing.TB, srv *clientfake.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(rpc.ServerConfig{Registry: srv.Registry()})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

func run(t testing.TB, f *Fleet) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func TestFleetRunsAllocations(t *testing.T) {
	srv := clientfake.New()
	const count = 600 // three sessions
	f, err := New(Config{Count: count, Servers: []string{listen(t, srv)}, GPUs: "8xH100", JoinOver: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	srv.Wait(t, "all nodes", func() bool { return f.Joined() == count })
	nodes := f.Nodes()
	gpus := map[string]bool{}
	for _, n := range nodes {
		for _, inst := range srv.Node(n.ID()).Resources.Devices[0].Instances {
			gpus[inst.ID] = true
		}
	}
	if len(gpus) != 8*count {
		t.Errorf("%d different GPUs on %d nodes", len(gpus), count)
	}
	var ids []structs.AllocID
	for i, n := range nodes {
		job := clientfake.Job("svc"+strconv.Itoa(i%7), structs.JobService, clientfake.Task("main", "fake", `{}`))
		ids = append(ids, srv.Place(n.ID(), job))
	}
	for _, id := range ids {
		srv.WaitStatus(t, id, structs.ClientRunning)
	}
	// A call for one allocation reaches its node over the session that it shares.
	back := srv.Back(srv.Alloc(ids[5]).NodeID)
	if _, err := rpc.Invoke(context.Background(), back, methods.ClientRestart, rpc.Header{}, &methods.AllocRestartRequest{AllocID: ids[5]}); err != nil {
		t.Fatal(err)
	}
	srv.Wait(t, "the restart", func() bool {
		st := srv.Alloc(ids[5]).TaskStates.Get("main")
		return st.Restarts == 1 && st.State == "running"
	})
	_, err = rpc.Invoke(context.Background(), back, methods.ClientHostStats, rpc.Header{}, &methods.AllocNodeRequest{NodeID: structs.NodeID{1}})
	if structs.CodeOf(err) != structs.CodeNotFound {
		t.Errorf("host statistics of a stranger: %v", err)
	}
	for _, id := range ids {
		srv.Stop(id)
	}
	for _, id := range ids {
		srv.WaitStatus(t, id, structs.ClientComplete)
	}
}

// TestSameCallsAsARealAgent runs the same work on a real agent and on a simulated node and compares their calls to the
// servers: the methods, and the fields of the requests that are set.
func TestSameCallsAsARealAgent(t *testing.T) {
	work := func(srv *clientfake.Server, node structs.NodeID) {
		batch := srv.Place(node, clientfake.Job("b", structs.JobBatch, clientfake.Task("main", "fake", `{"run_for":"1ms"}`)))
		fail := srv.Place(node, clientfake.Job("f", structs.JobBatch, clientfake.Task("main", "fake", `{"run_for":"1ms","exit_code":3}`)))
		svc := srv.Place(node, clientfake.Job("s", structs.JobService, clientfake.Task("main", "fake", `{}`)))
		srv.WaitStatus(t, batch, structs.ClientComplete)
		srv.WaitStatus(t, fail, structs.ClientFailed)
		srv.WaitStatus(t, svc, structs.ClientRunning)
		srv.Stop(svc)
		srv.WaitStatus(t, svc, structs.ClientComplete)
		srv.Wait(t, "a heartbeat", func() bool { return srv.Beats(node) > 0 })
	}
	realSrv, simSrv := clientfake.New(), clientfake.New()
	realSrv.TTL, simSrv.TTL = 300*time.Millisecond, 300*time.Millisecond
	var realCalls, simCalls recorder
	realSrv.Registry().Wrap(realCalls.wrap)
	simSrv.Registry().Wrap(simCalls.wrap)

	c, err := client.New(client.Config{
		Node: client.NodeConfig{Version: "0.0.0"}, Storage: client.StorageConfig{DataDir: t.TempDir(), SecretsOnDisk: true},
		Host:    client.HostConfig{Drivers: driver.NewSet(fake.New())},
		Connect: client.Dial(client.DialConfig{Servers: []string{listen(t, realSrv)}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Run(context.Background()) }()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	<-c.Joined()
	work(realSrv, c.ID())

	f, err := New(Config{Count: 1, Servers: []string{listen(t, simSrv)}, JoinOver: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	simSrv.Wait(t, "the node", func() bool { return f.Joined() == 1 })
	work(simSrv, f.Nodes()[0].ID())

	// Only an agent with a data directory differs from one with a copy of its disk.
	want, got := slices.DeleteFunc(realCalls.shape(), func(f string) bool { return f == "Node.Register.Node.Place" }), simCalls.shape()
	if !slices.Equal(want, got) {
		t.Errorf("a real agent says\n  %s\na simulated node says\n  %s", strings.Join(want, "\n  "), strings.Join(got, "\n  "))
	}
}

// recorder notes the methods called and the fields that were not zero in some request.
type recorder struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (r *recorder) wrap(next rpc.Handler) rpc.Handler {
	return func(ctx context.Context, c *rpc.Call) (*rpc.Reply, error) {
		if req, err := c.Request(); err == nil {
			r.mu.Lock()
			if r.seen == nil {
				r.seen = map[string]bool{}
			}
			r.fields(c.Method, reflect.ValueOf(req), 0)
			r.mu.Unlock()
		}
		return next(ctx, c)
	}
}

// fields notes paths of non-zero fields; of the node only its direct fields, because machines differ.
func (r *recorder) fields(path string, v reflect.Value, depth int) {
	if v.IsZero() || depth > 6 {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		r.fields(path, v.Elem(), depth)
	case reflect.Struct:
		for i := range v.NumField() {
			name := path + "." + v.Type().Field(i).Name
			switch v.Type().Field(i).Name {
			case "Resources", "Attributes", "BootID", "Details", "Message", "Version":
				if !v.Field(i).IsZero() {
					r.seen[name] = true
				}
			default:
				r.fields(name, v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Struct {
			r.seen[path] = true
			return
		}
		for i := range v.Len() {
			r.fields(path+"[]", v.Index(i), depth+1)
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			r.fields(path+"{}", v.MapIndex(k), depth+1)
		}
		r.seen[path] = true
	default:
		r.seen[path] = true
	}
}

func (r *recorder) shape() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for k := range r.seen {
		if k != "Node.Register.Node.Meta" { // empty or not
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}

func TestConfigIsChecked(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no node":    {Config{Servers: []string{"x"}}, "want 1 to 100000"},
		"too many":   {Config{Count: CountMax + 1, Servers: []string{"x"}}, "want 1 to 100000"},
		"no server":  {Config{Count: 1}, "no server address"},
		"bad gpus":   {Config{Count: 1, Servers: []string{"x"}, GPUs: "8xFOO"}, "such as 8xH100"},
		"many gpus":  {Config{Count: 1, Servers: []string{"x"}, GPUs: "65xH100"}, "more than 64"},
		"empty gpus": {Config{Count: 1, Servers: []string{"x"}, GPUs: ","}, "such as 8xH100"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(c.cfg)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want one with %q", name, err, c.want)
			}
		})
	}
}

// TestTasksAtRest checks that running tasks have no goroutines, and that they notice their end and requests all the same.
func TestTasksAtRest(t *testing.T) {
	const nodes, each = 3, 60
	srv := clientfake.New()
	f, err := New(Config{Count: nodes, Servers: []string{listen(t, srv)}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	srv.Wait(t, "all nodes", func() bool { return f.Joined() == nodes })
	before := runtime.NumGoroutine()
	job := clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`))
	ids := placeOnEach(t, srv, f, job, each)
	srv.Wait(t, "fewer goroutines than tasks", func() bool { return runtime.NumGoroutine() < before+nodes*each/4 })
	for _, id := range ids {
		srv.Stop(id)
	}
	for _, id := range ids {
		srv.WaitStatus(t, id, structs.ClientComplete)
	}
}

// TestStopOfWaitingStart: a task that waits for its turn to start ends when it is stopped, and never starts.
func TestStopOfWaitingStart(t *testing.T) {
	srv := clientfake.New()
	f, err := New(Config{Count: 1, Servers: []string{listen(t, srv)}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, f)
	srv.Wait(t, "the node", func() bool { return f.Joined() == 1 })
	node, turns := f.Nodes()[0].ID(), cap(runner.NewStarts())
	slow := clientfake.Job("slow", structs.JobService, clientfake.Task("main", "fake", `{"start_block_for": "5s"}`))
	var ids []structs.AllocID
	for range 2 * turns { // twice as many as start at a time, so that a later one has to wait
		ids = append(ids, srv.Place(node, slow))
	}
	for _, id := range ids {
		srv.Wait(t, "a task to be received", func() bool { return len(srv.Seen(id)) > 0 })
	}
	id := srv.Place(node, clientfake.Job("late", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.Wait(t, "the task to be received", func() bool { return len(srv.Seen(id)) > 0 })
	srv.Stop(id)
	a := srv.WaitStatus(t, id, structs.ClientComplete)
	for _, e := range a.TaskStates.Get("main").Events {
		if e.Type == runner.EventStarted {
			t.Error("its command ran after it was stopped")
		}
	}
}

// BenchmarkFootprint prints what a simulated node and an allocation on it cost in memory. It runs
// MUSTER_SIM_NODES nodes (1,000 when unset) with 10 running allocations each.
func BenchmarkFootprint(b *testing.B) {
	count := 1000
	if v, err := strconv.Atoi(os.Getenv("MUSTER_SIM_NODES")); err == nil {
		count = v
	}
	srv := clientfake.New()
	srv.TTL = time.Minute
	addr := listen(b, srv)
	for b.Loop() {
		before := heap()
		f, err := New(Config{Count: count, Servers: []string{addr}})
		if err != nil {
			b.Fatal(err)
		}
		run(b, f)
		srv.Wait(b, "all nodes", func() bool { return f.Joined() == count })
		nodes := heap()
		job := clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`))
		const each = 10
		placeOnEach(b, srv, f, job, each)
		allocs := heap()
		b.ReportMetric(float64(nodes-before)/float64(count), "B/node")
		b.ReportMetric(float64(allocs-nodes)/float64(count*each), "B/alloc")
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.StackInuse)/float64(count*each), "stack-B/alloc")
		b.ReportMetric(float64(runtime.NumGoroutine())/float64(count), "goroutines/node")
	}
}

// heap returns what is in use, stacks included, after collections. The servers in memory are in it too.
func heap() uint64 {
	for range 5 { // each halves the stacks that have become too large
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// placeOnEach places a job so many times on each node, and waits until all of it runs.
func placeOnEach(tb testing.TB, srv *clientfake.Server, f *Fleet, job *structs.Job, each int) (ids []structs.AllocID) {
	tb.Helper()
	for _, n := range f.Nodes() {
		for range each {
			ids = append(ids, srv.Place(n.ID(), job))
		}
	}
	for _, id := range ids {
		srv.WaitStatus(tb, id, structs.ClientRunning)
	}
	return ids
}
