package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
)

// Errors that callers distinguish.
var (
	ErrUnknownTask = errors.New("task is not known on this node")
	ErrEnded       = errors.New("task is not running")
)

// StartError says why a task could not be started; the supervisor itself works.
type StartError struct{ Msg string }

func (e *StartError) Error() string { return e.Msg }

const (
	readyWithin = 30 * time.Second // limit for a new supervisor's first answer, also on an overloaded machine
	attemptsMax = 5                // of one call, across supervisors that die meanwhile
)

// Client calls the supervisor of one directory and starts it if there is none. All calls are idempotent: one that dies
// with its supervisor is repeated on the next. It is safe for concurrent use.
type Client struct {
	dir  string
	exe  string
	root string // what the supervisor removes when this process is gone; "": it outlives this process

	renewed atomic.Int64 // the newest renewal, as Boottime

	mu    sync.Mutex
	conn  *rpc.Client // or nil; guarded by mu
	hello Hello       // of conn; guarded by mu
	shut  bool        // guarded by mu

	groupsOnce sync.Once
	layout     cgroup.Layout
	devices    string
	groupsErr  error
}

// Open prepares the directory (with mode 0700). The first call starts the supervisor. exe is the program whose main
// calls MaybeRun; "" is the running one.
func Open(dir, exe string) (*Client, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make supervisor directory: %w", err)
	}
	if st, err := os.Lstat(dir); err != nil {
		return nil, err
	} else if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("supervisor directory %s belongs to uid %d, want %d: its owner controls the tasks", dir, sys.Uid, os.Geteuid())
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	if exe == "" {
		exe = "/proc/self/exe" // works even if an upgrade has replaced the file
	}
	return &Client{dir: dir, exe: exe}, nil
}

// OpenBound is Open for an agent that has no successor: when this process ends without Shutdown, the supervisor ends all
// tasks and has root, the agent's directory, removed by the function given to MaybeRun. It starts the supervisor, so that
// this holds from now on.
func OpenBound(ctx context.Context, dir, exe, root string) (*Client, error) {
	c, err := Open(dir, exe)
	if err != nil {
		return nil, err
	}
	if c.root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	if _, err := c.Hello(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Dir returns the directory that the supervisor serves.
func (c *Client) Dir() string { return c.dir }

// Groups returns the control group layout of the tasks, without starting a supervisor, or the reason why they have
// none.
func (c *Client) Groups() (cgroup.Layout, error) {
	c.groupsOnce.Do(func() {
		m, err := cgroup.Open(scope(c.dir))
		if err != nil {
			c.groupsErr = err
			return
		}
		c.layout, c.devices = m.Layout, m.Devices()
	})
	return c.layout, c.groupsErr
}

// LeafV2 returns the path of a task's cgroup2 group, existing or not; "" without cgroup2.
func (c *Client) LeafV2(taskID string) string {
	l, err := c.Groups()
	if err != nil || l.V2 == "" || !validID.MatchString(taskID) {
		return ""
	}
	return cgroup.Leaf(l.V2, scope(c.dir), taskID)
}

// Devices returns how device access is restricted here: cgroup.DevicesByBPF, cgroup.DevicesByV1 or
// cgroup.DevicesByNone.
func (c *Client) Devices() string {
	if _, err := c.Groups(); err != nil {
		return cgroup.DevicesByNone
	}
	return c.devices
}

// Close closes the connection. The supervisor and the tasks keep running.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shut = true
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
	return nil
}

// Hello connects and returns the supervisor's introduction.
func (c *Client) Hello(ctx context.Context) (Hello, error) {
	_, err := c.connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hello, err
}

// Retire makes the supervisor end and leave the tasks running; the next call starts another one.
func (c *Client) Retire(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	err = conn.Call(serviceName+".Retire", Nothing{}, &Nothing{})
	c.drop(conn)
	if err != nil && !broken(err) {
		return err
	}
	return nil
}

// Shutdown destroys every task, ends the supervisor and removes its control groups, for an agent that must not leave
// anything running (-dev, tests, `nodesim`). The directory stays.
func (c *Client) Shutdown(ctx context.Context) error {
	list, err := c.List(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, len(list))
	var wg sync.WaitGroup
	sem := make(chan struct{}, 16)
	for i, s := range list {
		sem <- struct{}{}
		wg.Go(func() {
			errs[i] = c.Destroy(ctx, s.ID)
			<-sem
		})
	}
	wg.Wait()
	h, err := c.Hello(ctx)
	if err != nil {
		return err
	}
	st, serr := procfile.StatOf(h.PID)
	if err := c.Retire(ctx); err != nil {
		return err
	}
	c.Close()
	for deadline := time.Now().Add(5 * time.Second); serr == nil && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if now, err := procfile.StatOf(h.PID); err != nil || now.Start != st.Start || now.State == 'Z' {
			break
		}
	}
	if m, err := cgroup.Open(scope(c.dir)); err == nil {
		if g, err := m.Create(".supervisor", cgroup.Limits{}); err == nil {
			g.Remove()
		}
		m.Close()
	}
	return errors.Join(errs...)
}

