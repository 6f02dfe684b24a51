package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	forwardSilence = time.Minute // without a heartbeat of the agent for this long, it is gone
	forwardPiece   = 32 << 10    // bytes of a message
)

type allocForwardOptions struct {
	*env
	task, listen string
	job          bool
}

func newAllocForward(e *env) *cobra.Command {
	o := &allocForwardOptions{env: e}
	c := e.verb("port-forward [options] ALLOCATION [LOCAL:]REMOTE...", "Reach ports of an allocation from here",
		"Listen here and carry each TCP connection to a port of a running allocation, through the agents: nothing has to be open on the node. REMOTE is the label or number of a port. "+
			"In its own network (mode bridge or none) an allocation has every port, in its node's network those of its network block. LOCAL is the port here, by default the same number; 0 takes a free one. "+
			"It ends with the allocation, or with Ctrl-C.", `
muster alloc port-forward 8ba85cef http
muster alloc port-forward 8ba85cef 8080:http 6006
muster alloc port-forward -job notebook 0:http
muster alloc port-forward -listen 0.0.0.0 8ba85cef 8888`, 2, -1, o.run)
	f := c.Flags()
	f.StringVar(&o.task, "task", "", "end with this task; without it, with the allocation")
	f.StringVar(&o.listen, "listen", "127.0.0.1", "IP address to listen at")
	return e.ofAlloc(c, &o.job)
}

// forward is one port to listen at, and where its connections go.
type forward struct {
	local  string // a number
	remote string
}

// forwards reads the arguments.
func (o *allocForwardOptions) forwards(al *wire.Allocation, args []string) ([]forward, error) {
	var out []forward
	for _, arg := range args {
		local, remote, two := strings.Cut(arg, ":")
		if !two {
			local, remote = remotePort(al, arg), arg
		} else if local == "" {
			local = "0"
		}
		if n, err := strconv.Atoi(local); err != nil || n < 0 || n > 65535 {
			return nil, fmt.Errorf("%q: the port here has to be a number from 0 to 65535", arg)
		}
		if remote == "" {
			return nil, fmt.Errorf("%q does not say which port of the allocation", arg)
		}
		out = append(out, forward{local, remote})
	}
	return out, nil
}

// remotePort is the number that a port of an allocation has where its tasks listen, as far as the allocation shows it.
// The node has the last word.
func remotePort(al *wire.Allocation, port string) string {
	if _, err := strconv.Atoi(port); err == nil {
		return port
	}
	own := false
	if al.Job != nil {
		for _, g := range al.Job.TaskGroups {
			if val(g.Name) == al.TaskGroup && len(g.Networks) > 0 {
				own = g.Networks[0].Mode == "bridge"
			}
		}
	}
	if al.AllocatedResources != nil {
		for _, p := range al.AllocatedResources.Shared.Ports {
			switch {
			case p.Label != port:
			case own && p.To > 0:
				return strconv.Itoa(p.To)
			default:
				return strconv.Itoa(p.Value)
			}
		}
	}
	return "0"
}

