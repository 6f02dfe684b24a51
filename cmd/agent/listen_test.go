package agent

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
)

// TestTakenPortIsExplained: an agent whose port is in use says which, what shows by what program, and how to choose another.
func TestTakenPortIsExplained(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	for kind, ports := range map[string]string{
		"HTTP":   `{"http": %d, "rpc": 0, "serf": 0}`,
		"RPC":    `{"http": 0, "rpc": %d, "serf": 0}`,
		"gossip": `{"http": 0, "rpc": 0, "serf": %d}`,
	} {
		cfg := serverConfig(t, "s", fmt.Sprintf(`"ports": %s, "server": {"enabled": true, "bootstrap_expect": 1}`, fmt.Sprintf(ports, port)), t.Output())
		a, err := New(cfg)
		if err == nil {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = a.Run(ctx)
			t.Errorf("%s: an agent started on a taken port", kind)
			continue
		}
		for _, want := range []string{fmt.Sprintf("%s address %s: port %d is in use", kind, l.Addr(), port), fmt.Sprintf("ss -ltnp 'sport = :%d'", port), "ports.http, ports.rpc and ports.serf", "-config"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v\nwant %q", kind, err, want)
			}
		}
		if n := strings.Count(err.Error(), "address already in use"); n > 0 {
			t.Errorf("%s: says the same twice: %v", kind, err)
		}
	}
}
