package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// carried is a program here at one end of a forwarded connection and far at the agent's.
func carried(t *testing.T, far func(ctx context.Context, ws *websocket.Conn)) (here *net.TCPConn, result chan error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		far(r.Context(), ws)
	}))
	t.Cleanup(agent.Close)
	ws, _, err := websocket.Dial(ctx, agent.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(4 << 20) // as api.dial does
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	result = make(chan error, 1)
	go func() {
		tc := in.(*net.TCPConn)
		err := carry(ctx, tc, ws)
		if err != nil {
			_ = tc.SetLinger(0)
		}
		tc.Close()
		result <- err
	}()
	return c.(*net.TCPConn), result
}

func TestCarry(t *testing.T) {
	t.Run("each direction ends by itself", func(t *testing.T) {
		here, result := carried(t, func(ctx context.Context, ws *websocket.Conn) {
			var got []byte
			for {
				kind, b, err := ws.Read(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if kind == websocket.MessageText {
					continue
				}
				if len(b) == 0 {
					break
				}
				got = append(got, b...)
			}
			ws.Write(ctx, websocket.MessageText, []byte("{}"))
			ws.Write(ctx, websocket.MessageBinary, []byte(strings.ToUpper(string(got))))
			ws.Write(ctx, websocket.MessageBinary, nil)
			ws.Close(websocket.StatusNormalClosure, "")
		})
		want := strings.Repeat("abc", forwardPiece)
		go func() {
			io.WriteString(here, want)
			here.CloseWrite()
		}()
		if b, err := io.ReadAll(here); err != nil || string(b) != strings.ToUpper(want) {
			t.Errorf("%d bytes of %d came back: %v", len(b), len(want), err)
		}
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	t.Run("a broken connection does not look complete", func(t *testing.T) {
		here, result := carried(t, func(ctx context.Context, ws *websocket.Conn) {
			ws.Write(ctx, websocket.MessageBinary, []byte("part"))
			ws.Close(websocket.StatusNormalClosure, "")
		})
		if b, err := io.ReadAll(here); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q, %v; want a reset", b, err)
		}
		if err := <-result; !errors.Is(err, errForwardBroken) {
			t.Errorf("%v, want: %v", err, errForwardBroken)
		}
	})
}

func TestForwardArguments(t *testing.T) {
	alloc := func(mode string) *wire.Allocation {
		name := "g"
		return &wire.Allocation{
			TaskGroup:          "g",
			Job:                &wire.Job{TaskGroups: []*wire.TaskGroup{{Name: &name, Networks: []*wire.NetworkResource{{Mode: mode}}}}},
			AllocatedResources: &wire.AllocatedResources{Shared: wire.AllocatedSharedResources{Ports: []wire.PortMapping{{Label: "http", Value: 20001, To: 80}, {Label: "same", Value: 20002}}}},
		}
	}
	for _, c := range []struct {
		mode, arg     string
		local, remote string // "" for a refusal
	}{
		{"host", "http", "20001", "http"}, {"bridge", "http", "80", "http"}, {"bridge", "same", "20002", "same"},
		{"host", "8080", "8080", "8080"}, {"host", "8080:http", "8080", "http"}, {"host", ":http", "0", "http"}, {"host", "0:22", "0", "22"},
		{"host", "nope", "0", "nope"}, // the node says what there is
		{"host", "70000", "", ""}, {"host", "x:http", "", ""}, {"host", "80:", "", ""}, {"host", "-1:http", "", ""},
	} {
		list, err := new(allocForwardOptions).forwards(alloc(c.mode), []string{c.arg})
		if c.remote == "" {
			if err == nil {
				t.Errorf("%s: %v, want a refusal", c.arg, list)
			}
			continue
		}
		if err != nil || len(list) != 1 || list[0] != (forward{c.local, c.remote}) {
			t.Errorf("%s in mode %s: %v, %v; want %s:%s", c.arg, c.mode, list, err, c.local, c.remote)
		}
	}
}
