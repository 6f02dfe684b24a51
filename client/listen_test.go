package client

import (
	"net"
	"sync"
	"testing"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/internal/rpc"
)

// listen serves srv on a free port.
func listen(t *testing.T, srv *clientfake.Server) (addr string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(rpc.ServerConfig{Registry: srv.Registry()})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		s.Serve(l)
	}()
	stop = sync.OnceFunc(func() {
		s.Close()
		wg.Wait()
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}
