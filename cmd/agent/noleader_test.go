package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/internal/agentconfig"
	"github.com/muster-sched/muster/internal/tlsutil"
)

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// serverConfig is that of a server with these settings (JSON).
func serverConfig(t *testing.T, name, settings string, log io.Writer) Config {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.json")
	conf := fmt.Sprintf(`{"name": %q, "data_dir": %q, "bind_addr": "127.0.0.1", "acl": {"enabled": true}, %s}`, name, dir, settings)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := agentconfig.Load(agentconfig.Options{Paths: []string{file}})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := FromConfig(c, hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Warn, Output: log}))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestOperatorSeesALostMajority stops one of two servers: the other shows its operator the members, its settings and its metrics, and
// gives a snapshot to who asks for a stale one, still by tokens.
func TestOperatorSeesALostMajority(t *testing.T) {
	key, join := strings.Repeat("A", 43)+"=", strings.Repeat("E", 43)+"="
	serf := []int{freePort(t), freePort(t)}
	var addrs []string
	var stops []func()
	for i := range 2 {
		cfg := serverConfig(t, fmt.Sprintf("s%d", i), fmt.Sprintf(`"ports": {"http": 0, "rpc": %d, "serf": %d}, "server": {"enabled": true, "bootstrap_expect": 2, "encrypt": %q, "join_key": %q, "server_join": {"retry_join": ["127.0.0.1:%d"]}}`,
			freePort(t), serf[i], key, join, serf[1-i]), t.Output())
		addr, stop := startStoppable(t, cfg)
		addrs, stops = append(addrs, addr), append(stops, stop)
	}
	var made struct {
		SecretID    string
		ModifyIndex uint64
	}
	wait(t, "the first token", func() bool {
		status, answer := ask(t, 10*time.Second, addrs[0], "POST", "/v1/acl/bootstrap", "", "")
		_ = json.Unmarshal(answer, &made)
		return status == http.StatusOK
	})
	token := made.SecretID
	wait(t, "the token in the state of the other server", func() bool { // until then the leader answers for it
		_, answer := ask(t, 10*time.Second, addrs[1], "GET", "/v1/agent/self", token, "")
		var self struct {
			Stats map[string]map[string]string `json:"stats"`
		}
		_ = json.Unmarshal(answer, &self)
		index, _ := strconv.ParseUint(self.Stats["raft"]["applied_index"], 10, 64)
		return made.ModifyIndex != 0 && index >= made.ModifyIndex
	})
	stops[0]()
	wait(t, "the loss of the leader", func() bool {
		status, _ := ask(t, 20*time.Second, addrs[1], "GET", "/v1/jobs", token, "")
		return status == http.StatusServiceUnavailable
	})
	for _, path := range []string{"/v1/agent/members", "/v1/agent/self", "/v1/metrics", "/v1/operator/raft/configuration?stale", "/v1/operator/snapshot?stale"} {
		if status, answer := ask(t, 20*time.Second, addrs[1], "GET", path, token, ""); status != http.StatusOK || len(answer) == 0 {
			t.Errorf("%s: status %d, %d bytes", path, status, len(answer))
		}
		if status, _ := ask(t, 20*time.Second, addrs[1], "GET", path, "", ""); status == http.StatusOK {
			t.Errorf("%s is answered without a token", path)
		}
	}
}

// TestExpiryIsShown starts an agent whose certificate is valid for ten days: its log warns, and a metric has the time.
func TestExpiryIsShown(t *testing.T) {
	dir := t.TempDir()
	ca, err := tlsutil.NewCA(tlsutil.CAOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tlsutil.NewCert(ca, tlsutil.CertOptions{Role: tlsutil.RoleServer, ValidFor: 10 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"ca": ca.Cert, "cert": pair.Cert, "key": pair.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r, w := io.Pipe()
	warned := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4<<10)
		for {
			n, err := r.Read(buf)
			all.Write(buf[:n])
			if strings.Contains(all.String(), "certificate expires") || err != nil {
				warned <- all.String()
				_, _ = io.Copy(io.Discard, r)
				return
			}
		}
	}()
	cfg := serverConfig(t, "s", fmt.Sprintf(`"ports": {"http": 0, "rpc": 0, "serf": 0}, "server": {"enabled": true, "bootstrap_expect": 1}, "telemetry": {"unauthenticated_metrics_access": true}, "tls": {"rpc": true, "ca_file": "%[1]s/ca", "cert_file": "%[1]s/cert", "key_file": "%[1]s/key"}`, dir), w)
	addr := startAgent(t, cfg)
	t.Cleanup(func() { w.Close() })
	select {
	case log := <-warned:
		if !strings.Contains(log, dir+"/cert") {
			t.Errorf("the log names no file: %s", log)
		}
	case <-time.After(10 * time.Second):
		t.Error("the log does not warn")
	}
	_, answer := ask(t, 5*time.Second, addr, "GET", "/v1/metrics?format=prometheus", "", "")
	var left float64
	for line := range strings.Lines(string(answer)) {
		if value, ok := strings.CutPrefix(line, "muster_tls_expires_seconds "); ok {
			_, _ = fmt.Sscan(value, &left)
		}
	}
	if left < 9*86400 || left > 10*86400 {
		t.Errorf("the metric says %v seconds", left)
	}
}
