package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/muster-sched/muster/e2e/freeport"
)

// backend is the backend of the servers' raft log, or "" for the default.
var backend string

// cluster is three servers on loopback, each a process of the binary.
type cluster struct {
	bin, dir string
	http     *http.Client
	procs    []*exec.Cmd
	ports    [][3]int // http, rpc, gossip
	sim      *exec.Cmd
	simDebug int // port of the simulated nodes' profiles
	simNodes int // simulated nodes started
}

func newCluster(bin string, servers int) *cluster {
	dir, err := os.MkdirTemp("", "muster-bench")
	if err != nil {
		fatal(err)
	}
	c := &cluster{bin: bin, dir: dir, procs: make([]*exec.Cmd, servers)}
	c.http = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: (&net.Dialer{Timeout: 200 * time.Millisecond}).DialContext}}
	for range servers {
		c.ports = append(c.ports, [3]int{freePort(), freePort(), freePort()})
	}
	var join []string
	for _, p := range c.ports {
		join = append(join, fmt.Sprintf(`"127.0.0.1:%d"`, p[2]))
	}
	logStore := ""
	if backend != "" {
		logStore = fmt.Sprintf("raft_logstore {\n    backend = %q\n  }", backend)
	}
	for i, p := range c.ports {
		conf := fmt.Sprintf(`
name      = "s%d"
data_dir  = %q
bind_addr = "127.0.0.1"
log_level = "WARN"
enable_debug = true
ports {
  http = %d
  rpc  = %d
  serf = %d
}
server {
  enabled          = true
  bootstrap_expect = %d
  %s
  server_join {
    retry_join = [%s]
  }
}
limits {
  http_max_conns_per_client = 1000
  rpc_max_conns_per_client  = 1000
}
`, i, filepath.Join(dir, fmt.Sprintf("s%d", i)), p[0], p[1], p[2], servers, logStore, strings.Join(join, ", "))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("s%d.hcl", i)), []byte(conf), 0o600); err != nil {
			fatal(err)
		}
		c.start(i)
	}
	c.until(20*time.Second, "a leader", func() bool { return c.leader() >= 0 })
	return c
}

func freePort() int {
	p, err := freeport.Pick()
	if err != nil {
		fatal(err)
	}
	return p
}

func (c *cluster) start(i int) {
	cmd := exec.Command(c.bin, "agent", "-config", filepath.Join(c.dir, fmt.Sprintf("s%d.hcl", i)))
	log, err := os.OpenFile(filepath.Join(c.dir, fmt.Sprintf("s%d.log", i)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		fatal(err)
	}
	log.Close()
	c.procs[i] = cmd
}

func (c *cluster) kill(i int) {
	_ = c.procs[i].Process.Kill()
	_ = c.procs[i].Wait()
}

// nodes starts n simulated nodes, with more options of muster nodesim.
func (c *cluster) nodes(n int, more ...string) {
	c.simDebug = freePort()
	args := []string{"nodesim", "-count", fmt.Sprint(n), "-debug-addr", fmt.Sprintf("127.0.0.1:%d", c.simDebug)}
	for _, p := range c.ports {
		args = append(args, "-server-addr", fmt.Sprintf("127.0.0.1:%d", p[1]))
	}
	c.sim = exec.Command(c.bin, append(args, more...)...)
	log, _ := os.Create(filepath.Join(c.dir, "sim.log"))
	c.sim.Stdout, c.sim.Stderr = log, log
	c.sim.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.sim.Start(); err != nil {
		fatal(err)
	}
	c.simNodes += n
	c.until(60*time.Second+time.Duration(n)*10*time.Millisecond, fmt.Sprintf("%d ready nodes", c.simNodes), func() bool {
		ready := 0
		for prefix := range 16 { // a page holds 5,000
			var ns []struct{ Status string }
			if c.call("GET", fmt.Sprintf("/v1/nodes?prefix=%x", prefix), nil, &ns) != nil {
				return false
			}
			for _, x := range ns {
				if x.Status == "ready" {
					ready++
				}
			}
		}
		return ready == c.simNodes
	})
}

// nodesLate returns how long a simulated node has waited at most for its turn since the last call.
func (c *cluster) nodesLate() time.Duration {
	resp, err := c.http.Get(fmt.Sprintf("http://127.0.0.1:%d/debug/late", c.simDebug))
	if err != nil {
		return nodesLimit // none of them ran
	}
	defer resp.Body.Close()
	var seconds float64
	if _, err := fmt.Fscan(resp.Body, &seconds); err != nil {
		fatal("the simulated nodes do not say how late they are:", err)
	}
	return time.Duration(seconds * float64(time.Second))
}

func (c *cluster) close() {
	if c.sim != nil {
		_ = c.sim.Process.Kill()
		_ = c.sim.Wait()
	}
	for i, p := range c.procs {
		if p.ProcessState == nil {
			c.kill(i)
		}
	}
	_ = os.RemoveAll(c.dir)
}

func (c *cluster) url(i int, path string) string {
	return fmt.Sprintf("http://127.0.0.1:%d%s", c.ports[i][0], path)
}

// leader returns the index of the leading server, or -1.
func (c *cluster) leader() int {
	for i := range c.procs {
		var l string
		if c.procs[i].ProcessState != nil || c.once(i, "GET", "/v1/status/leader", nil, &l) != nil {
			continue
		}
		for j, p := range c.ports {
			if strings.HasSuffix(l, fmt.Sprintf(":%d", p[1])) && c.procs[j].ProcessState == nil {
				return j
			}
		}
	}
	return -1
}

func (c *cluster) once(i int, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, ok := in.([]byte)
		if !ok {
			var err error
			if b, err = json.Marshal(in); err != nil {
				return err
			}
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, c.url(i, path), body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(b))
	}
	if out == nil || len(b) == 0 {
		return nil
	}
	return json.Unmarshal(b, out)
}

