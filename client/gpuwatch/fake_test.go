package gpuwatch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/agentstore"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/notify"
	"github.com/muster-sched/muster/structs"
)

const (
	mib   = 1 << 20
	gpu1  = "GPU-1"
	train = "train" // the task of every fake allocation
)

// fakeNode is a node with one GPU. Its allocations and samples are what a test says.
type fakeNode struct {
	wg      sync.WaitGroup
	reports chan gpu.Report // made by run, within the bubble
	hang    chan struct{}   // the same; for drivers that hang

	mu      sync.Mutex
	node    structs.Node
	allocs  []*fakeAlloc
	samples []gpu.Sample
	down    error // the driver's answer, or nil
	asked   int   // samples taken
	events  []structs.NodeEvent
	stored  []*agentstore.GPUUses
	full    error // the disk's answer, or nil
}

// newNode makes a node whose GPU has 1,000 MiB.
func newNode(enforce string) *fakeNode {
	n := &fakeNode{}
	n.node = structs.Node{ID: structs.NodeID{7}, Name: "n1"}
	n.node.Resources.Devices = []structs.DeviceGroup{{
		Attributes: map[string]structs.Attribute{structs.GPUEnforceAttribute: {Str: enforce}},
		Instances:  []structs.DeviceInstance{{ID: gpu1, Healthy: true}},
	}}
	n.use(0)
	return n
}

// use makes every allocation's process hold so many MiB of the GPU. The pid of a process is its allocation's number.
func (n *fakeNode) use(usedMiB int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := gpu.Sample{UUID: gpu1, TotalBytes: 1000 * mib, UsedBytes: usedMiB * mib, UtilPercent: 50, EnergyMJ: -1}
	for _, a := range n.allocs {
		s.Processes = append(s.Processes, gpu.Process{PID: int(a.alloc.ID[0]), Bytes: usedMiB * mib, SM: 50})
	}
	n.samples = []gpu.Sample{s}
}

func (n *fakeNode) Samples(context.Context) ([]gpu.Sample, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	return n.samples, n.down
}

func (n *fakeNode) Node() *structs.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &n.node
}

func (n *fakeNode) Allocs() []Alloc {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []Alloc
	for _, a := range n.allocs {
		out = append(out, a)
	}
	return out
}

func (n *fakeNode) Alloc(id structs.AllocID) Alloc {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.allocs {
		if a.alloc.ID == id {
			return a
		}
	}
	return nil
}

func (n *fakeNode) SendEvents(_ context.Context, events []structs.NodeEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, events...)
}

func (n *fakeNode) PutGPUUses(u *agentstore.GPUUses) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stored = append(n.stored, u)
	return n.full
}

func (n *fakeNode) Go(fn func()) bool {
	n.wg.Go(fn)
	return true
}

// place adds an allocation whose task has the GPU: a share of it, or all of it for 0 MiB. The task runs.
func (n *fakeNode) place(backend string, mib int64) *fakeAlloc {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := &fakeAlloc{run: "run", dir: ""}
	a.alloc = structs.Allocation{ID: structs.AllocID{byte(len(n.allocs) + 1)}, JobID: "job", Group: "g", Namespace: "default"}
	a.alloc.Grants = []structs.Grant{{Task: train, Device: "nvidia/gpu/H100", Instance: gpu1, MemoryMiB: mib, Backend: backend}}
	n.allocs = append(n.allocs, a)
	return a
}

// fakeAlloc is an allocation with one task, "train". It records what is done to it.
type fakeAlloc struct {
	alloc structs.Allocation
	dir   string // of the shim

	mu        sync.Mutex
	run       string // id of the run; "" while the task does not run
	ended     bool
	suspended bool
	started   structs.LogTime
	request   *structs.GPURequest
	broken    error // answer to a notification, or nil
	log       []string
}

func (a *fakeAlloc) add(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log = append(a.log, fmt.Sprintf(format, args...))
}

// said returns what was done to the allocation since the last call.
func (a *fakeAlloc) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := strings.Join(a.log, "\n")
	a.log = nil
	return out
}

