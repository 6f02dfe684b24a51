package client

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/muster-sched/muster/client/runner"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// Limits of forwarded connections, of an allocation and of a node. A session carries rpc.DefaultMaxStreams calls to a
// node, and forwards must leave most of them to others.
const (
	forwardsOfAlloc = 64
	forwardsOfNode  = 256
	forwardPorts    = 32
)

// forwards counts the connections to ports of allocations.
type forwards struct {
	mu  sync.Mutex
	all int
	of  map[structs.AllocID]int
}

// enter counts one more, until leave is called.
func (f *forwards) enter(id structs.AllocID) (leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.of[id] >= forwardsOfAlloc:
		return nil, structs.Errorf(structs.CodeBusy, "allocation %s has %d forwarded connections, the most that are allowed: close some", id.Short(), f.of[id])
	case f.all >= forwardsOfNode:
		return nil, structs.Errorf(structs.CodeBusy, "the node of allocation %s has %d forwarded connections, the most that are allowed", id.Short(), f.all)
	}
	if f.of == nil {
		f.of = map[structs.AllocID]int{}
	}
	f.all++
	f.of[id]++
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.all--
		if f.of[id]--; f.of[id] == 0 {
			delete(f.of, id)
		}
	}, nil
}

// forward connects a stream to a port of an allocation. It ends with the allocation.
func (s service) forward(ctx context.Context, _ *rpc.Call, req *methods.ForwardRequest, st *rpc.Stream) error {
	c, err := s.find(req.AllocID, structs.NodeID{})
	if err != nil {
		return err
	}
	r, err := s.alloc(req.AllocID)
	if err != nil {
		return err
	}
	if n := len(req.Ports); n == 0 || n > forwardPorts || n > 1 && !req.Watch {
		return structs.Errorf(structs.CodeInvalid, "a connection wants one port, a watch 1 to %d", forwardPorts)
	}
	if err := r.Reachable(req.Task); err != nil {
		return err
	}
	over := r.Done()
	if req.Task != "" {
		if over, err = r.TaskDone(req.Task); err != nil {
			return err
		}
	}
	leave, err := c.forwards.enter(req.AllocID)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if req.Watch {
		return watchPorts(ctx, r, req, over, st)
	}
	conn, err := r.Dial(ctx, req.Ports[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := st.SendMsg(&methods.ForwardFrame{}); err != nil {
		return err
	}
	go func() {
		select {
		case <-over:
		case <-ctx.Done():
		}
		cancel()
		conn.Close()
	}()
	return carry(cancel, conn, st)
}

// watchPorts checks the ports and waits for the end of the allocation or task.
func watchPorts(ctx context.Context, r *runner.Runner, req *methods.ForwardRequest, over <-chan struct{}, st *rpc.Stream) error {
	for _, p := range req.Ports {
		if err := r.CheckPort(p); err != nil {
			return err
		}
	}
	if err := st.SendMsg(&methods.ForwardFrame{}); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() { // ends with the stream
		defer close(gone)
		var f methods.ForwardFrame
		for st.RecvMsg(&f) == nil {
		}
	}()
	select {
	case <-ctx.Done():
	case <-gone:
	case <-over:
		if req.Task != "" {
			return structs.Errorf(structs.CodeInvalid, "task %q of allocation %s has ended", req.Task, req.AllocID.Short())
		}
		return structs.Errorf(structs.CodeInvalid, "allocation %s has ended", req.AllocID.Short())
	}
	return nil
}

// carry copies between a connection and a stream until both directions have ended. A connection that breaks ends the
// stream without a frame that closes its direction, so the reader does not take it for the end of the data.
func carry(cancel func(), conn *net.TCPConn, st *rpc.Stream) error {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			var f methods.ForwardFrame
			if st.RecvMsg(&f) != nil { // the reader is gone
				cancel()
				return
			}
			if len(f.Data) > 0 {
				if _, err := conn.Write(f.Data); err != nil {
					return // the port is closed; what it sent before can still be read
				}
			}
			if f.Close {
				_ = conn.CloseWrite()
				return
			}
		}
	}()
	buf := make([]byte, frameMax/2)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if st.SendMsg(&methods.ForwardFrame{Data: buf[:n]}) != nil {
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			if st.SendMsg(&methods.ForwardFrame{Close: true}) != nil {
				return nil
			}
			select {
			case <-sent:
			case <-st.Context().Done():
			}
			return nil
		}
		if err != nil {
			return nil
		}
	}
}
