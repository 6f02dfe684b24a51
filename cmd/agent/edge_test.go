package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/edge"
)

// send makes a request with these headers, of which Host replaces the one of the address.
func send(t *testing.T, addr, method, path, body string, header ...string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequest(method, addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(bytes.TrimSpace(b))
}

// TestOtherSites plays a web page in the browser of a user who reaches an agent without tokens: by a form, by the name
// of the page pointed at the agent, and by a websocket. Every route refuses it, and nothing runs.
func TestOtherSites(t *testing.T) {
	cfg := devConfig(t, `"http_allowed_hosts": ["muster.example.com"]`)
	addr := startAgent(t, cfg)
	wait(t, "a leader", func() bool {
		status, _ := ask(t, 5*time.Second, addr, "GET", "/v1/jobs", "", "")
		return status == http.StatusOK
	})
	job := `{"Job": {"ID": "owned", "Type": "batch", "Datacenters": ["dc1"], "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "id"}}]}]}}`
	pages := map[string][]string{
		"a form":               {"Origin", "http://evil.example", "Content-Type", "text/plain"},
		"a cross-site request": {"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"},
		"a rebound name":       {"Host", "rebind.evil.example", "Origin", "http://rebind.evil.example", "Sec-Fetch-Site", "same-origin"},
		"another port's page":  {"Origin", "http://127.0.0.1:1", "Sec-Fetch-Site", "same-site"},
		"a websocket":          {"Origin", "http://evil.example", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="},
		"a websocket, rebound": {"Host", "rebind.evil.example", "Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="},
	}
	checks := 0
	for _, rt := range append(nomadlike.Routes(), nomadlike.Route{Methods: []string{"GET"}, Pattern: "/debug/pprof/heap"}, nomadlike.Route{Methods: []string{"GET"}, Pattern: "/nothing"}) {
		path := strings.NewReplacer("{id}", nowhere, "{name}", "default", "{tag}", "x", "{op}", "list", "{path}", "x").Replace(rt.Pattern)
		for _, method := range rt.Methods {
			for name, header := range pages {
				checks++
				if status, answer := send(t, addr, method, path, "", header...); status != http.StatusForbidden || method != "HEAD" && !strings.Contains(answer, "http_allowed_hosts") {
					t.Errorf("%s at %s %s: status %d (%.200s), want 403 with the setting", name, method, path, status, answer)
				}
			}
		}
	}
	for name, header := range pages {
		if status, _ := send(t, addr, "POST", "/v1/jobs", job, header...); status != http.StatusForbidden {
			t.Errorf("%s registered a job: status %d", name, status)
		}
	}
	_, b := ask(t, 5*time.Second, addr, "GET", "/v1/jobs", "", "")
	var jobs []json.RawMessage
	if err := json.Unmarshal(b, &jobs); err != nil || len(jobs) != 0 {
		t.Errorf("jobs of web pages: %s, %v", b, err)
	}
	for name, header := range map[string][]string{
		"curl": {"User-Agent", "curl/8.5.0", "Content-Type", "application/x-www-form-urlencoded"}, "a program": {},
		"the agent's name": {"Host", "one"}, "the setting": {"Host", "muster.example.com"},
		"an own page": {"Origin", addr, "Sec-Fetch-Site", "same-origin"}, "a page behind a proxy": {"Origin", "https://muster.example.com"},
	} {
		if status, answer := send(t, addr, "PUT", "/v1/jobs", job, header...); status != http.StatusOK {
			t.Errorf("%s: status %d (%s)", name, status, answer)
		}
	}
	t.Logf("%d refusals", checks)
}

// TestSocketFlood: thousands of connections of one user to the unix socket leave the agent to all others.
func TestSocketFlood(t *testing.T) {
	const connections = 3000
	cfg := devConfig(t, "")
	cfg.ConnsPerIP = edge.PerClientDefault
	var log lockedBuffer
	cfg.Log = hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Warn, Output: &log})
	addr := startAgent(t, cfg)
	dir := os.Getenv("TMPDIR")
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // another user has to reach the socket
		t.Fatal(err)
	}
	var socks []string
	wait(t, "the agent", func() bool {
		socks, _ = filepath.Glob(filepath.Join(dir, "muster-dev-*", "muster.sock"))
		status, _ := ask(t, 5*time.Second, addr, "GET", "/v1/agent/health", "", "")
		return len(socks) == 1 && status == http.StatusOK
	})
	flood := make(chan []int)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its user
		if os.Geteuid() == 0 {
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
				t.Errorf("setresuid: %v", e)
			}
		}
		var fds []int
		for range connections {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Errorf("socket %d: %v", len(fds), err)
				break
			}
			fds = append(fds, fd)
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socks[0]}); err != nil {
				t.Errorf("connection %d: %v", len(fds), err)
				break
			}
		}
		flood <- fds
	}()
	fds := <-flood
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if status, _ := ask(t, 2*time.Second, addr, "GET", "/v1/agent/health", "", ""); status != http.StatusOK {
		t.Errorf("TCP during the flood: status %d", status)
	}
	wait(t, "refusals", func() bool { return kept(fds) <= edge.PerClientDefault })
	if n := kept(fds); n == 0 {
		t.Error("no connection was kept")
	}
	if n := strings.Count(log.String(), "were refused"); n != 1 {
		t.Errorf("%d log lines about refusals, want 1:\n%s", n, log.String())
	}
}

