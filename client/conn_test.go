package client

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/internal/memnet"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// An agent leaves a server that failed it. Its poll ends at once if the server has no leader, after probePatience if the
// server is silent, and after leftBehind and up to half as much if the server is only late. An agent that has returned to
// a late server by then keeps the session.
func TestPollOnAFailedServer(t *testing.T) {
	wait := rpc.Method[struct{}, struct{}]{Name: "Test.Wait"}
	for name, tc := range map[string]struct {
		err            error
		down, returned bool
		least, most    time.Duration // until the poll ends; most 0: it continues
	}{
		"late":               {err: structs.Errorf(structs.CodeTimeout, "the deadline passed"), least: leftBehind, most: leftBehind * 3 / 2},
		"late, and returned": {err: structs.Errorf(structs.CodeTimeout, "the deadline passed"), returned: true},
		"silent":             {err: structs.Errorf(structs.CodeTimeout, "the deadline passed"), down: true, most: probePatience},
		"no leader":          {err: structs.ErrNoLeader, most: time.Nanosecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := memnet.New()
				for _, host := range []string{"a", "b"} {
					l, err := n.Host(host).Listen(4647)
					if err != nil {
						t.Fatal(err)
					}
					reg := rpc.NewRegistry(nil, nil)
					rpc.Handle(reg, wait, func(ctx context.Context, _ *rpc.Call, _ *struct{}) (*struct{}, error) {
						<-ctx.Done()
						return nil, ctx.Err()
					})
					srv := rpc.NewServer(rpc.ServerConfig{Registry: reg})
					go srv.Serve(l)
					defer srv.Close()
				}
				conn, err := Dial(DialConfig{Servers: []string{"a:4647", "b:4647"}, Dial: n.Host("node").Dial})(nil)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				c := conn.(*dialed)
				from := c.current()
				ended := make(chan error, 1)
				go func() {
					_, err := rpc.Invoke(t.Context(), conn, wait, rpc.Header{}, &struct{}{})
					ended <- err
				}()
				synctest.Wait()
				if tc.down {
					n.PowerOff(strings.TrimSuffix(from, ":4647"))
				}
				c.Failed(tc.err)
				if c.current() == from {
					t.Errorf("the agent stays with %s", from)
				}
				if tc.returned {
					c.next(c.current())
				}
				start := time.Now()
				select {
				case err := <-ended:
					if took := time.Since(start); took < tc.least || took > tc.most {
						t.Errorf("the poll ended after %s: %v", took, err)
					}
				case <-time.After(2 * leftBehind):
					if tc.most > 0 {
						t.Errorf("the poll continues")
					}
				}
			})
		})
	}
}
