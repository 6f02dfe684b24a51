package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A node that has lost contact with the servers ends the tasks of groups with stop_on_client_after by itself, because
// the servers replace them. Naive: the agent ends them. But the agent may be stopped, killed or suspended while they
// run. So the supervisor ends them, which outlives the agent, unless the agent renews the lease in time. The agent
// renews it with the moment at which it *sent* the last heartbeat that the servers answered: what the servers know
// about the contact is never older. All of it goes by CLOCK_BOOTTIME, which neither jumps nor stops during suspend.
//
//	renewed ----------- Limit -----------> signal -- Timeout --> SIGKILL
//
// After that nothing of the allocation starts again (lapsed), even if contact returns: the servers may have replaced
// it. The last renewal is on disk, so that a supervisor that was killed, and started by an agent without contact,
// continues to count. Nothing ends tasks while both the supervisor and the agent that would start another are gone or stopped.

// Lease limits how long a task runs without contact between its node and the servers.
type Lease struct {
	Group   string        // the allocation
	Limit   time.Duration // stop_on_client_after
	Signal  int           // ends the task
	Timeout time.Duration // from the signal to SIGKILL
	Renewed time.Duration // the newest renewal that the caller of Start knows
	Lapsed  bool          `json:",omitempty"` // its time was over
}

// ErrLapsed means that an allocation was ended, or may not start, because contact with the servers was lost for too long.
var ErrLapsed = errors.New("the servers have been out of reach for longer than stop_on_client_after allows")

// Boottime returns the time since the machine started, suspend included: the clock of leases.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return time.Duration(time.Now().UnixNano()) // the kernel lacks this clock
	}
	return time.Duration(ts.Nano())
}

// leaseSize is the size of the file with the last renewal. It is overwritten in one write that needs no new space.
const leaseSize = 64

// leases is the node's lease: when it was renewed, and which allocations lapsed.
type leases struct {
	path  string
	timer *os.File // a timer of CLOCK_BOOTTIME
	clock func() time.Duration

	mu      sync.Mutex
	renewed time.Duration        // guarded by mu
	written bool                 // renewed is on disk; guarded by mu
	armed   time.Duration        // when timer fires, 0 for never; guarded by mu
	lapsed  map[string]bool      // guarded by mu
	held    map[string]*heldTask // by task id: those that have not ended; guarded by mu
}

// heldTask is what the lease may end: a task of this supervisor, or a container.
type heldTask struct {
	lease Lease
	end   func(sig syscall.Signal) // sends a signal; SIGKILL ends it for certain
	note  func(*Lease) error       // records that its time was over
	// remove removes a container with all that it has, and reports whether it is gone; nil for a task.
	remove func() bool
	stage  int // 0: runs, 1: was sent its signal, 2: is being killed
}

func (h *heldTask) due(renewed time.Duration) time.Duration {
	switch h.stage {
	case 0:
		return renewed + h.lease.Limit
	case 1: // renewals do not matter to it any more
		return h.lease.Renewed + h.lease.Limit + h.lease.Timeout
	}
	return 0
}

// openLeases reads the last renewal of this run of the kernel.
func openLeases(dir string) (*leases, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	l := &leases{path: filepath.Join(dir, "lease"), timer: os.NewFile(uintptr(fd), "lease timer"), clock: Boottime, lapsed: map[string]bool{}, held: map[string]*heldTask{}}
	b, err := os.ReadFile(l.path)
	if f := bytes.Fields(b); err == nil && len(f) == 2 && string(f[0]) == bootID() {
		if ns, err := strconv.ParseInt(string(f[1]), 10, 64); err == nil {
			l.renewed, l.written = min(time.Duration(ns), l.clock()), true
		}
	}
	return l, nil
}

// renew moves the lease forward; it never moves it back or into the future.
func (l *leases) renew(at time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	at = min(at, l.clock())
	if at <= l.renewed && l.written {
		return nil
	}
	l.renewed = max(l.renewed, at)
	text := make([]byte, leaseSize)
	copy(text, fmt.Sprintf("%s %d", bootID(), l.renewed))
	for i := range text {
		if text[i] == 0 {
			text[i] = '\n'
		}
	}
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.WriteAt(text, 0)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("record the renewal of the lease: %w", err)
	}
	l.written = true
	return nil
}

// check refuses the start of a task whose time is over.
func (l *leases) check(lease *Lease) error {
	if lease == nil {
		return nil
	}
	if err := l.renew(lease.Renewed); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lapsed[lease.Group] || l.clock() >= l.renewed+lease.Limit {
		l.lapsed[lease.Group] = true
		return ErrLapsed
	}
	return nil
}

// hold watches over a task until drop.
func (l *leases) hold(id string, h *heldTask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.lease.Lapsed {
		l.lapsed[h.lease.Group] = true
	}
	l.held[id] = h
	at := h.due(l.renewed)
	if l.lapsed[h.lease.Group] {
		at = 1 // another task of its allocation lapsed while it started
	}
	l.arm(at)
}

