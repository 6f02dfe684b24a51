package client

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/client/clientfake"
	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/client/driver/fake"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/structs"
)

// runsOut runs an agent that the servers will refuse, and returns how it ended.
func runsOut(t *testing.T, c *Client) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Run(context.Background()) }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the agent did not end")
		return nil
	}
}

// TestYield: an agent whose node belongs to another agent stops its tasks and ends with a sentence.
func TestYield(t *testing.T) {
	srv := clientfake.New()
	srv.TTL = 300 * time.Millisecond
	c, err := New(newConfig(t, srv))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-c.Joined()
		id := srv.Place(c.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
		srv.WaitStatus(t, id, structs.ClientRunning)
		srv.Fail(func(string) error { return structs.Errorf(structs.CodeFenced, "the agent at elsewhere is alive") })
	}()
	err = runsOut(t, c)
	if err == nil || !strings.Contains(err.Error(), "the agent at elsewhere is alive") || !strings.Contains(err.Error(), "remove "+c.cfg.Storage.DataDir) {
		t.Errorf("the agent ended with %v", err)
	}
	for _, r := range c.Allocs() {
		if n := len(r.Running()); n != 0 || r.Final() == nil {
			t.Errorf("allocation %s: %d tasks run on", r.ID(), n)
		}
	}
}

// TestCopyStartsNothing: an agent on a copy of a data directory starts none of its allocations before the servers have
// accepted it. When they do, it runs them.
func TestCopyStartsNothing(t *testing.T) {
	srv := clientfake.New()
	cfg := newConfig(t, srv)
	a := start(t, srv, cfg)
	id := srv.Place(a.ID(), clientfake.Job("svc", structs.JobService, clientfake.Task("main", "fake", `{}`)))
	srv.WaitStatus(t, id, structs.ClientRunning)
	place := a.id.place
	a.Close()
	<-a.done

	cfg.Storage.DataDir, cfg.Storage.AllocsDir = filepath.Join(t.TempDir(), "copy"), ""
	cfg.Host.Drivers = driver.NewSet(fake.New()) // of another machine
	if err := os.CopyFS(cfg.Storage.DataDir, os.DirFS(a.cfg.Storage.DataDir)); err != nil {
		t.Fatal(err)
	}
	waits := 0
	srv.Fail(func(method string) error {
		if waits++; method != methods.NodeRegister.Name || waits < 4 {
			return structs.Errorf(structs.CodeBusy, "the agent at elsewhere may live")
		}
		return structs.Errorf(structs.CodeFenced, "the agent at elsewhere is alive")
	})
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if c.ID() != a.ID() || c.id.place == place || !c.id.moved {
		t.Fatalf("the copy has id %s at %q, the original %s at %q", c.ID(), c.id.place, a.ID(), place)
	}
	if err := runsOut(t, c); err == nil || !strings.Contains(err.Error(), "is alive") {
		t.Errorf("the copy ended with %v", err)
	}
	for _, r := range c.Allocs() {
		if r.Final() != nil || len(r.Running()) != 0 || r.ID() != id {
			t.Errorf("the copy touched allocation %s", r.ID())
		}
	}
	srv.Fail(nil)
	c2 := start(t, srv, cfg)
	srv.Wait(t, "the allocation to run at the new place", func() bool {
		r := c2.Alloc(id)
		return r != nil && len(r.Running()) == 1
	})
	if b, err := os.ReadFile(filepath.Join(cfg.Storage.DataDir, placeFile)); err != nil || strings.TrimSpace(string(b)) != c2.id.place {
		t.Errorf("the new place was not stored: %q, %v", b, err)
	}
}
