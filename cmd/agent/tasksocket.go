package agent

import (
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/muster-sched/muster/internal/tasktoken"
	"github.com/muster-sched/muster/structs"
)

// taskConns bounds the open connections of one task to its socket; further ones wait.
const taskConns = 32

// taskKey is the task that a request comes from (a taskOf), by the socket it came through.
type taskKey struct{}

type taskOf struct {
	alloc structs.AllocID
	name  string
}

// taskListener is the socket in a task's secrets directory: who can connect to it is of that task.
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

// taskConn is a connection of a task. It is no *net.UnixConn: who is at the other end does not count here.
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

// serveTask answers the API at a task's socket until the listener is closed: by the runner of the task, or with the API.
func (a *Agent) serveTask(alloc structs.AllocID, task string, l net.Listener) io.Closer {
	tl := &taskListener{Listener: l, task: taskOf{alloc, task}, slots: make(chan struct{}, taskConns), done: make(chan struct{})}
	go func() {
		_ = a.http.Serve(tl) // its end is that of the listener
		tl.Close()
	}()
	return tl
}

// asTask puts the agent's word for a task on a request that came through the task's socket without a token. It is made
// for this request, stays between agents and servers, and allows what a task may do with its own job.
func (a *Agent) asTask(r *http.Request) {
	if t, ok := r.Context().Value(taskKey{}).(taskOf); ok {
		r.Header.Set("X-Nomad-Token", tasktoken.New(a.client.Auth().Secret, t.alloc, t.name, time.Now()))
	}
}
