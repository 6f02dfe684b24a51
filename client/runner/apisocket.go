package runner

import (
	"context"
	"net"
	"path/filepath"

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
	l, err := listen(t.r.dir, t.name)
	if err != nil {
		t.r.log().Warn("a task has no socket to the agent's API", "task", t.name, "error", err)
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

// listen creates the socket. Only the task can enter the directory around it.
func listen(alloc *allocdir.Dir, task string) (net.Listener, error) {
	dir, _, err := alloc.Part(filepath.Join(task, allocdir.Secrets))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Listen(apiSocket)
}
