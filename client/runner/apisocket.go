package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/client/allocdir"
)

// apiSocket is the file in a task's secrets directory through which it reaches the agent's API (MUSTER_UNIX_ADDR). Only
// the task can enter that directory, so a connection authenticates the task.
const apiSocket = "api.sock"

// openAPI opens the task's socket before it starts.
func openAPI(_ context.Context, a *attempt) error {
	a.task.serveAPI()
	return nil
}

// serveAPI opens the task's socket, unless it is open. A failure is only logged: most tasks do not need the socket.
func (t *task) serveAPI() {
	if t.r.cfg.Agent.ServeTask == nil || t.r.dir == nil {
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
	t.api = t.r.cfg.Agent.ServeTask(t.r.id, t.name, l)
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

// listenBelow creates the socket. Each directory is opened relative to the one before and named by its descriptor, so
// that no symbolic link leads out of the allocation and the path may be of any length.
func listenBelow(alloc, task string) (net.Listener, error) {
	dir := unix.AT_FDCWD
	for _, name := range []string{alloc, task, allocdir.Secrets} {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if dir != unix.AT_FDCWD {
			unix.Close(dir)
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: name, Err: err}
		}
		dir = fd
	}
	defer unix.Close(dir)
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir, apiSocket)
	l, err := net.Listen("unix", path)
	if errors.Is(err, unix.EADDRINUSE) { // left over from an earlier run or agent
		if err = unix.Unlinkat(dir, apiSocket, 0); err == nil || err == unix.ENOENT {
			l, err = net.Listen("unix", path)
		}
	}
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // by then the descriptor may refer to another directory
	// Only the task can enter the directory. AT_SYMLINK_NOFOLLOW: the task may have replaced the socket by a link.
	err = unix.Fchmodat(dir, apiSocket, 0o666, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil { // before Linux 6.6
		err = openToAll(dir, apiSocket)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// openToAll makes the socket readable and writable for every user who can reach it.
func openToAll(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s is no socket any more", name)
	}
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o666)
}
