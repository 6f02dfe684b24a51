//go:build e2e

package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/muster-sched/muster/client/driver/docker"
	"github.com/muster-sched/muster/e2e/harness"
)

// discarding ends containers of starts whose outcome is unknown, at the engine: one that runs, one that ignores its
// signal, one that was created but not started, and one that has ended. Those of another node stay, and one that is not
// there is no error.
func (n *node) discarding(t *testing.T) {
	const own, other = "5a6b7c8d-0000-4000-8000-0000000000a1", "5a6b7c8d-0000-4000-8000-0000000000a2"
	api, ctx := n.engine.api, context.Background()
	d := docker.New(docker.Options{Host: n.engine.host(), StateDir: t.TempDir(), NodeID: func() string { return own }})
	t.Cleanup(d.Close)
	put := func(name, node string, started bool, args ...string) {
		t.Helper()
		_, err := api.ContainerCreate(ctx, client.ContainerCreateOptions{Name: name, Config: &container.Config{
			Image: "box:v1", Cmd: args, Labels: map[string]string{docker.LabelNode: node, docker.LabelID: name},
		}, HostConfig: &container.HostConfig{NetworkMode: "none"}})
		if err == nil && started {
			_, err = api.ContainerStart(ctx, name, client.ContainerStartOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true}) })
	}
	exists := func(name string) bool {
		_, err := api.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
		return err == nil
	}
	const limit = 2 * time.Second // from the signal to SIGKILL
	for _, c := range []struct {
		name    string
		started bool
		args    []string
		atLeast time.Duration
	}{
		{"discard-polite.t.0", true, []string{"trap"}, 0},
		{"discard-stubborn.t.0", true, []string{"trap", "stubborn"}, limit},
		{"discard-created.t.0", false, []string{"sleep", "600"}, 0},
		{"discard-ended.t.0", true, []string{"echo", "over"}, 0},
	} {
		put(c.name, own, c.started, c.args...)
		if c.name == "discard-ended.t.0" {
			harness.Eventually(t, 20*time.Second, "the container to end", func() (bool, string) {
				r, err := api.ContainerInspect(ctx, c.name, client.ContainerInspectOptions{})
				return err == nil && !r.Container.State.Running, fmt.Sprint(err)
			})
		} else if c.started { // it handles signals once it says so
			harness.Eventually(t, 20*time.Second, "the container to be ready", func() (bool, string) {
				log, err := api.ContainerLogs(ctx, c.name, client.ContainerLogsOptions{ShowStdout: true})
				if err != nil {
					return false, err.Error()
				}
				defer log.Close()
				b := make([]byte, 64)
				k, _ := log.Read(b)
				return strings.Contains(string(b[:k]), "ready"), string(b[:k])
			})
		}
		from := time.Now()
		if err := d.Discard(ctx, c.name, "SIGTERM", limit); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if took := time.Since(from); took < c.atLeast || exists(c.name) {
			t.Errorf("%s: after %s (want at least %s) it exists: %v", c.name, took, c.atLeast, exists(c.name))
		}
		if err := d.Discard(ctx, c.name, "SIGTERM", limit); err != nil {
			t.Errorf("%s: a second time: %v", c.name, err)
		}
	}
	put("discard-foreign.t.0", other, true, "trap")
	if err := d.Discard(ctx, "discard-foreign.t.0", "SIGTERM", limit); err != nil || !exists("discard-foreign.t.0") {
		t.Errorf("the container of another node: %v; it exists: %v", err, exists("discard-foreign.t.0"))
	}
}

// TestKilledDevAgentLeavesNoContainer: no other agent will look for the containers of a dev agent, so its supervisor
// removes them when it is killed.
func TestKilledDevAgentLeavesNoContainer(t *testing.T) {
	e := newEngine(t)
	e.build(imageTar(t), "box:v1", `ENTRYPOINT ["/box"]`, `CMD ["echo", "hello"]`)
	n := &node{t: t, dir: t.TempDir(), engine: e}
	port := harness.FreePort(t)
	n.addr = fmt.Sprintf("http://127.0.0.1:%d", port)
	conf := filepath.Join(n.dir, "dev.hcl")
	text := fmt.Sprintf("ports {\n http = %d\n rpc = %d\n serf = %d\n}\nplugin \"docker\" {\n config {\n  endpoint = %q\n }\n}\n", port, harness.FreePort(t), harness.FreePort(t), e.host())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.agent = harness.Start(t, nil, "dev", nil, "agent", "-dev", "-config", conf)
	t.Cleanup(func() { n.agent.Signal(syscall.SIGINT) })
	n.api = harness.NewAPI(t, nil, "", n.addr)
	harness.Eventually(t, 30*time.Second, "a node", func() (bool, string) {
		var ns []struct{ Status string }
		err := n.api.Call("GET", "/v1/nodes", nil, &ns)
		return err == nil && len(ns) == 1 && ns[0].Status == "ready", fmt.Sprint(ns, err)
	})
	n.run(t, "left", "service", box("trap", "stubborn"), "")
	a := n.alloc(t, "left", "running")
	if len(n.containers(t, a.ID)) != 1 {
		t.Fatal("the task has no container")
	}
	n.agent.Kill9()
	harness.Eventually(t, 20*time.Second, "the container to be removed", func() (bool, string) {
		list := n.containers(t, a.ID)
		return len(list) == 0, fmt.Sprint(list)
	})
}