// call asks each server in turn until one answers.
func (c *cluster) call(method, path string, in, out any) error {
	var err error
	for i := range c.procs {
		if c.procs[i].ProcessState != nil {
			continue
		}
		if err = c.once(i, method, path, in, out); err == nil {
			return nil
		}
	}
	return err
}

func (c *cluster) until(d time.Duration, what string, ok func() bool) {
	c.untilWithin(d, 500*time.Millisecond, what, ok)
}

// untilWithin is until that notices no later than so much after it has come true.
func (c *cluster) untilWithin(d, most time.Duration, what string, ok func() bool) {
	pause := 20 * time.Millisecond
	for end := time.Now().Add(d); !ok(); time.Sleep(pause) {
		pause = min(pause*5/4, most)
		if time.Now().After(end) {
			for i := range c.procs {
				b, _ := os.ReadFile(filepath.Join(c.dir, fmt.Sprintf("s%d.log", i)))
				fmt.Fprintf(os.Stderr, "---- s%d\n%s\n", i, b[max(0, len(b)-3000):])
			}
			c.close()
			fatal("not within", d, ":", what)
		}
	}
}

// stats returns the figures of one server, "part.name"; none of server -1.
func (c *cluster) stats(i int) map[string]string {
	if i < 0 {
		return nil
	}
	var self struct {
		Stats map[string]map[string]string `json:"stats"`
	}
	out := map[string]string{}
	if c.once(i, "GET", "/v1/agent/self", nil, &self) == nil {
		for part, m := range self.Stats {
			for k, v := range m {
				out[part+"."+k] = v
			}
		}
	}
	return out
}

func job(id string, count int) []byte {
	b, err := json.Marshal(map[string]any{"Job": map[string]any{
		"ID": id, "Name": id, "Type": "service", "Datacenters": []string{"*"},
		"TaskGroups": []any{map[string]any{
			"Name": "g", "Count": count, "EphemeralDisk": map[string]any{"SizeMB": 10},
			"Tasks": []any{map[string]any{"Name": "t", "Driver": "fake", "LogConfig": map[string]any{"MaxFiles": 1, "MaxFileSizeMB": 1}, "Config": map[string]any{"command": "sleep"}, "Resources": map[string]any{"CPU": 1, "MemoryMB": 10}}},
		}},
	}})
	if err != nil {
		fatal(err)
	}
	return b
}
