package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
	"github.com/muster-sched/muster/internal/nodump"
)

// Limits of a supervisor.
const (
	tasksMax    = 20_000           // running and ended, not destroyed; more are refused
	connsMax    = 64               // connections at once; more are closed
	startsMax   = 16               // starts in progress at once; more wait
	waitMax     = 30 * time.Second // one Wait call; the client asks again
	idleExit    = 60 * time.Second // the supervisor ends after this time without tasks and connections
	protocol    = 6                // version of the calls below; an agent replaces a supervisor of another version
	serviceName = "Supervisor"
)

// scope names an agent directory in the control group tree.
func scope(dir string) string {
	if r, err := filepath.EvalSymlinks(dir); err == nil {
		dir = r
	}
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:6])
}

// Service serves the agent's calls. Its exported methods have the form of net/rpc.
type Service struct {
	dir    string
	groups *cgroup.Manager
	why    string // why there are no groups
	files  *spares
	cores  *corePool
	leases *leases
	bond   *bond       // nil: the supervisor outlives its agent
	starts chan func() // executed by startsMax goroutines, whose stacks have grown as large as a start needs
	quit   chan struct{}
	once   sync.Once

	mu       sync.Mutex
	tasks    map[string]*task    // guarded by mu
	starting map[string]*attempt // guarded by mu
	conns    int                 // guarded by mu
	closed   bool                // starts are refused; guarded by mu
	idle     time.Time           // since when there is nothing to do; guarded by mu
}

// attempt is a start in progress; a second Start of the same id waits for it.
type attempt struct {
	done chan struct{}
	task *task
	err  error
}

// Nothing is an empty argument or reply.
type Nothing struct{}

// Hello is a supervisor's description of itself.
type Hello struct {
	Protocol int
	PID      int
	Groups   string // control group layout ("v1", "v2", "hybrid"), or "" with Why
	Why      string
}

// Reply has a task's status, or an error with its kind.
type Reply struct {
	Status Status
	List   []Status
	Kind   string // "", "unknown-task", "ended", "failed", "lapsed"
	Msg    string
}

// WaitArgs asks for a task's end, or for its status after Max.
type WaitArgs struct {
	ID  string
	Max time.Duration
}

// SignalArgs sends a signal, or with Stop ends the task.
type SignalArgs struct {
	ID      string
	Signal  int
	Stop    bool
	Timeout time.Duration
}

const (
	kindUnknown = "unknown-task"
	kindEnded   = "ended"
	kindFailed  = "failed"
	kindLapsed  = "lapsed"
)

func fail(r *Reply, kind string, err error) error {
	r.Kind, r.Msg = kind, err.Error()
	return nil
}

func (s *Service) find(id string, r *Reply) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tasks[id]
	if t == nil {
		_ = fail(r, kindUnknown, fmt.Errorf("task %.140q is not known on this node", id))
	}
	return t
}

// Hello introduces the supervisor.
func (s *Service) Hello(_ Nothing, r *Hello) error {
	*r = Hello{Protocol: protocol, PID: os.Getpid(), Why: s.why}
	if s.groups != nil {
		r.Groups = s.groups.Layout.Version()
	}
	return nil
}

// Start runs a task, or returns the one that was started under that id.
func (s *Service) Start(spec Spec, r *Reply) error {
	if err := spec.Check(); err != nil {
		return fail(r, kindFailed, err)
	}
	s.mu.Lock()
	if t := s.tasks[spec.ID]; t != nil {
		s.mu.Unlock()
		r.Status = t.status()
		return nil
	}
	if a := s.starting[spec.ID]; a != nil {
		s.mu.Unlock()
		<-a.done
		if a.err != nil {
			return fail(r, kindFailed, a.err)
		}
		r.Status = a.task.status()
		return nil
	}
	if s.closed {
		s.mu.Unlock()
		return fail(r, kindFailed, errors.New("the agent of this supervisor is gone"))
	}
	if len(s.tasks)+len(s.starting) >= tasksMax {
		s.mu.Unlock()
		return fail(r, kindFailed, fmt.Errorf("this node's supervisor holds %d tasks, its limit", tasksMax))
	}
	if err := s.leases.check(spec.Lease); err != nil {
		s.mu.Unlock()
		return fail(r, leaseKind(err), err)
	}
	a := &attempt{done: make(chan struct{})}
	s.starting[spec.ID] = a
	s.mu.Unlock()

	s.starts <- func() {
		t, err := start(filepath.Join(s.dir, "t", spec.ID), &spec, s.groups, s.files, s.cores)
		s.mu.Lock()
		delete(s.starting, spec.ID)
		if err == nil {
			s.tasks[spec.ID] = t
			s.keep(t)
		}
		s.mu.Unlock()
		a.task, a.err = t, err
		close(a.done)
	}
	<-a.done
	if a.err != nil {
		return fail(r, kindFailed, a.err)
	}
	r.Status = a.task.status()
	return nil
}

