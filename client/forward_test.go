package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// forwarded opens a stream to a port and returns it once the node has connected.
func forwarded(ctx context.Context, back rpc.Caller, req *methods.ForwardRequest) (*rpc.Stream, error) {
	st, err := rpc.OpenStream(ctx, back, methods.ClientForward, rpc.Header{}, req)
	if err != nil {
		return nil, err
	}
	var f methods.ForwardFrame
	if err := st.RecvMsg(&f); err != nil {
		st.Close(nil)
		return nil, err
	}
	return st, nil
}

// TestForward has the port of a running allocation served by the test.
func TestForward(t *testing.T) {
	srv, cfg := processNode(t)
	a := start(t, srv, cfg)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	quiet, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := quiet.Addr().(*net.TCPAddr).Port
	quiet.Close()
	port := l.Addr().(*net.TCPAddr).Port
	go func() { // what is read until its end goes back, and the connection stays until the other side has closed its own
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, _ := io.ReadAll(c)
				c.Write(b)
			}()
		}
	}()
	id := srv.Place(a.ID(), clientfake.Job("web", structs.JobService, sh("main", "sleep 300")), func(al *structs.Allocation) {
		al.Ports = []structs.PortGrant{{Label: "echo", Value: port}, {Label: "quiet", Value: silent}}
	})
	srv.WaitStatus(t, id, structs.ClientRunning)
	back := srv.Back(a.ID())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	one := func(port string) *methods.ForwardRequest {
		return &methods.ForwardRequest{AllocID: id, Ports: []string{port}}
	}

	t.Run("bytes and both ends", func(t *testing.T) {
		for _, p := range []string{"echo", strconv.Itoa(port)} {
			st, err := forwarded(ctx, back, one(p))
			if err != nil {
				t.Fatal(err)
			}
			sent := make([]byte, 3<<20)
			rand.Read(sent)
			for b := sent; len(b) > 0; b = b[frameMax:] {
				if err := st.SendMsg(&methods.ForwardFrame{Data: b[:frameMax]}); err != nil {
					t.Fatal(err)
				}
			}
			if err := st.SendMsg(&methods.ForwardFrame{Close: true}); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			closed := false
			for {
				var f methods.ForwardFrame
				if err := st.RecvMsg(&f); err != nil {
					if !errors.Is(err, io.EOF) {
						t.Error(err)
					}
					break
				}
				got.Write(f.Data)
				closed = closed || f.Close
			}
			st.Close(nil)
			if !closed || !bytes.Equal(got.Bytes(), sent) {
				t.Errorf("port %s: %d bytes of %d came back; their end was told: %v", p, got.Len(), len(sent), closed)
			}
		}
	})
	t.Run("refusals", func(t *testing.T) {
		node, err := net.Listen("tcp4", "127.0.0.1:0") // of the node, not of the allocation
		if err != nil {
			t.Fatal(err)
		}
		defer node.Close()
		other := strconv.Itoa(node.Addr().(*net.TCPAddr).Port)
		for _, c := range []struct {
			req  *methods.ForwardRequest
			want string
		}{
			{one("quiet"), "nothing listens on port " + strconv.Itoa(silent)},
			{one("nope"), `has no port "nope": it has echo, quiet`},
			{one(other), "has not reserved port " + other},
			{&methods.ForwardRequest{AllocID: id, Ports: []string{"echo", other}, Watch: true}, "has not reserved port " + other},
			{&methods.ForwardRequest{AllocID: id, Ports: []string{"echo", "quiet"}}, "one port"},
			{&methods.ForwardRequest{AllocID: id, Task: "nope", Ports: []string{"echo"}}, "nope"},
			{&methods.ForwardRequest{AllocID: structs.AllocID{1}, Ports: []string{"echo"}}, "Unknown allocation"},
		} {
			if st, err := forwarded(ctx, back, c.req); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v, want %q in it", c.req.Ports, err, c.want)
				if st != nil {
					st.Close(nil)
				}
			}
		}
	})
	t.Run("limit", func(t *testing.T) {
		var all []*rpc.Stream
		defer func() {
			for _, st := range all {
				st.Close(nil)
			}
		}()
		for range forwardsOfAlloc {
			st, err := forwarded(ctx, back, one("echo"))
			if err != nil {
				t.Fatalf("connection %d: %v", len(all)+1, err)
			}
			all = append(all, st)
		}
		if _, err := forwarded(ctx, back, one("echo")); structs.CodeOf(err) != structs.CodeBusy {
			t.Errorf("one more than the limit: %v", err)
		}
		all[0].Close(nil)
		srv.Wait(t, "room again", func() bool {
			st, err := forwarded(ctx, back, one("echo"))
			if err == nil {
				all = append(all, st)
			}
			return err == nil
		})
	})

	var watch *rpc.Stream
	srv.Wait(t, "the connections of the test of the limit to end", func() (ok bool) {
		watch, err = forwarded(ctx, back, &methods.ForwardRequest{AllocID: id, Ports: []string{"echo"}, Watch: true})
		if err != nil && structs.CodeOf(err) != structs.CodeBusy {
			t.Fatal(err)
		}
		return err == nil
	})
	defer watch.Close(nil)
	var open *rpc.Stream
	srv.Wait(t, "room for one more", func() bool {
		open, err = forwarded(ctx, back, one("echo"))
		return err == nil
	})
	defer open.Close(nil)
	srv.Stop(id)
	var f methods.ForwardFrame
	if err := watch.RecvMsg(&f); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("the watch of an allocation that ends: %v", err)
	}
	if err := open.RecvMsg(&f); err == nil {
		t.Errorf("a connection to an allocation that has ended: a frame %+v; want its end", f)
	}
	srv.WaitStatus(t, id, structs.ClientComplete)
	if _, err := forwarded(ctx, back, one("echo")); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("a connection after the end: %v", err)
	}
}