// arm sets the timer to fire at a time, unless it fires before. The caller holds l.mu.
func (l *leases) arm(at time.Duration) {
	if at <= 0 || l.armed != 0 && l.armed <= at {
		return
	}
	l.armed = at
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(at.Nanoseconds())}
	fd := -1
	if rc, err := l.timer.SyscallConn(); err == nil {
		rc.Control(func(f uintptr) { fd = int(f) })
	}
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		fmt.Fprintf(os.Stderr, "supervisor: set the timer of the lease: %v\n", err)
	}
}

// drop forgets a task that has ended. What has lapsed stays so.
func (l *leases) drop(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, id)
}

// holds reports whether a task is under its lease.
func (l *leases) holds(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held[id] != nil
}

// count returns how many tasks are under their lease.
func (l *leases) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

// isLapsed reports whether an allocation's time was over.
func (l *leases) isLapsed(group string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lapsed[group]
}

// markLapsed records that an allocation's time was over.
func (l *leases) markLapsed(group string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapsed[group] = true
}

// run ends tasks whose time is over, until the timer is closed.
func (l *leases) run() {
	var b [8]byte
	for {
		if _, err := l.timer.Read(b[:]); errors.Is(err, os.ErrClosed) {
			return
		}
		l.expire()
	}
}

// expire does what is due and sets the timer for the next time.
func (l *leases) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.armed = 0
	now, next := l.clock(), time.Duration(0)
	for id, h := range l.held {
		if h.stage == 0 && (now >= h.due(l.renewed) || l.lapsed[h.lease.Group]) {
			l.lapse(id, h)
		}
		if h.stage == 1 && now >= h.due(l.renewed) {
			h.stage = 2
			go h.end(syscall.SIGKILL)
		}
		if at := h.due(l.renewed); at > 0 && (next == 0 || at < next) {
			next = at
		}
	}
	l.arm(next)
}

// lapse begins to end a task. From here on, renewals do not matter to its allocation. The caller holds l.mu.
func (l *leases) lapse(id string, h *heldTask) {
	if !l.lapsed[h.lease.Group] {
		fmt.Fprintf(os.Stderr, "%s supervisor: allocation %s ends: no contact with the servers for %s\n", time.Now().UTC().Format(time.RFC3339), h.lease.Group, l.clock()-l.renewed)
	}
	l.lapsed[h.lease.Group] = true
	h.stage = 1
	if !h.lease.Lapsed { // otherwise an earlier supervisor has begun to end it
		h.lease.Renewed, h.lease.Lapsed = l.renewed, true
		if err := h.note(&h.lease); err != nil {
			fmt.Fprintf(os.Stderr, "supervisor: task %s: record that its time is over: %v\n", id, err)
		}
	}
	if h.lease.Timeout > 0 {
		go h.end(syscall.Signal(h.lease.Signal))
	}
}

// lapseRetry is the pause before a task that does not end is killed again.
const lapseRetry = time.Second

// heldTask returns how the lease ends a task of this supervisor.
func (t *task) heldTask() *heldTask {
	return &heldTask{
		lease: *t.mem.Lease,
		note: func(l *Lease) error {
			m := t.mem
			m.Lease = l
			return t.append(line{Memory: &m})
		},
		end: func(sig syscall.Signal) {
			if !t.mem.Group.Zero() {
				_ = t.mem.Group.Freeze(false) // a suspended task would not receive the signal
			}
			if sig != syscall.SIGKILL {
				_ = t.signal(sig)
				return
			}
			for {
				err := t.stop(sig, 0)
				if err == nil {
					return
				}
				fmt.Fprintf(os.Stderr, "supervisor: %v\n", err)
				time.Sleep(lapseRetry)
			}
		},
	}
}

// keep puts a task under its lease until it ends.
func (s *Service) keep(t *task) {
	if t.mem.Lease == nil {
		return
	}
	select {
	case <-t.done: // under an earlier supervisor, or with the machine
		if t.mem.Lease.Lapsed {
			s.leases.markLapsed(t.mem.Lease.Group)
		}
		return
	default:
	}
	s.leases.hold(t.mem.ID, t.heldTask())
	go func() {
		<-t.done
		s.leases.drop(t.mem.ID)
	}()
}

func leaseKind(err error) string {
	if errors.Is(err, ErrLapsed) {
		return kindLapsed
	}
	return kindFailed
}

// RenewArgs renews the lease.
type RenewArgs struct {
	At time.Duration // Boottime when the last answered heartbeat was sent
}

// Renew records contact with the servers.
func (s *Service) Renew(a RenewArgs, r *Reply) error {
	if err := s.leases.renew(a.At); err != nil {
		return fail(r, kindFailed, err)
	}
	return nil
}

// Lapsed fails with kindLapsed if an allocation was ended because contact was lost for too long.
func (s *Service) Lapsed(group string, r *Reply) error {
	if s.leases.isLapsed(group) {
		return fail(r, kindLapsed, ErrLapsed)
	}
	return nil
}
