package gpu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/client/gpu/shim"
	"github.com/muster-sched/muster/structs"
)

// Config configures the agent's side. Zero values are the defaults.
type Config struct {
	Exe     string   // program whose main calls MaybeRun; "": the running one
	Library string   // of NVML; "": the driver's usual place
	Env     []string // for the child, in addition to the agent's own
	Ignored []string // UUIDs of GPUs that must not be used
	Proc    string   // directory with the device numbers; "" is /proc
	// PowerFile records which power limits were changed and their original values; "" keeps them in memory.
	PowerFile string
	Kernel    string              // the kernel's log, a second source of errors; "" is /dev/kmsg
	XIDs      map[int64]XIDAction // the operator's actions by error number; they override the defaults
	Groups    bool                // tasks have cgroup2 groups, which a new enough driver can limit
	Log       hclog.Logger
	// OnChange is called, from a separate goroutine, when the result of Devices has changed. It must not block.
	OnChange func()
	// OnError is called, by one goroutine at a time, when the driver reports a GPU error. It must not block.
	OnError func(Report)
	// Owner returns the task of a process; nil: OwnerOf.
	Owner func(pid int) (structs.AllocID, string, bool)

	Every        time.Duration // between samples; 5 s
	WiresEvery   time.Duration // between queries of PCIe and NVLink, which take longer; 10 s
	StaticEvery  time.Duration // between full queries; 10 min
	InitWithin   time.Duration // limit for loading the library and waking the driver; 60 s
	ReplyWithin  time.Duration // limit for a reply; 10 s
	SilentAfter  time.Duration // time without a good reply after which the devices are unhealthy; 20 s
	BackoffMin   time.Duration // pause between children; 1 s, doubled each time
	BackoffMax   time.Duration // 1 min
	RetryMissing time.Duration // interval of the search for a missing library; 5 min
	RecoverAfter time.Duration // how long a quarantined GPU must have no new problem; 10 min
	FirstWithin  time.Duration // how long the first call of Devices waits for the first query; 1 s
}

const (
	wiresEveryDefault = 10 * time.Second
	recoverDefault    = 10 * time.Minute
)

func (c *Config) defaults() {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{
		{&c.Every, 5 * time.Second}, {&c.WiresEvery, wiresEveryDefault}, {&c.StaticEvery, 10 * time.Minute}, {&c.InitWithin, time.Minute}, {&c.ReplyWithin, 10 * time.Second},
		{&c.SilentAfter, 20 * time.Second}, {&c.BackoffMin, time.Second}, {&c.BackoffMax, time.Minute}, {&c.RetryMissing, 5 * time.Minute},
		{&c.RecoverAfter, recoverDefault}, {&c.FirstWithin, time.Second},
	} {
		if *d.at <= 0 {
			*d.at = d.value
		}
	}
	if c.Owner == nil {
		c.Owner = OwnerOf
	}
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Kernel == "" {
		c.Kernel = kernelLog
	}
	if c.Exe == "" {
		c.Exe = "/proc/self/exe" // works even if an upgrade has replaced the file
	}
	if c.Log == nil {
		c.Log = hclog.NewNullLogger()
	}
}

// LibraryEnv is the environment variable with the library that the child loads.
const LibraryEnv = "MUSTER_NVML_LIBRARY"

// zombiesMax is how many children that cannot be killed, because the driver holds them in the kernel, are left behind
// before no further one is started.
const zombiesMax = 3

