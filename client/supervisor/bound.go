package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/cgroup"
	"github.com/muster-sched/muster/client/procfile"
)

// Tasks outlive their agent so that the next one takes them over. An agent of -dev with a temporary directory has no
// next one: no other agent knows the directory, and the state of its servers was in memory. Its supervisor is bound to
// it. It holds a pidfd of the agent, and when the agent ends without Shutdown, it ends the tasks, removes their control
// groups, and has the directory removed.
//
//	agent runs --- Retire: the agent removes everything ---> end
//	           \-- the agent is gone ---> tasks and containers killed ---> groups removed ---> directory removed ---> end

// endWithin limits how long a bound supervisor tries to end the tasks of an agent that is gone.
const endWithin = time.Minute

// bond is what binds a supervisor to its agent.
type bond struct {
	root  string             // directory of the agent, removed after its end
	clean func(string) error // removes it
	agent *os.File           // pidfd; nil: the agent had ended before it could be opened
	home  string             // control group of the agent, as the kernel names it; "" if unknown
}

// bind binds this process to the agent that started it, process pid.
func bind(pid int, root string, clean func(string) error) *bond {
	b := &bond{root: root, clean: clean}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			b.home = path
		}
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return b
	}
	f := os.NewFile(uintptr(fd), "agent")
	if os.Getppid() != pid { // it has ended, and the number may be another process's
		f.Close()
		return b
	}
	b.agent = f
	return b
}

// gone returns a channel that is closed when the agent has ended; nil, for ever open, without a bond.
func (b *bond) gone() <-chan struct{} {
	if b == nil {
		return nil
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if b.agent != nil {
			awaitPidfd(b.agent)
		}
	}()
	return gone
}

// bondArgs returns the arguments that bind a supervisor; none without a root.
func bondArgs(root string) []string {
	if root == "" {
		return nil
	}
	return []string{"-agent", strconv.Itoa(os.Getpid()), "-remove", root}
}

// cleanUp ends everything that the agent has left, and removes it.
func (s *Service) cleanUp() {
	complain := func(what string, err error) {
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s supervisor: the agent is gone; %s: %v\n", time.Now().UTC().Format(time.RFC3339), what, err)
		}
	}
	complain("end its tasks", s.endAll(time.Now().Add(endWithin)))
	if s.groups != nil {
		complain("leave its control group", s.bond.leave(s.groups.Layout.V2))
		if g, err := s.groups.Create(".supervisor", cgroup.Limits{}); err == nil {
			complain("remove its control group", g.Remove())
		}
		s.groups.Close()
	}
	complain("remove "+s.bond.root, s.bond.clean(s.bond.root))
}

// endAll kills every task and container, those that are starting included.
func (s *Service) endAll(deadline time.Time) error {
	for {
		s.mu.Lock()
		s.closed = true // nothing starts any more
		ids, starting := make([]string, 0, len(s.tasks)), len(s.starting)
		for id := range s.tasks {
			ids = append(ids, id)
		}
		s.mu.Unlock()
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() { _ = s.Destroy(id, new(Reply)) }) // what is left is tried again
		}
		for _, c := range s.leases.containers() {
			wg.Go(func() {
				if c.remove() {
					s.leases.drop(c.id)
				}
			})
		}
		wg.Wait()
		s.mu.Lock()
		left := len(s.tasks) + len(s.starting)
		s.mu.Unlock()
		left += len(s.leases.containers())
		switch {
		case left == 0 && starting == 0:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%d tasks and containers did not end within %s", left, endWithin)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leave moves this process out of the supervisor's control group, so that it can be removed: to the agent's group, or to
// the root if that one was removed.
func (b *bond) leave(point string) error {
	if point == "" {
		return nil
	}
	if procfile.Write(filepath.Join(point, b.home, "cgroup.procs"), "0") == nil {
		return nil
	}
	return procfile.Write(filepath.Join(point, "cgroup.procs"), "0")
}

// parseArgs returns the directory that a supervisor serves and what binds it; ok is false if args start no supervisor.
func parseArgs(args []string) (dir, root string, agent int, ok bool) {
	if len(args) != 4 && len(args) != 8 || args[1] != "supervisor" || args[2] != "-dir" {
		return "", "", 0, false
	}
	if len(args) == 4 {
		return args[3], "", 0, true
	}
	pid, err := strconv.Atoi(args[5])
	if args[4] != "-agent" || err != nil || args[6] != "-remove" || !filepath.IsAbs(args[7]) {
		return "", "", 0, false
	}
	return args[3], args[7], pid, true
}

// container is a guarded container, as endAll ends it.
type container struct {
	id     string
	remove func() bool // reports whether it is gone
}

// containers lists the guarded containers.
func (l *leases) containers() (out []container) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, h := range l.held {
		if h.remove != nil {
			out = append(out, container{id, h.remove})
		}
	}
	return out
}