// starter carries out starts until the process ends.
func (s *Service) starter() {
	for fn := range s.starts {
		fn()
	}
}

// Inspect returns a task's status.
func (s *Service) Inspect(id string, r *Reply) error {
	if t := s.find(id, r); t != nil {
		r.Status = t.status()
	}
	return nil
}

// List returns the status of every task.
func (s *Service) List(_ Nothing, r *Reply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tasks {
		r.List = append(r.List, t.status())
	}
	return nil
}

// session serves the calls of one connection.
type session struct {
	*Service
	conn *link
}

// link is a connection; gone is closed when nothing more can be read from it.
type link struct {
	*net.UnixConn
	gone chan struct{}
	once sync.Once
}

func (l *link) Read(b []byte) (int, error) {
	n, err := l.UnixConn.Read(b)
	if err != nil {
		l.once.Do(func() { close(l.gone) })
	}
	return n, err
}

// Wait reports the end of a task. It returns when the task has ended, the time is over, or the caller is gone: the calls
// of killed agents would otherwise hold their connections.
func (s *session) Wait(a WaitArgs, r *Reply) error {
	t := s.find(a.ID, r)
	if t == nil {
		return nil
	}
	timer := time.NewTimer(min(a.Max, waitMax))
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	case <-s.conn.gone:
	}
	if st := t.status(); st.Ended { // the caller has the rest since the start
		r.Status.Ended, r.Status.Exit = true, st.Exit
	}
	return nil
}

// Signal sends a signal to a task's main process, or stops the task.
func (s *Service) Signal(a SignalArgs, r *Reply) error {
	t := s.find(a.ID, r)
	if t == nil {
		return nil
	}
	if a.Stop {
		if err := t.stop(syscall.Signal(a.Signal), a.Timeout); err != nil {
			return fail(r, kindFailed, err)
		}
	} else if err := t.signal(syscall.Signal(a.Signal)); err == syscall.ESRCH {
		return fail(r, kindEnded, errors.New("task is not running"))
	} else if err != nil {
		return fail(r, kindFailed, fmt.Errorf("send signal %d: %w", a.Signal, err))
	}
	r.Status = t.status()
	return nil
}

// Destroy kills what is left of a task and forgets it. Destroying an unknown task succeeds.
func (s *Service) Destroy(id string, r *Reply) error {
	var none Reply
	t := s.find(id, &none)
	if t == nil {
		return nil
	}
	if err := t.stop(syscall.SIGKILL, 0); err != nil {
		return fail(r, kindFailed, err)
	}
	s.mu.Lock()
	delete(s.tasks, id)
	s.mu.Unlock()
	if t.synced != nil {
		t.synced.Stop()
	}
	if err := s.files.put(t.path, t.ours); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(r, kindFailed, fmt.Errorf("destroy task %s: %w", id, err))
	}
	return nil
}

// Retire ends the supervisor and leaves every task running, to be taken over by another one.
func (s *Service) Retire(_ Nothing, _ *Nothing) error {
	s.once.Do(func() { close(s.quit) })
	return nil
}

// recover takes over the tasks of an earlier supervisor.
func (s *Service) recover() error {
	root := filepath.Join(s.dir, "t")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	var err error
	if s.files, err = openSpares(filepath.Join(s.dir, "spare")); err != nil {
		return err
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	sem := make(chan struct{}, 16)
	for _, e := range entries {
		wg.Add(1)
		sem <- struct{}{}
		go func() {
			defer wg.Done()
			defer func() { <-sem }()
			path := filepath.Join(root, e.Name())
			t, err := adopt(path, s.cores)
			if err != nil {
				// No readable state: nothing was started yet, or the disk lost it. All processes in its group belong to
				// it, by the group's name.
				fmt.Fprintf(os.Stderr, "supervisor: task %s: %v; it is killed and forgotten\n", e.Name(), err)
				if s.groups != nil && validID.MatchString(e.Name()) {
					if g, err := s.groups.Create(e.Name(), cgroup.Limits{}); err == nil {
						g.Kill(5 * time.Second)
						g.Remove()
					}
				}
				os.Remove(path)
				return
			}
			s.mu.Lock()
			s.tasks[t.mem.ID] = t
			s.mu.Unlock()
			s.keep(t)
		}()
	}
	wg.Wait()
	return nil
}

// socketPath returns a path of the socket that is short enough for an address with any directory: it uses an open
// descriptor of the directory, which must stay open.
func socketPath(dir *os.File) string { return fmt.Sprintf("/proc/self/fd/%d/sock", dir.Fd()) }

// Relax lets the kernel wake this process's threads a little late. The Go runtime has a thread that monitors threads in
// system calls. A supervisor, or an agent that starts tasks or syncs a log, is in system calls most of the time; the
// monitor then wakes every 20 us, which costs more than what it monitors. Tasks get the kernel's default slack back
// (Spec.program).
func Relax(slack time.Duration) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads { // later threads inherit it
		_ = procfile.Write("/proc/"+t.Name()+"/timerslack_ns", strconv.FormatInt(slack.Nanoseconds(), 10))
	}
}