func (o *allocForwardOptions) run(ctx context.Context, args []string) error {
	if net.ParseIP(o.listen) == nil {
		return fmt.Errorf("-listen %q is not an IP address", o.listen)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	list, err := o.forwards(al, args[1:])
	if err != nil {
		return err
	}
	if o.task != "" {
		if o.task, err = pickTask(al, o.task); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	q := ns(al.Namespace)
	q.Set("watch", "true")
	for _, f := range list {
		q.Add("port", f.remote)
	}
	watch, err := o.connect(ctx, a, al, q)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("forward ports of %s: %w", shortID(al.ID, false), err)
	}
	defer watch.CloseNow()
	for _, f := range list {
		l, err := net.Listen("tcp", net.JoinHostPort(o.listen, f.local))
		if err != nil {
			return fmt.Errorf("%w; another port here: 0:%s", err, f.remote)
		}
		defer l.Close()
		o.printf("Forwarding %s to port %s of allocation %s\n", l.Addr(), f.remote, shortID(al.ID, false))
		conns.Add(1)
		go func() {
			defer conns.Done()
			o.accept(ctx, l, &conns, a, al, f.remote)
		}()
	}
	conns.Add(1)
	go func() {
		defer conns.Done()
		beat(ctx, watch)
	}()
	for {
		_, err := readForward(ctx, watch)
		if ctx.Err() != nil {
			return nil // Ctrl-C
		}
		if err != nil {
			return fmt.Errorf("the forward ends: %w", reasonOf(err))
		}
	}
}

// connect opens the websocket of a connection or watch.
func (o *allocForwardOptions) connect(ctx context.Context, a *api, al *wire.Allocation, q url.Values) (*websocket.Conn, error) {
	if o.task != "" {
		q.Set("task", o.task)
	}
	return a.dial(ctx, "/v1/client/allocation/"+al.ID+"/port-forward", q)
}

// accept carries the connections of a listener until ctx ends.
func (o *allocForwardOptions) accept(ctx context.Context, l net.Listener, conns *sync.WaitGroup, a *api, al *wire.Allocation, remote string) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			o.hint("Port %s: %v", remote, err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second): // out of file descriptors, most likely
			}
			continue
		}
		conns.Add(1)
		go func() {
			defer conns.Done()
			tc := c.(*net.TCPConn)
			q := ns(al.Namespace)
			q.Set("port", remote)
			ws, err := o.connect(ctx, a, al, q)
			if err == nil {
				err = carry(ctx, tc, ws)
			}
			if err != nil {
				_ = tc.SetLinger(0) // a reset: the data is not complete
				if ctx.Err() == nil {
					o.hint("Port %s: %v", remote, err)
				}
			}
			tc.Close()
		}()
	}
}

var errForwardBroken = errors.New("the connection was broken at the allocation's side")

// carry copies between a connection and a websocket until both directions have ended.
func carry(ctx context.Context, c *net.TCPConn, ws *websocket.Conn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer ws.CloseNow()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) }) // ends reads and writes
	all.Add(2)
	go func() {
		defer all.Done()
		beat(ctx, ws)
	}()
	go func() {
		defer all.Done()
		buf := make([]byte, forwardPiece)
		for {
			n, err := c.Read(buf)
			if n > 0 && ws.Write(ctx, websocket.MessageBinary, buf[:n]) != nil {
				return
			}
			if errors.Is(err, io.EOF) {
				_ = ws.Write(ctx, websocket.MessageBinary, nil) // the reader below learns of an error
				return
			}
			if err != nil { // a reset: the other side gets it, too
				cancel()
				return
			}
		}
	}()
	closed := false
	for {
		b, err := readForward(ctx, ws)
		switch {
		case err != nil && (closed || ctx.Err() != nil):
			return nil
		case err != nil:
			if errors.Is(reasonOf(err), errForwardEnded) {
				return errForwardBroken
			}
			return reasonOf(err)
		case len(b) == 0:
			closed = true
			_ = c.CloseWrite()
		default:
			if _, err := c.Write(b); err != nil {
				return nil // the program here has closed its connection
			}
		}
	}
}

// readForward returns the next piece of a connection, empty at its end.
func readForward(ctx context.Context, ws *websocket.Conn) ([]byte, error) {
	for {
		rctx, done := context.WithTimeout(ctx, forwardSilence)
		kind, b, err := ws.Read(rctx)
		silent := ctx.Err() == nil && rctx.Err() != nil
		done()
		if err != nil && silent {
			err = fmt.Errorf("nothing has been heard of the agent for %s", forwardSilence)
		}
		if err != nil || kind == websocket.MessageBinary {
			return b, err
		}
	}
}

var errForwardEnded = errors.New("the agent ended the connection")

// reasonOf is the reason that the agent gave for the end of a websocket.
func reasonOf(err error) error {
	var ce websocket.CloseError
	switch {
	case errors.As(err, &ce) && ce.Reason != "":
		return errors.New(ce.Reason)
	case errors.As(err, &ce):
		return errForwardEnded
	}
	return err
}

// beat sends heartbeats, so that proxies keep a quiet connection open and the agent knows that this side is there.
func beat(ctx context.Context, ws *websocket.Conn) {
	t := time.NewTicker(execHeartbeat)
	defer t.Stop()
	for {
		if ws.Write(ctx, websocket.MessageText, []byte("{}")) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
