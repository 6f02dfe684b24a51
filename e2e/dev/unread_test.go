//go:build e2e

package dev

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
)

// TestUnreadLog: an agent whose log has no reader any more, because a pager or a log collector ended, keeps running;
// one started with -dev ends and cleans up.
func TestUnreadLog(t *testing.T) {
	for _, dev := range []bool{false, true} {
		t.Run(fmt.Sprintf("dev %t", dev), func(t *testing.T) {
			dir := t.TempDir()
			port := harness.FreePort(t)
			conf := filepath.Join(dir, "agent.hcl")
			text := fmt.Sprintf("bind_addr = \"127.0.0.1\"\nports {\n  http = %d\n  rpc = %d\n  serf = %d\n}\n", port, harness.FreePort(t), harness.FreePort(t))
			args := []string{"agent", "-config", conf}
			if dev {
				args = append(args, "-dev")
			} else {
				text += fmt.Sprintf("data_dir = %q\nserver {\n  enabled = true\n  bootstrap_expect = 1\n}\n", filepath.Join(dir, "data"))
			}
			if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(harness.Bin(t), args...)
			cmd.Stdout, cmd.Stderr = w, w
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			said := ""
			for sc := bufio.NewScanner(r); sc.Scan(); {
				said += sc.Text() + "\n"
				if strings.Contains(said, "leading") && (!dev || strings.Contains(said, "alloc logs")) {
					break
				}
			}
			hangUp(t, port)
			select {
			case err := <-ended:
				t.Fatalf("it ended with a client's connection: %v", err)
			case <-time.After(2 * time.Second):
			}
			r.Close()
			api := harness.NewAPI(t, nil, "", fmt.Sprintf("http://127.0.0.1:%d", port))
			_ = cmd.Process.Signal(syscall.SIGHUP) // it logs what it has reloaded
			if dev {
				m := regexp.MustCompile(`Data +(\S+) \(removed at the end`).FindStringSubmatch(said)
				if m == nil {
					t.Fatalf("the agent does not say where its data is:\n%s", said)
				}
				select {
				case <-ended:
				case <-time.After(60 * time.Second):
					t.Fatal("it goes on")
				}
				if _, err := os.Stat(m[1]); err == nil {
					t.Errorf("%s is still there", m[1])
				}
				return
			}
			select {
			case err := <-ended:
				t.Fatalf("it ended: %v", err)
			case <-time.After(2 * time.Second):
			}
			if err := api.Call("GET", "/v1/agent/self", nil, nil); err != nil {
				t.Errorf("it does not answer: %v", err)
			}
			_ = cmd.Process.Signal(syscall.SIGINT)
			select {
			case <-ended:
			case <-time.After(60 * time.Second):
				t.Fatal("it does not end")
			}
		})
	}
}

// hangUp asks for more than it waits for, so that the agent writes to connections that are reset.
func hangUp(t *testing.T, port int) {
	for range 50 {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, strings.Repeat("GET /v1/agent/self HTTP/1.1\r\nHost: a\r\n\r\n", 20))
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
}