// NVIDIA watches the NVIDIA GPUs of this machine. It implements fingerprint.DeviceFingerprinter.
type NVIDIA struct {
	cfg   Config
	ctx   context.Context
	stop  context.CancelFunc
	done  chan struct{}
	quiet chan struct{}   // closed when the kernel's log is no longer read
	ask   chan chan error // Refresh
	free  chan time.Duration
	lim   chan limitCall

	powering sync.Mutex // held while power limits are changed

	readsKernel atomic.Bool // the kernel's log is being read

	mu           sync.Mutex
	snapshot     *Snapshot
	samples      map[string]Sample  // by UUID, newest
	sampleAt     time.Time          // of samples
	health       map[string]*health // by UUID
	silent       string             // why there is no answer, or ""
	good         time.Time          // of the last answer
	groups       []structs.DeviceGroup
	shape        []structs.MIGGeometry
	looked       chan struct{} // closed when the first query has ended
	isLooked     bool
	children     int                         // not reaped yet
	pid          int                         // of the child, 0 for none
	starts       int                         // children started
	power        map[string]powerSet         // limits that were changed, by UUID
	xids         map[string]int64            // the last error of each GPU, by UUID
	recentErrors map[errorSource][]time.Time // recent errors by source
}

// New starts watching. Close stops it.
func New(cfg Config) *NVIDIA {
	cfg.defaults()
	n := &NVIDIA{cfg: cfg, done: make(chan struct{}), quiet: make(chan struct{}), ask: make(chan chan error), free: make(chan time.Duration), lim: make(chan limitCall), samples: map[string]Sample{}, health: map[string]*health{}, recentErrors: map[errorSource][]time.Time{}, xids: map[string]int64{}, looked: make(chan struct{})}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.readPower()
	go n.run()
	go func() {
		defer close(n.quiet)
		n.readKernelLog(n.ctx, cfg.Kernel)
	}()
	return n
}

// Close ends the child and the watching.
func (n *NVIDIA) Close() {
	n.stop()
	<-n.done
	<-n.quiet
}

// Name implements fingerprint.DeviceFingerprinter.
func (n *NVIDIA) Name() string { return "nvidia" }

// Devices returns the result of the last query. Only before the first one does it wait, briefly.
func (n *NVIDIA) Devices(ctx context.Context) ([]structs.DeviceGroup, error) {
	select {
	case <-n.looked:
	case <-time.After(n.cfg.FirstWithin):
	case <-ctx.Done():
	case <-n.done:
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.firstOver()
	return n.groups, nil
}

// Geometry returns how the GPUs in MIG mode can be divided.
func (n *NVIDIA) Geometry() []structs.MIGGeometry {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shape
}

// firstOver releases the callers that wait for the first query. The caller holds mu.
func (n *NVIDIA) firstOver() {
	if !n.isLooked {
		n.isLooked = true
		close(n.looked)
	}
}

// Snapshot returns the result of the last full query, or nil. It must not be changed.
func (n *NVIDIA) Snapshot() *Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.snapshot
}

// Verdicts returns the health of each GPU, by UUID.
func (n *NVIDIA) Verdicts() map[string]Verdict {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string]Verdict{}
	if n.snapshot != nil {
		for _, g := range n.snapshot.GPUs {
			out[g.UUID] = n.verdict(g.UUID, -1)
		}
	}
	return out
}

// Samples returns the last measurement of each GPU in bus order, and its time. It does not wait for the driver.
func (n *NVIDIA) Samples() ([]Sample, time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]Sample, 0, len(n.samples))
	if n.snapshot != nil {
		for _, g := range n.snapshot.GPUs {
			if s, ok := n.samples[g.UUID]; ok {
				out = append(out, s)
			}
		}
	}
	return out, n.sampleAt
}

// Refresh measures now and returns the samples, including the processes of each GPU with their memory. It waits for the
// driver, within ctx; the error says why there is no answer.
func (n *NVIDIA) Refresh(ctx context.Context) ([]Sample, error) {
	c := make(chan error, 1)
	select {
	case n.ask <- c:
	case <-ctx.Done():
		return nil, n.noAnswer(ctx.Err())
	case <-n.done:
		return nil, errClosed
	}
	select {
	case err := <-c:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, n.noAnswer(ctx.Err())
	case <-n.done:
		return nil, errClosed
	}
	s, _ := n.Samples()
	return s, nil
}