// kept returns how many connections the other end has left open.
func kept(fds []int) (n int) {
	for _, fd := range fds {
		if err := unix.SetNonblock(fd, true); err != nil {
			continue
		}
		if _, err := unix.Read(fd, make([]byte, 1)); err == unix.EAGAIN {
			n++
		}
	}
	return n
}

// lockedBuffer is a log that a test reads while the agent writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSocketLogin: a denial at the unix socket says why the user could not log in, and at a login node they can.
func TestSocketLogin(t *testing.T) {
	for _, all := range []bool{false, true} {
		cfg := devConfig(t, `"acl": {"enabled": true}`)
		if !cfg.Server.Logins.All {
			t.Error("-dev does not log in the users of its node")
		}
		cfg.Server.Logins.All = all
		addr := startAgent(t, cfg)
		var root struct{ SecretID string }
		wait(t, "the bootstrap", func() bool {
			status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/bootstrap", "", "")
			return status == http.StatusOK && json.Unmarshal(b, &root) == nil
		})
		if status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/policy/login", root.SecretID, `{"Name": "login", "Rules": "node { policy = \"read\" }"}`); status != http.StatusOK {
			t.Fatalf("policy: status %d: %s", status, b)
		}
		socks, _ := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "muster-dev-*", "muster.sock"))
		local := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socks[0])
		}}}
		var status int
		var answer string
		wait(t, "an answer that depends on the login", func() bool {
			resp, err := local.Get("http://unix/v1/nodes")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			status, answer = resp.StatusCode, string(b)
			return status == http.StatusOK || strings.Contains(answer, "login_nodes")
		})
		if want := map[bool]int{false: http.StatusForbidden, true: http.StatusOK}[all]; status != want {
			t.Errorf("login node %v: status %d (%s), want %d", all, status, answer, want)
		}
	}
}

// TestMetricsWithoutToken is the witness of telemetry.unauthenticated_metrics_access.
func TestMetricsWithoutToken(t *testing.T) {
	for open, want := range map[bool]int{false: http.StatusForbidden, true: http.StatusOK} {
		cfg := devConfig(t, fmt.Sprintf(`"acl": {"enabled": true}, "telemetry": {"unauthenticated_metrics_access": %v}`, open))
		addr := startAgent(t, cfg)
		wait(t, fmt.Sprintf("status %d with the setting %v", want, open), func() bool {
			status, _ := ask(t, 5*time.Second, addr, "GET", "/v1/metrics", "", "")
			return status == want
		})
	}
}

// TestRequestLimits is the witness of the limits on requests: each refuses what comes beyond it, with Retry-After.
func TestRequestLimits(t *testing.T) {
	for setting, value := range map[string]any{"http_max_rate_per_client": 5, "http_max_rate_per_token": 5, "http_wrong_token_delay": "300ms"} {
		limits := map[string]any{"http_max_rate_per_client": 0, "http_max_rate_per_token": 0, "http_wrong_token_delay": "0s"}
		limits[setting] = value
		text, err := json.Marshal(limits)
		if err != nil {
			t.Fatal(err)
		}
		cfg := devConfig(t, `"acl": {"enabled": true}, "limits": `+string(text))
		addr := startAgent(t, cfg)
		wait(t, "the agent", func() bool {
			status, _ := ask(t, 5*time.Second, addr, "GET", "/v1/jobs", "", "")
			return status == http.StatusForbidden
		})
		begin, refused := time.Now(), 0
		for range 30 {
			req, err := http.NewRequest("GET", addr+"/v1/jobs", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Nomad-Token", nowhere)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if setting == "http_wrong_token_delay" {
				if took := time.Since(begin); resp.StatusCode != http.StatusForbidden || took < 300*time.Millisecond {
					t.Errorf("a wrong token: status %d after %s", resp.StatusCode, took)
				}
				break
			}
			if resp.StatusCode != http.StatusTooManyRequests {
				continue
			}
			if refused++; resp.Header.Get("Retry-After") != "1" || !strings.Contains(string(b), setting) {
				t.Errorf("%s: Retry-After %q, %s", setting, resp.Header.Get("Retry-After"), b)
			}
		}
		if most := 30 - 20; setting != "http_wrong_token_delay" && (refused == 0 || refused > most) {
			t.Errorf("%s: %d of 30 requests refused, want 1 to %d", setting, refused, most)
		}
	}
}

// TestAllocRate is the witness of alloc_max_rate_per_token: 2 KB that ask for 100,000 allocations are counted as such, over
// HTTP, and neither another token nor a read waits for them.
func TestAllocRate(t *testing.T) {
	cfg := devConfig(t, `"acl": {"enabled": true}, "limits": {"alloc_max_rate_per_token": 100, "http_wrong_token_delay": "0s"}`)
	addr := startAgent(t, cfg)
	var root struct{ SecretID string }
	wait(t, "the bootstrap", func() bool {
		status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/bootstrap", "", "")
		return status == http.StatusOK && json.Unmarshal(b, &root) == nil
	})
	if status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/policy/user", root.SecretID, `{"Name": "user", "Rules": "namespace \"default\" { policy = \"write\" }"}`); status != http.StatusOK {
		t.Fatalf("a policy: %d, %s", status, b)
	}
	token := func() string {
		t.Helper()
		var tok struct{ SecretID string }
		status, b := ask(t, 5*time.Second, addr, "PUT", "/v1/acl/token", root.SecretID, `{"Type": "client", "Policies": ["user"]}`)
		if status != http.StatusOK || json.Unmarshal(b, &tok) != nil {
			t.Fatalf("a token: %d, %s", status, b)
		}
		return tok.SecretID
	}
	greedy, other := token(), token()
	register := func(token, id string) (status int, after, answer string) {
		t.Helper()
		req, err := http.NewRequest("PUT", addr+"/v1/jobs", strings.NewReader(`{"Job": {"ID": "`+id+`", "Datacenters": ["dc1"], "Constraints": [{"LTarget": "${node.unique.name}", "RTarget": "none", "Operand": "="}],
			"TaskGroups": [{"Name": "g", "Count": 100000, "Tasks": [{"Name": "t", "Driver": "exec", "Config": {"command": "id"}}]}]}}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Nomad-Token", token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Retry-After"), string(b)
	}
	if status, _, answer := register(greedy, "first"); status != http.StatusOK {
		t.Fatalf("the first job: %d, %s", status, answer)
	}
	status, after, answer := register(greedy, "second")
	if n, _ := strconv.Atoi(after); status != http.StatusTooManyRequests || n < 900 || n > 1000 || !strings.Contains(answer, "100000 allocations") || !strings.Contains(answer, "alloc_max_rate_per_token") {
		t.Errorf("the second job: %d, Retry-After %q, %s", status, after, answer)
	}
	for who, token := range map[string]string{"another user": other, "an operator": root.SecretID} {
		if status, _, answer := register(token, "others"); status != http.StatusOK {
			t.Errorf("%s: %d, %s", who, status, answer)
		}
	}
	if status, b := ask(t, 5*time.Second, addr, "GET", "/v1/jobs", greedy, ""); status != http.StatusOK || strings.Contains(string(b), "second") {
		t.Errorf("the jobs: %d, %s", status, b)
	}
}
