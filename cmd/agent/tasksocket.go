package agent

import (
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/muster-sched/muster/structs"
)

// taskConns limits the open connections of one task to its socket; further ones wait.
const taskConns = 32

// taskKey is the context key of the task (a taskOf) whose socket a request came through.
type taskKey struct{}

type taskOf struct {
	alloc structs.AllocID
	name  string
}

// taskListener is the socket in a task's secrets directory: only the task can connect to it.
type taskListener struct {
	net.Listener
	task  taskOf
	slots chan struct{} // one for each open connection
	done  chan struct{} // closed by Close
	once  sync.Once
}

// Accept implements net.Listener.
func (l *taskListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &taskConn{Conn: c, l: l}, nil
}

// Close implements net.Listener.
func (l *taskListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// taskConn is a connection of a task. The user at the other end does not matter.
type taskConn struct {
	net.Conn
	l    *taskListener
	once sync.Once
}

// Close implements net.Conn.
func (c *taskConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.l.slots })
	return err
}

// serveTask serves the API on a task's socket until the listener is closed: by the runner of the task, or with the API.
func (a *Agent) serveTask(alloc structs.AllocID, task string, l net.Listener) io.Closer {
	tl := &taskListener{Listener: a.conns.Listener(l, "task "+alloc.String()+"/"+task), task: taskOf{alloc, task}, slots: make(chan struct{}, taskConns), done: make(chan struct{})}
	go func() {
		_ = a.http.Serve(tl) // returns when the listener is closed
		tl.Close()
	}()
	return tl
}

// asTask adds a task token to a request that came through the task's socket without a token. The token is made for this
// request, is used only between agents and servers, and permits what a task may do with its own job.
func (a *Agent) asTask(r *http.Request) {
	if t, ok := r.Context().Value(taskKey{}).(taskOf); ok {
		r.Header.Set("X-Nomad-Token", a.client.TaskToken(t.alloc, t.name))
	}
}