// Release closes the driver for a while, so that GPUs can be reset, their MIG mode changed or the driver replaced: the
// child ends and none is started before d has passed. The last results are kept.
func (n *NVIDIA) Release(ctx context.Context, d time.Duration) error {
	select {
	case n.free <- d:
		return nil
	case <-ctx.Done():
		return n.noAnswer(ctx.Err())
	case <-n.done:
		return errClosed
	}
}

var errClosed = errors.New("the watch over the GPUs has ended")

func (n *NVIDIA) noAnswer(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent != "" {
		return fmt.Errorf("the NVIDIA driver does not answer: %s", n.silent)
	}
	return fmt.Errorf("the NVIDIA driver does not answer: %w", err)
}

// run keeps a child running.
func (n *NVIDIA) run() {
	defer close(n.done)
	backoff := n.cfg.BackoffMin
	told := false
	for n.ctx.Err() == nil {
		began := time.Now()
		rest, err := n.session()
		if n.ctx.Err() != nil {
			return
		}
		switch {
		case rest > 0: // released deliberately
			n.cfg.Log.Info("the NVIDIA driver was let go", "for", rest)
			n.rest(rest, "it was let go on request")
			backoff = n.cfg.BackoffMin
			continue
		case errors.As(err, new(noLibrary)):
			if !told {
				n.cfg.Log.Info("no NVIDIA GPUs", "why", err)
			}
			told = true
			n.silence("")
			n.rest(n.cfg.RetryMissing, err.Error())
			continue
		}
		told = false
		if time.Since(began) > n.cfg.BackoffMax {
			backoff = n.cfg.BackoffMin
		}
		n.cfg.Log.Warn("the process that asks the NVIDIA driver ended; starting another", "why", err, "in", backoff)
		n.silence(err.Error())
		n.rest(backoff, err.Error())
		backoff = min(2*backoff, n.cfg.BackoffMax)
	}
}

// rest waits without a child.
func (n *NVIDIA) rest(d time.Duration, why string) {
	over := time.After(d)
	tick := time.NewTicker(max(n.cfg.SilentAfter/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-n.ctx.Done():
			return
		case c := <-n.ask:
			c <- fmt.Errorf("the NVIDIA driver does not answer: %s", why)
		case l := <-n.lim:
			l.reply <- limitReply{err: fmt.Errorf("the NVIDIA driver does not answer: %s", why)}
		case d := <-n.free:
			over = time.After(d)
		case <-tick.C:
			n.update()
		}
	}
}

// noLibrary is the error of a machine without the driver's library: it says which.
type noLibrary string

func (e noLibrary) Error() string { return string(e) }

// child is one running process.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   chan message  // closed at its end
	gone  chan struct{} // closed when reaped
	quit  chan struct{} // closed when out is no longer read
	tail  *tail
	next  uint64
	wires time.Time // the last query of PCIe and NVLink
	stuck string
}

func (n *NVIDIA) start() (*child, error) {
	n.mu.Lock()
	left := n.children
	n.mu.Unlock()
	if left >= zombiesMax {
		return nil, fmt.Errorf("%d earlier processes hang in the kernel; the node needs a reboot", left)
	}
	cmd := exec.Command(n.cfg.Exe, verb)
	cmd.Env = append(os.Environ(), n.cfg.Env...)
	if n.cfg.Library != "" {
		cmd.Env = append(cmd.Env, LibraryEnv+"="+n.cfg.Library)
	}
	cmd.Env = append(cmd.Env, "GOMAXPROCS=2")
	c := &child{cmd: cmd, out: make(chan message, 16), gone: make(chan struct{}), quit: make(chan struct{}), tail: &tail{}}
	cmd.Stderr = c.tail
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, c.in = w, in
	if err := cmd.Start(); err != nil {
		r.Close()
		w.Close()
		return nil, fmt.Errorf("start %s %s: %w", n.cfg.Exe, verb, err)
	}
	w.Close()
	n.mu.Lock()
	n.children++
	n.starts++
	n.pid = cmd.Process.Pid
	n.mu.Unlock()
	go func() { // reader
		defer close(c.out)
		defer r.Close()
		b := bufio.NewReader(r)
		for {
			var m message
			if readMessage(b, &m) != nil {
				return
			}
			select {
			case c.out <- m:
			case <-c.quit:
				return
			}
		}
	}()
	go func() { // waiter
		_ = cmd.Wait()
		close(c.gone)
		n.mu.Lock()
		n.children--
		n.mu.Unlock()
	}()
	return c, nil
}

