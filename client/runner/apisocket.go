package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/muster-sched/muster/client/allocdir"
)

// apiSocket is the file in a task's secrets directory through which it reaches the agent's API (MUSTER_UNIX_ADDR). Only
// the task can get at that directory, so whoever connects is the task.
const apiSocket = "api.sock"

// openAPI opens the task's socket before it starts.
func openAPI(_ context.Context, a *attempt) error {
	a.task.serveAPI()
	return nil
}

// serveAPI opens the task's socket, unless it is open. A task can do without: launchers alone need it.
func (t *task) serveAPI() {
	if t.r.cfg.ServeTask == nil || t.r.dir == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.api != nil {
		return
	}
	l, err := listenBelow(t.r.dir.Root, t.name)
	if err != nil {
		t.r.log.Warn("a task has no socket to the agent's API", "task", t.name, "error", err)
		return
	}
	t.api = t.r.cfg.ServeTask(t.r.id, t.name, l)
}

// closeAPI ends the task's socket.
func (t *task) closeAPI() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.api != nil {
		t.api.Close()
		t.api = nil
	}
}

// listenBelow makes the socket. The directory is looked up below the allocation's, and named by its descriptor, so that no
// link leads out of it and its path may be of any length.
func listenBelow(alloc, task string) (net.Listener, error) {
	top, err := os.OpenRoot(alloc)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	of, err := top.OpenRoot(task)
	if err != nil {
		return nil, err
	}
	defer of.Close()
	secrets, err := of.OpenRoot(allocdir.Secrets)
	if err != nil {
		return nil, err
	}
	defer secrets.Close()
	if err := secrets.Remove(apiSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	dir, err := secrets.Open(".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), apiSocket))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)           // by then the descriptor may be another directory's
	if err := secrets.Chmod(apiSocket, 0o666); err != nil { // its directory is the task's alone
		l.Close()
		return nil, err
	}
	return l, nil
}