func (a *fakeAlloc) set(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn()
}

func get[T any](a *fakeAlloc, v *T) T {
	a.mu.Lock()
	defer a.mu.Unlock()
	return *v
}

func (a *fakeAlloc) Alloc() *structs.Allocation       { return &a.alloc }
func (a *fakeAlloc) Ended() bool                      { return get(a, &a.ended) }
func (a *fakeAlloc) RunID(string) string              { return get(a, &a.run) }
func (a *fakeAlloc) Active(string) bool               { return get(a, &a.run) != "" && !get(a, &a.suspended) }
func (a *fakeAlloc) StartedAt(string) structs.LogTime { return get(a, &a.started) }
func (a *fakeAlloc) ShimDir(string) string            { return a.dir }
func (a *fakeAlloc) Signal(_ context.Context, task, signal string) error {
	a.add("signal %s", signal)
	return get(a, &a.broken)
}

func (a *fakeAlloc) NotifyBy(_ context.Context, task string, command []string) error {
	a.add("run %v", command)
	return get(a, &a.broken)
}

func (a *fakeAlloc) GPURequest(string) (*structs.GPURequest, []structs.Grant) {
	return get(a, &a.request), a.alloc.Grants
}

func (a *fakeAlloc) PowerLimits(string) map[string]int64 {
	if r := get(a, &a.request); r != nil && r.PowerLimitW > 0 {
		return map[string]int64{gpu1: r.PowerLimitW}
	}
	return nil
}

func (a *fakeAlloc) NoteGPU(_ context.Context, task, kind, message string, details ...string) {
	a.add("%s: %s", kind, message)
}

func (a *fakeAlloc) ExceedGPU(task, uuid string, quotaMiB, usedMiB int64) {
	a.add("exceeds: %d of %d MiB of %s", usedMiB, quotaMiB, uuid)
	a.set(func() { a.ended = true })
}

func (a *fakeAlloc) LoseGPU(task, uuid, why string) {
	a.add("lost %s: %s", uuid, why)
	a.set(func() { a.ended = true })
}

// targets records notices.
type target struct {
	mu   sync.Mutex
	list []notify.Notice
}

func (*target) Name() string { return "test" }

func (t *target) Deliver(_ context.Context, n notify.Notice) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, n)
	return nil
}

// said returns the notices since the last call, one a line.
func (t *target) said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, n := range t.list {
		out = append(out, fmt.Sprintf("%s %s %d at %d%% task=%s", n.Scope, n.State, n.Threshold, n.Percent, n.Task))
	}
	t.list = nil
	return strings.Join(out, "\n")
}

// watching is a Watch that runs in virtual time.
type watching struct {
	*Watch
	t *testing.T
}

// run runs body next to a Watch of the node, in virtual time. Without cfg.Samples the node's are used.
func run(t *testing.T, node *fakeNode, cfg Config, body func(w watching)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if cfg.Device.Samples == nil {
			cfg.Device.Samples = node.Samples
		}
		node.reports, node.hang = make(chan gpu.Report), make(chan struct{})
		cfg.Device.Reports = node.reports
		w := New(cfg, node, hclog.NewNullLogger())
		w.watcher.Owner = func(pid int) (structs.AllocID, string, bool) { return structs.AllocID{byte(pid)}, train, true }
		w.Restore(nil, "boot-1")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.Run(ctx)
		}()
		body(watching{w, t})
		cancel()
		<-done
		node.wg.Wait()
	})
}

// wait lets the watch run for so long.
func (w watching) wait(d time.Duration) {
	time.Sleep(d + time.Millisecond) // virtual; a tick at the end of d is included
	synctest.Wait()
}

// want compares what was done to an allocation.
func (w watching) want(a *fakeAlloc, when, want string) {
	w.t.Helper()
	if got := a.said(); got != want {
		w.t.Errorf("%s:\n got %q\nwant %q", when, got, want)
	}
}

var errDown = errors.New("the driver does not answer")