// end ends a child, without waiting for one that the kernel holds.
func (n *NVIDIA) end(c *child) {
	close(c.quit)
	c.in.Close()
	select {
	case <-c.gone: // it ends by itself
	case <-time.After(50 * time.Millisecond):
		_ = c.cmd.Process.Kill()
		select {
		case <-c.gone:
		case <-time.After(time.Second):
		}
	}
	n.mu.Lock()
	n.pid = 0
	n.mu.Unlock()
}

// died returns how a child ended.
func (c *child) died() error {
	select {
	case <-c.gone:
	case <-time.After(time.Second):
		return errors.New("it closed its output")
	}
	why := c.cmd.ProcessState.String()
	if c.cmd.ProcessState.ExitCode() == 127 {
		why += " (a function that the driver lacks)"
	}
	if t := c.tail.why(); t != "" {
		why += ": " + t
	}
	return errors.New(why)
}

// session runs one child until it ends, hangs, or is released for a while.
func (n *NVIDIA) session() (rest time.Duration, err error) {
	c, err := n.start()
	if err != nil {
		return 0, err
	}
	defer n.end(c)
	hello, rest, err := n.await(c, n.cfg.InitWithin, func(m message) bool { return m.Hello || m.ID == 0 && m.Err != "" })
	if rest > 0 || err != nil {
		return rest, err
	}
	if hello.Missing {
		return 0, noLibrary(hello.Err)
	}
	if hello.Err != "" {
		return 0, errors.New(hello.Err)
	}
	tick := time.NewTicker(n.cfg.Every)
	defer tick.Stop()
	var static time.Time
	for {
		if time.Since(static) >= n.cfg.StaticEvery {
			if rest, err := n.request(c, "static"); rest > 0 || err != nil {
				return rest, err
			}
			static = time.Now()
		}
		if rest, err := n.request(c, "dynamic"); rest > 0 || err != nil {
			return rest, err
		}
		if n.changed() { // devices came or went, or a MIG mode changed
			if rest, err := n.request(c, "static"); rest > 0 || err != nil {
				return rest, err
			}
			static = time.Now()
		}
		n.update()
		var reply chan error
		for wait := true; wait; {
			select {
			case <-n.ctx.Done():
				return 0, n.ctx.Err()
			case d := <-n.free:
				return d, nil
			case reply = <-n.ask:
				wait = false
			case l := <-n.lim:
				if rest, err := n.limit(c, l); rest > 0 || err != nil {
					return rest, err
				}
			case <-tick.C:
				wait = false
			case m, ok := <-c.out:
				if !ok {
					return 0, c.died()
				}
				if m.Event != nil {
					n.libraryEvent(*m.Event)
					wait = false
				}
			}
		}
		if reply != nil {
			rest, err := n.request(c, "dynamic")
			reply <- err
			if rest > 0 || err != nil {
				return rest, err
			}
			n.update()
		}
	}
}

// await reads messages until want accepts one, and handles events on the way.
func (n *NVIDIA) await(c *child, within time.Duration, want func(message) bool) (message, time.Duration, error) {
	over := time.NewTimer(within)
	defer over.Stop()
	tick := time.NewTicker(max(n.cfg.SilentAfter/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return message{}, 0, n.ctx.Err()
		case d := <-n.free:
			return message{}, d, nil
		case <-tick.C:
			n.update()
		case <-over.C:
			where := c.stuck
			if where == "" {
				where = "a reply"
			}
			return message{}, 0, fmt.Errorf("%s did not return within %s", where, within)
		case m, ok := <-c.out:
			switch {
			case !ok:
				return message{}, 0, c.died()
			case m.Stuck != "":
				c.stuck = m.Stuck
				n.silence(m.Stuck + " does not return")
			case m.Event != nil:
				n.libraryEvent(*m.Event)
			case want(m):
				c.stuck = ""
				return m, 0, nil
			}
		}
	}
}

