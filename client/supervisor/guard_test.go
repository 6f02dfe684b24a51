package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// fakeEngine is an engine with containers by name. A "rude" one ends only by SIGKILL.
type fakeEngine struct {
	socket string

	mu         sync.Mutex
	containers map[string]string // status by name
	calls      []string
}

func newFakeEngine(t *testing.T, containers map[string]string) *fakeEngine {
	t.Helper()
	dir, err := os.MkdirTemp("", "guard") // short: paths of sockets end at 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{socket: filepath.Join(dir, "e.sock"), containers: containers}
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: e}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close(); os.RemoveAll(dir) })
	return e
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/containers/"), "/")
	status, known := e.containers[name]
	if what != "json" {
		e.calls = append(e.calls, fmt.Sprintf("%s %s %s %s", r.Method, name, what, r.URL.Query().Get("signal")))
	}
	switch {
	case !known:
		w.WriteHeader(http.StatusNotFound)
	case what == "json":
		fmt.Fprintf(w, `{"State":{"Status":%q,"Running":%t}}`, status, status == "running")
	case what == "kill" && status != "running":
		w.WriteHeader(http.StatusConflict)
	case what == "kill" && (r.URL.Query().Get("signal") == "KILL" || !strings.HasPrefix(name, "rude")):
		e.containers[name] = "exited"
	case r.Method == http.MethodDelete:
		delete(e.containers, name)
	}
}

func (e *fakeEngine) status(name string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.containers[name]
}

// TestGuard: containers end with the lease, by their signal or by force, also under another supervisor; one that was not
// started yet is removed; one that is no longer guarded, or whose lease is long, stays.
func TestGuard(t *testing.T) {
	s := newSup(t)
	e := newFakeEngine(t, map[string]string{"polite": "running", "rude": "running", "made": "created", "free": "running", "long": "running"})
	s.renew(Boottime())
	const limit, timeout = 1500 * time.Millisecond, 400 * time.Millisecond
	guard := func(name, alloc string, limit time.Duration) error {
		return s.Client.Guard(context.Background(), &Guard{ID: alloc + "." + name, Engine: e.socket, Container: name,
			Lease: Lease{Group: alloc, Limit: limit, Signal: int(syscall.SIGTERM), Timeout: timeout}})
	}
	for _, name := range []string{"polite", "rude", "made", "free"} {
		if err := guard(name, "a", limit); err != nil {
			t.Fatal(err)
		}
	}
	if err := guard("long", "b", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := s.Unguard(t.Context(), "a.free"); err != nil {
		t.Fatal(err)
	}
	s.killSupervisor()
	if s.lapsed("a") {
		t.Fatal("it lapsed at once")
	}
	within(t, 20*time.Second, "the containers to end", func() bool {
		return e.status("polite") == "exited" && e.status("rude") == "exited" && e.status("made") == ""
	})
	for _, name := range []string{"free", "long"} {
		if st := e.status(name); st != "running" {
			t.Errorf("%s: %s", name, st)
		}
	}
	e.mu.Lock()
	for _, want := range []string{"POST polite kill 15", "POST rude kill 15", "POST rude kill KILL", "DELETE made  "} {
		if !slices.Contains(e.calls, want) {
			t.Errorf("the engine was not asked for %q: %q", want, e.calls)
		}
	}
	if slices.Contains(e.calls, "POST polite kill KILL") {
		t.Error("a container that ended by its signal was killed")
	}
	e.mu.Unlock()
	s.renew(Boottime())
	if err := guard("again", "a", limit); !errors.Is(err, ErrLapsed) {
		t.Errorf("a container of an allocation that lapsed: %v", err)
	}
	if err := guard("../../x", "c", limit); err == nil {
		t.Error("a container with a bad name is guarded")
	}
}
