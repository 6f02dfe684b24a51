package agent

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// logUntil is a writer that sends on found when it was written a line with all texts.
type logUntil struct {
	texts []string
	found chan struct{}

	mu   sync.Mutex
	rest []byte
	done bool
}

func newLogUntil(texts ...string) *logUntil {
	return &logUntil{texts: texts, found: make(chan struct{}, 1)}
}

func (l *logUntil) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.rest = rest
		all := true
		for _, text := range l.texts {
			all = all && strings.Contains(string(line), text)
		}
		if all && !l.done {
			l.done = true
			l.found <- struct{}{}
		}
	}
}

// TestWrongPortIsNamed: an agent that was given the HTTP port of a server says so when it first fails.
func TestWrongPortIsNamed(t *testing.T) {
	addr := startAgent(t, serverConfig(t, "s", `"ports": {"http": 0, "rpc": 0, "serf": 0}, "server": {"enabled": true, "bootstrap_expect": 1}`, t.Output()))
	u, err := url.Parse(addr)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		settings string
		says     []string
	}{
		"node": {
			fmt.Sprintf(`"ports": {"http": 0, "rpc": 0, "serf": 0}, "client": {"enabled": true, "servers": [%q]}`, u.Host),
			[]string{"did not accept the node's call", u.Host, "HTTP is served there", "servers take calls on another port"},
		},
		"server": {
			fmt.Sprintf(`"ports": {"http": 0, "rpc": 0, "serf": 0}, "server": {"enabled": true, "bootstrap_expect": 2, "join_key": %q, "server_join": {"retry_join": [%q]}}`, strings.Repeat("E", 43)+"=", u.Host),
			[]string{"could not join", u.Host, "the HTTP API answers", "gossip port"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			log := newLogUntil(c.says...)
			startAgent(t, serverConfig(t, name, c.settings, log))
			select {
			case <-log.found:
			case <-time.After(20 * time.Second):
				t.Error("the log does not say so")
			}
		})
	}
}