func (c *Client) drop(conn *rpc.Client) {
	conn.Close()
	c.mu.Lock()
	if c.conn == conn {
		c.conn = nil
	}
	c.mu.Unlock()
}

// connect returns the connection, after starting a supervisor if none answers.
func (c *Client) connect(ctx context.Context) (*rpc.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shut {
		return nil, errors.New("supervisor client is closed")
	}
	if c.conn != nil {
		return c.conn, nil
	}
	d, err := os.Open(c.dir)
	if err != nil {
		return nil, fmt.Errorf("open supervisor directory: %w", err)
	}
	defer d.Close()
	deadline := time.Now().Add(readyWithin)
	wait := time.Millisecond
	// One that is spawned ends if another holds the lock: one that answers soon, or one that was killed and that the kernel has
	// not ended yet, which takes seconds on a busy machine. So it is spawned again until the deadline, ever more rarely.
	var spawned <-chan error
	var respawn time.Time
	pause := 5 * time.Millisecond
	retired := false
	for {
		nc, err := net.DialTimeout("unix", socketPath(d), time.Second)
		if err == nil {
			conn := rpc.NewClient(nc)
			var h Hello
			if err = conn.Call(serviceName+".Hello", Nothing{}, &h); err == nil {
				if h.Protocol == protocol {
					c.conn, c.hello = conn, h
					return c.conn, nil
				}
				// Another version of the program: it hands its tasks over to a supervisor of this version.
				if !retired {
					retired = true
					_ = conn.Call(serviceName+".Retire", Nothing{}, &Nothing{})
				}
				err = fmt.Errorf("it speaks protocol %d, want %d, and does not retire", h.Protocol, protocol)
			}
			conn.Close()
		} else if spawned == nil && !time.Now().Before(respawn) {
			if spawned, err = c.spawn(); err != nil {
				return nil, err
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("supervisor does not answer within %s: %w (see %s)", readyWithin, err, filepath.Join(c.dir, "supervisor.log"))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-spawned:
			spawned, respawn = nil, time.Now().Add(pause)
			pause = min(2*pause, time.Second)
		case <-time.After(wait):
			wait = min(wait*2, 50*time.Millisecond)
		}
	}
}

// spawn starts a supervisor in a separate session and, if possible, control group.
func (c *Client) spawn() (<-chan error, error) {
	logPath := filepath.Join(c.dir, "supervisor.log")
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if st, err := os.Stat(logPath); err == nil && st.Size() > 1<<20 {
		flags |= os.O_TRUNC
	}
	logFile, err := os.OpenFile(logPath, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open supervisor log: %w", err)
	}
	defer logFile.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	attr := &os.ProcAttr{Dir: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Files: []*os.File{null, logFile, logFile}, Sys: &syscall.SysProcAttr{Setsid: true}}
	argv := append([]string{"muster", "supervisor", "-dir", c.dir}, bondArgs(c.root)...)
	var p *os.Process
	if leaf, err := supervisorGroup(c.dir); err == nil {
		sys := *attr.Sys
		sys.UseCgroupFD, sys.CgroupFD = true, int(leaf.Fd())
		inGroup := *attr
		inGroup.Sys = &sys
		p, err = os.StartProcess(c.exe, argv, &inGroup)
		leaf.Close()
		if err != nil {
			p = nil
		}
	}
	if p == nil {
		if p, err = os.StartProcess(c.exe, argv, attr); err != nil {
			return nil, fmt.Errorf("start supervisor: %w", err)
		}
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.Wait()
		done <- err
	}()
	return done, nil
}

func supervisorGroup(dir string) (*os.File, error) {
	m, err := cgroup.Open(scope(dir))
	if err != nil {
		return nil, err
	}
	if m.Layout.V2 == "" {
		return nil, errors.New("no cgroup2")
	}
	// A task's id cannot begin with a dot.
	g, err := m.Create(".supervisor", cgroup.Limits{})
	if err != nil {
		return nil, err
	}
	return os.Open(g.Main)
}

func broken(err error) bool {
	return errors.Is(err, rpc.ErrShutdown) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

func (c *Client) call(ctx context.Context, method string, args any, r *Reply) error {
	for try := 1; ; try++ {
		conn, err := c.connect(ctx)
		if err != nil {
			return err
		}
		*r = Reply{}
		call := conn.Go(serviceName+"."+method, args, r, make(chan *rpc.Call, 1))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-call.Done:
		}
		if call.Error == nil {
			break
		}
		if !broken(call.Error) {
			return fmt.Errorf("supervisor: %w", call.Error)
		}
		c.drop(conn)
		if try == attemptsMax {
			return fmt.Errorf("supervisor died %d times under the same call: %w", try, call.Error)
		}
	}
	switch r.Kind {
	case "":
		return nil
	case kindUnknown:
		return ErrUnknownTask
	case kindEnded:
		return ErrEnded
	case kindLapsed:
		return ErrLapsed
	}
	return &StartError{r.Msg}
}

// Start runs a task and returns when its command has been executed.
func (c *Client) Start(ctx context.Context, spec *Spec) (Status, error) {
	if spec.Lease != nil {
		lease := *spec.Lease
		lease.Renewed = c.Renewed()
		leased := *spec
		leased.Lease, spec = &lease, &leased
	}
	r := new(Reply)
	err := c.call(ctx, "Start", *spec, r)
	if err != nil {
		return Status{}, err
	}
	return r.Status, nil
}

// Renew records that the servers answered a heartbeat that was sent at that Boottime.
func (c *Client) Renew(ctx context.Context, at time.Duration) error {
	c.renewed.Store(int64(at))
	return c.call(ctx, "Renew", RenewArgs{At: at}, new(Reply))
}

// Renewed returns the newest renewal through this client, 0 for none.
func (c *Client) Renewed() time.Duration { return time.Duration(c.renewed.Load()) }

// Guard puts a container under the lease of its allocation.
func (c *Client) Guard(ctx context.Context, g *Guard) error {
	asked := *g
	asked.Lease.Renewed = c.Renewed()
	return c.call(ctx, "Guard", asked, new(Reply))
}

// Unguard forgets a container.
func (c *Client) Unguard(ctx context.Context, id string) error {
	return c.call(ctx, "Unguard", id, new(Reply))
}

// Lapsed reports whether an allocation was ended because contact with the servers was lost for too long.
func (c *Client) Lapsed(ctx context.Context, alloc string) (bool, error) {
	err := c.call(ctx, "Lapsed", alloc, new(Reply))
	if errors.Is(err, ErrLapsed) {
		return true, nil
	}
	return false, err
}

// Inspect returns a task's status.
func (c *Client) Inspect(ctx context.Context, id string) (Status, error) {
	r := new(Reply)
	if err := c.call(ctx, "Inspect", id, r); err != nil {
		return Status{}, err
	}
	return r.Status, nil
}

// List returns the status of every task, unordered.
func (c *Client) List(ctx context.Context) ([]Status, error) {
	r := new(Reply)
	if err := c.call(ctx, "List", Nothing{}, r); err != nil {
		return nil, err
	}
	return r.List, nil
}

// Wait returns when the task has ended, its exit is on disk and its logs are complete.
func (c *Client) Wait(ctx context.Context, id string) (Exit, error) {
	for {
		r := new(Reply)
		if err := c.call(ctx, "Wait", WaitArgs{ID: id, Max: waitMax}, r); err != nil {
			return Exit{}, err
		}
		if r.Status.Ended {
			return r.Status.Exit, nil
		}
	}
}

// Signal sends a signal to the task's main process.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	return c.call(ctx, "Signal", SignalArgs{ID: id, Signal: int(sig)}, new(Reply))
}

// Stop sends sig, and after timeout kills everything that the task started. It returns when nothing is left.
func (c *Client) Stop(ctx context.Context, id string, sig syscall.Signal, timeout time.Duration) error {
	return c.call(ctx, "Signal", SignalArgs{ID: id, Signal: int(sig), Stop: true, Timeout: timeout}, new(Reply))
}

// Destroy kills and forgets a task.
func (c *Client) Destroy(ctx context.Context, id string) error {
	return c.call(ctx, "Destroy", id, new(Reply))
}