func (n *NVIDIA) request(c *child, op string) (time.Duration, error) {
	c.next++
	wires := op == "dynamic" && time.Since(c.wires) >= n.cfg.WiresEvery
	if wires {
		c.wires = time.Now()
	}
	if err := writeMessage(c.in, request{ID: c.next, Op: op, Wires: wires}); err != nil {
		return 0, c.died()
	}
	m, rest, err := n.await(c, n.cfg.ReplyWithin, func(m message) bool { return m.ID == c.next })
	if rest > 0 || err != nil {
		return rest, err
	}
	if m.Err != "" {
		return 0, errors.New(m.Err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if m.Static != nil {
		n.ignore(m.Static)
		n.take(m.Static)
	}
	if op == "dynamic" { // only this proves that all is well: a child may die at each first sample
		n.good, n.silent = time.Now(), ""
		n.measure(slices.DeleteFunc(m.Dynamic, func(s Sample) bool { return slices.Contains(n.cfg.Ignored, s.UUID) }), n.good)
	}
	return 0, nil
}

// ignore removes the ignored GPUs.
func (n *NVIDIA) ignore(s *Snapshot) {
	s.GPUs = slices.DeleteFunc(s.GPUs, func(g Device) bool { return slices.Contains(n.cfg.Ignored, g.UUID) })
}

// take stores a full query. GPUs that can no longer be opened are kept as lost; those that are absent are removed. The
// caller holds mu.
func (n *NVIDIA) take(s *Snapshot) {
	if n.snapshot != nil && s.Lost > 0 {
		for _, old := range n.snapshot.GPUs {
			if !has(s.GPUs, old.UUID) {
				s.GPUs = append(s.GPUs, old)
			}
		}
	}
	sort.Slice(s.GPUs, func(i, k int) bool { return s.GPUs[i].Bus < s.GPUs[k].Bus })
	if n.snapshot == nil && len(s.GPUs) > 0 {
		if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns != hostPIDs {
			n.cfg.Log.Warn("the agent runs in its own pid namespace, and the driver reports pids of the host: the GPU memory of tasks cannot be measured")
		}
	}
	if len(s.Absent) > 0 && n.snapshot == nil {
		n.cfg.Log.Info("the NVIDIA driver lacks optional functions", "functions", s.Absent)
	}
	for i := range s.GPUs { // attributes have the limit of the GPU, not that of its current task
		if p, ok := n.power[s.GPUs[i].UUID]; ok && p.ours(s.GPUs[i].PowerLimitMW) {
			s.GPUs[i].PowerLimitMW = p.WasMW
		}
	}
	s.Enforce = n.backends(s)
	n.snapshot = s
	for uuid := range n.health {
		if !has(s.GPUs, uuid) {
			delete(n.health, uuid)
			delete(n.samples, uuid)
		}
	}
}

// hostPIDs is the name of the initial pid namespace, the same on every kernel.
const hostPIDs = "pid:[4026531836]"

// backends returns what can enforce shares of GPUs here, the strongest first.
func (n *NVIDIA) backends(s *Snapshot) []string {
	var out []string
	if s.Dmem && n.cfg.Groups {
		out = append(out, structs.BackendDmem)
	}
	if shim.Built() == "" {
		out = append(out, structs.BackendShim)
	}
	return append(out, structs.BackendWatch)
}

func has(list []Device, uuid string) bool {
	for _, g := range list {
		if g.UUID == uuid {
			return true
		}
	}
	return false
}

// measure stores samples. The caller holds mu.
func (n *NVIDIA) measure(list []Sample, now time.Time) {
	lost := 0
	seen := map[string]bool{}
	for _, s := range list {
		if s.UUID == "" {
			lost++
			continue
		}
		seen[s.UUID] = true
		fresh := s.Wires != nil && !s.Lost
		if s.Wires = joined(s.Wires, n.samples[s.UUID].Wires, now); fresh {
			n.of(s.UUID).wires(s.Wires, now)
		}
		n.samples[s.UUID] = s
		n.of(s.UUID).sample(s, now)
	}
	n.sampleAt = now
	if n.snapshot != nil {
		n.alike()
	}
	if lost == 0 || n.snapshot == nil {
		return
	}
	for _, g := range n.snapshot.GPUs {
		if !seen[g.UUID] {
			s := Sample{UUID: g.UUID, Lost: true}
			n.samples[g.UUID] = s
			n.of(g.UUID).sample(s, now)
		}
	}
}

func (n *NVIDIA) of(uuid string) *health {
	h := n.health[uuid]
	if h == nil {
		h = &health{}
		n.health[uuid] = h
	}
	return h
}

// changed reports whether the samples contain other devices than the last full query.
func (n *NVIDIA) changed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := map[string]Device{}
	for _, g := range n.snapshot.GPUs {
		known[g.UUID] = g
	}
	for uuid, s := range n.samples {
		g, ok := known[uuid]
		if !ok || !s.Lost && (s.MIGMode != g.MIGMode || s.MIGs != len(g.MIG)) {
			return true
		}
	}
	return len(n.samples) != len(known)
}

// event handles an error report of the library or the kernel's log.
func (n *NVIDIA) event(e Event, kernel bool) {
	n.mu.Lock()
	if e.UUID != "" && e.XID != 0 && !n.heard(e, kernel, time.Now()) {
		act := n.cfg.xidAction(e.XID)
		device := n.of(e.UUID).xid(e, act, n.cfg.xidFails(e.XID), time.Now())
		n.xids[e.UUID] = e.XID
		n.cfg.Log.Warn("GPU error", "gpu", e.UUID, "error", xidText(e.XID), "of_the_device", device)
		if n.cfg.OnError != nil && e.XID != recoveryXID && act != XIDIgnore {
			n.cfg.OnError(n.report(e, device))
		}
	}
	n.mu.Unlock()
	n.update()
}

// silence records that there is no answer, and why; "" if none is expected.
func (n *NVIDIA) silence(why string) {
	n.mu.Lock()
	n.silent = why
	n.mu.Unlock()
	n.update()
}

// verdict returns the health of one GPU. The caller holds mu.
func (n *NVIDIA) verdict(uuid string, gi int64) Verdict {
	now := time.Now()
	if n.silent != "" && now.Sub(n.good) > n.cfg.SilentAfter {
		return Verdict{State: Quarantined, Reason: "the NVIDIA driver does not answer: " + n.silent}
	}
	return n.of(uuid).verdict(now, n.cfg.RecoverAfter, gi)
}

// update computes the groups and calls OnChange if they differ.
func (n *NVIDIA) update() {
	n.mu.Lock()
	now := groups(n.snapshot, n.verdict)
	shape := geometry(n.snapshot)
	changed := !reflect.DeepEqual(now, n.groups) || !reflect.DeepEqual(shape, n.shape)
	if changed {
		n.groups, n.shape = now, shape
	}
	if !n.sampleAt.IsZero() || n.silent == "" && n.starts > 0 && n.pid == 0 {
		n.firstOver()
	}
	n.mu.Unlock()
	if changed && n.cfg.OnChange != nil {
		go n.cfg.OnChange()
	}
}

// tail keeps the end of a child's standard error.
type tail struct {
	mu sync.Mutex
	b  []byte
}

// tailMax holds a crash of a Go program with all its goroutines.
const tailMax = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > tailMax {
		t.b = append([]byte(nil), t.b[len(t.b)-tailMax:]...)
	}
	return len(p), nil
}

// why returns the line that says why a child ended: of a crash its first, else the last.
func (t *tail) why() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	for _, l := range lines {
		if strings.HasPrefix(l, "panic: ") || strings.HasPrefix(l, "fatal error: ") {
			return l
		}
	}
	return lines[len(lines)-1]
}
