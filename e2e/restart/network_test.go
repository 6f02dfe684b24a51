//go:build e2e

package restart

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/e2e/harness"
)

// getVar makes this test binary print what an address answers.
const getVar = "MUSTER_TEST_GET"

func init() {
	url := os.Getenv(getVar)
	if url == "" {
		return
	}
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	b, err := io.ReadAll(resp.Body)
	fmt.Print(string(b))
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// The port inside is the same for both groups, and one that only root may bind on a node.
const networkJob = `job "net" {
  group "a" {
    network {
      mode     = "bridge"
      hostname = "alpha"
      port "http" {
        to = 80
      }
    }
    service {
      name     = "net-a"
      port     = "http"
      provider = "nomad"
      check {
        type     = "http"
        path     = "/health"
        interval = "1s"
        timeout  = "5s"
      }
    }
    task "server" {
      driver = "exec"
      config {
        command = %[1]q
      }
      env {
        MUSTER_TEST_SERVE = "${NOMAD_PORT_http}"
      }
      resources {
        cpu    = 20
        memory = 64
      }
    }
  }
  group "b" {
    network {
      mode = "bridge"
      port "http" {
        to = 80
      }
    }
    task "server" {
      driver = "raw_exec"
      config {
        command = %[1]q
      }
      env {
        MUSTER_TEST_SERVE = "${NOMAD_PORT_http}"
      }
      resources {
        cpu    = 20
        memory = 64
      }
    }
  }
}
`

// inNetwork runs fn in a thread that is in the network of a host.
func inNetwork(h *harness.Host, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		f, err := os.Open(h.Namespace())
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// TestRestartNetwork has two groups with the same port inside on one node, and kills the agent. They are reached from outside, from the
// node's loopback and from each other all the time, reach the outside themselves, and leave nothing behind.
func TestRestartNetwork(t *testing.T) {
	harness.NeedNamespaces(t)
	n := harness.NewNet(t, "node", "outside")
	node, outside := n.Host("node"), n.Host("outside")
	m := newMachine(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(m.dir, "server")
	if out, err := exec.Command("install", "-m", "755", self, server).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dial := func(h *harness.Host) func(ctx context.Context, network, addr string) (net.Conn, error) {
		return func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = inNetwork(h, func() (err error) {
				c, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
				return err
			})
			return c, err
		}
	}
	get := func(h *harness.Host, url string) string {
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial(h)}}
		resp, err := client.Get(url)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	m.api = harness.NewAPI(t, dial(node), "", fmt.Sprintf("http://127.0.0.1:%d", m.ports[0]))
	m.host = node

	// What is there of links, namespaces that are mounted, and rules.
	left := func() (out []string) {
		if err := inNetwork(node, func() error {
			list, err := net.Interfaces()
			for _, l := range list {
				out = append(out, l.Name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(out)
		return append(out, harness.Mounts(m.dir)...)
	}
	before := left()
	m.start()
	var nodes []struct{ ID string }
	var one struct{ Attributes map[string]string }
	if err := m.api.Call("GET", "/v1/nodes", nil, &nodes); err != nil {
		t.Fatal(err)
	}
	if err := m.api.Call("GET", "/v1/node/"+nodes[0].ID, nil, &one); err != nil {
		t.Fatal(err)
	}
	harness.NotRun(t, one.Attributes["network.bridge.lacks"])

	// A server outside, which reports the address of its clients.
	var l net.Listener
	if err := inNetwork(outside, func() (err error) {
		l, err = net.Listen("tcp4", ":7000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, "you are "+host)
	}))

	muster := func(args ...string) (string, error) {
		cmd := node.Muster(t, args...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("MUSTER_ADDR=http://127.0.0.1:%d", m.ports[0]))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	file := filepath.Join(m.dir, "net.hcl")
	if err := os.WriteFile(file, fmt.Appendf(nil, networkJob, server), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := muster("job", "run", "-detach", file); err != nil {
		t.Fatalf("job run: %v: %s", err, out)
	}
	m.until("net", "running", 2)
	type alloc struct {
		ID, TaskGroup      string
		AllocatedResources struct {
			Shared struct{ Ports []struct{ Value int } }
		}
	}
	ids, ports := map[string]string{}, map[string]int{}
	as, err := m.api.Allocs("net")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range as {
		var a alloc
		if err := m.api.Call("GET", "/v1/allocation/"+x.ID, nil, &a); err != nil {
			t.Fatal(err)
		}
		ids[a.TaskGroup], ports[a.TaskGroup] = a.ID, a.AllocatedResources.Shared.Ports[0].Value
	}
	inside := func(group, url string) string {
		out, _ := muster("alloc", "exec", "--task", "server", ids[group], "--", "/usr/bin/env", "-u", serveVar, getVar+"="+url, server)
		return out
	}
	check := func(when string) {
		t.Helper()
		want := func(what, got, want string) {
			t.Helper()
			if strings.TrimSpace(got) != want {
				t.Errorf("%s, %s: %q, want %q", when, what, got, want)
			}
		}
		for _, g := range []string{"a", "b"} {
			other := map[string]string{"a": "b", "b": "a"}[g]
			want("from outside to "+g, get(outside, fmt.Sprintf("http://%s:%d/", node.IP, ports[g])), ids[g])
			want("from the node's loopback to "+g, get(node, fmt.Sprintf("http://127.0.0.1:%d/", ports[g])), ids[g])
			want("from "+g+" to its neighbour", inside(g, fmt.Sprintf("http://%s:%d/", node.IP, ports[other])), ids[other])
			want("from "+g+" to itself", inside(g, fmt.Sprintf("http://%s:%d/", node.IP, ports[g])), ids[g])
			want("from "+g+" to its loopback", inside(g, "http://127.0.0.1:80/"), ids[g])
			want("from "+g+" to the outside", inside(g, "http://"+outside.IP+":7000/"), "you are "+node.IP)
		}
		want("by its own name", inside("a", "http://alpha/"), ids["a"])
	}
	harness.Eventually(t, 40*time.Second, "both to answer", func() (bool, string) {
		a, b := get(node, fmt.Sprintf("http://127.0.0.1:%d/", ports["a"])), get(node, fmt.Sprintf("http://127.0.0.1:%d/", ports["b"]))
		return a == ids["a"] && b == ids["b"], a + " " + b
	})
	check("as it began")
	harness.Eventually(t, 40*time.Second, "the service to be healthy at the node's address", func() (bool, string) {
		var regs []registration
		err := m.api.Call("GET", "/v1/service/net-a", nil, &regs)
		return err == nil && len(regs) == 1 && regs[0].Address == node.IP && regs[0].Port == ports["a"] && regs[0].Health == "passing", fmt.Sprintf("%+v %v", regs, err)
	})

	m.agent.Kill9()
	for _, g := range []string{"a", "b"} {
		if got := get(outside, fmt.Sprintf("http://%s:%d/", node.IP, ports[g])); got != ids[g] {
			t.Errorf("without an agent, from outside to %s: %q", g, got)
		}
	}
	m.start()
	m.until("net", "running", 2)
	check("with the next agent")

	if out, err := muster("job", "stop", "-detach", "net"); err != nil {
		t.Fatalf("job stop: %v: %s", err, out)
	}
	var now []string
	harness.Eventually(t, 60*time.Second, "everything to be gone", func() (bool, string) {
		now = slices.DeleteFunc(left(), func(s string) bool { return strings.Contains(s, "/secrets") })
		return slices.Equal(now, before), fmt.Sprintf("left %v, before %v", now, before)
	})
}