// How late threads may wake.
const (
	TaskSlack   = 300 * time.Microsecond // of a process that starts tasks
	ServerSlack = time.Millisecond       // of one that does not; a sync of the log takes about as long
)

const taskTimerSlack = 50_000 // of tasks: the kernel's default, in ns

// run is the supervisor process. bond is nil for one that outlives its agent.
func run(ctx context.Context, dir string, bond *bond) error {
	debug.SetGCPercent(400) // there is little garbage, but every collection scans every task's stacks
	Relax(TaskSlack)
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // another supervisor serves this directory already
	}
	s := &Service{dir: dir, bond: bond, tasks: map[string]*task{}, starting: map[string]*attempt{}, starts: make(chan func()), quit: make(chan struct{}), idle: time.Now()}
	if m, err := cgroup.Open(scope(dir)); err != nil {
		s.why = err.Error()
	} else {
		m.Sweep()
		s.groups = m
	}
	s.cores = newCorePool(s.groups)
	if s.leases, err = openLeases(dir); err != nil {
		return err
	}
	go s.leases.run()
	if err := s.recoverGuards(); err != nil {
		return fmt.Errorf("take up guarded containers: %w", err)
	}
	if err := s.recover(); err != nil {
		return fmt.Errorf("take up tasks: %w", err)
	}
	s.cores.apply() // an owner may have ended while no supervisor ran
	os.Remove(filepath.Join(dir, "sock"))
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(d), Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l.SetUnlinkOnClose(false) // a successor may have created its own by then
	for range startsMax {
		go s.starter()
	}
	go s.accept(l)
	tick := time.NewTicker(idleExit / 4)
	defer tick.Stop()
	gone := bond.gone()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-gone:
			l.Close()
			s.cleanUp()
			return nil
		case <-s.quit:
			l.Close()
			time.Sleep(20 * time.Millisecond) // let the answer to Retire be sent
			return nil
		case <-tick.C:
			s.mu.Lock()
			if s.busy(d) {
				s.idle = time.Now()
			}
			over := time.Since(s.idle) > idleExit
			s.mu.Unlock()
			if over {
				l.Close()
				if s.groups != nil {
					s.groups.Close()
				}
				return nil
			}
		}
	}
}

// busy reports whether the supervisor is needed. The caller holds mu. Once its directory is deleted, no agent comes for
// tasks that have ended.
func (s *Service) busy(dir *os.File) bool {
	if s.bond != nil {
		return true
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err == nil && st.Nlink == 0 {
		for _, t := range s.tasks {
			select {
			case <-t.done:
			default:
				return true
			}
		}
		return len(s.starting) > 0
	}
	return len(s.tasks) > 0 || len(s.starting) > 0 || s.conns > 0 || s.leases.count() > 0
}

func (s *Service) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			select {
			case <-s.quit:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: try again when some are free
			continue
		}
		s.mu.Lock()
		full := s.conns >= connsMax
		if !full {
			s.conns++
		}
		s.mu.Unlock()
		if full || !peerAllowed(c) {
			c.Close()
			if !full {
				s.mu.Lock()
				s.conns--
				s.mu.Unlock()
			}
			continue
		}
		go func() {
			s.serve(c)
			s.mu.Lock()
			s.conns--
			s.mu.Unlock()
		}()
	}
}

// serve answers the calls of a connection until it ends.
func (s *Service) serve(c *net.UnixConn) {
	l := &link{UnixConn: c, gone: make(chan struct{})}
	srv := rpc.NewServer()
	if err := srv.RegisterName(serviceName, &session{s, l}); err != nil {
		panic(err) // the methods are not of the form that package rpc wants
	}
	srv.ServeConn(l)
}

// peerAllowed admits root and the user that the supervisor runs as.
func peerAllowed(c *net.UnixConn) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	rc.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
	})
	return ok
}

// MaybeRun must be called first in main (and in TestMain of programs that run tasks). If the process was started as a
// supervisor (`muster supervisor -dir <directory>`, a hidden verb), it serves and never returns. clean removes the
// directory of an agent that is gone and has asked for that (OpenBound); without it the directory stays.
func MaybeRun(clean ...func(dir string) error) {
	dir, root, agent, ok := parseArgs(os.Args)
	if !ok {
		return
	}
	var b *bond
	if root != "" {
		remove := func(string) error { return nil }
		if len(clean) > 0 {
			remove = clean[0]
		}
		b = bind(agent, root, remove)
	}
	// Caught, not ignored: ignored signals would stay ignored in every task.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	complain := func(err error) {
		fmt.Fprintf(os.Stderr, "%s supervisor: %v\n", time.Now().UTC().Format(time.RFC3339), err)
	}
	if err := nodump.Set(); err != nil { // it gets the environments of tasks
		complain(err)
	}
	err := run(ctx, dir, b)
	cancel()
	if err != nil {
		complain(err)
		os.Exit(1)
	}
	os.Exit(0)
}
