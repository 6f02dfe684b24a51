package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// A container runs under the engine, which lets it run without agent and supervisor. Under a lease the supervisor guards
// it: it ends the container through the engine's socket as it ends a task. The agent asks for that between creating the
// container and starting it. So one of which the agent has not asked for the start yet is removed: a start that the
// agent sends later fails.

// Guard is a container that the supervisor ends when its lease is over.
type Guard struct {
	ID        string // of the task
	Engine    string // path of the engine's socket
	Container string
	Lease     Lease
	BootID    string // set by the supervisor
}

// guardRetry is the pause between two attempts to end a container; engineWithin limits one request.
const (
	guardRetry   = 200 * time.Millisecond
	engineWithin = 10 * time.Second
)

// Guard puts a container under its lease until Unguard. Repeating it changes nothing.
func (s *Service) Guard(g Guard, r *Reply) error {
	if !validID.MatchString(g.ID) || !filepath.IsAbs(g.Engine) || !validID.MatchString(g.Container) {
		return fail(r, kindFailed, fmt.Errorf("container %.140q of task %.140q at the engine %.140q cannot be guarded", g.Container, g.ID, g.Engine))
	}
	if err := s.leases.check(&g.Lease); err != nil {
		return fail(r, leaseKind(err), err)
	}
	g.BootID = bootID()
	if err := s.writeGuard(&g); err != nil {
		return fail(r, kindFailed, err)
	}
	s.guard(g)
	return nil
}

// Unguard forgets a container.
func (s *Service) Unguard(id string, r *Reply) error {
	if !validID.MatchString(id) {
		return nil
	}
	s.leases.drop(id)
	if err := os.Remove(s.guardFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(r, kindFailed, err)
	}
	return nil
}

func (s *Service) guardFile(id string) string { return filepath.Join(s.dir, "guard", id) }

// writeGuard replaces the file of a guard, whole.
func (s *Service) writeGuard(g *Guard) error {
	b, err := json.Marshal(g)
	if err != nil {
		return err
	}
	path := s.guardFile(g.ID)
	if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
		next := filepath.Join(s.dir, "guard-next-"+g.ID)
		if err = os.WriteFile(next, b, 0o600); err == nil {
			err = os.Rename(next, path)
		}
	}
	if err != nil {
		return fmt.Errorf("record a container to guard: %w", err)
	}
	return nil
}

// recoverGuards takes over the containers that an earlier supervisor guarded.
func (s *Service) recoverGuards() error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "guard"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, "guard", e.Name())
		b, err := os.ReadFile(path)
		var g Guard
		if err == nil {
			err = json.Unmarshal(b, &g)
		}
		switch {
		case err == nil && g.ID == e.Name() && g.BootID == bootID():
			s.guard(g)
		case err == nil && g.ID == e.Name(): // the machine was restarted, and the container ended with it
			_ = os.Remove(path)
		default:
			fmt.Fprintf(os.Stderr, "supervisor: the record of guarded container %s is unreadable: %v\n", e.Name(), err)
		}
	}
	return nil
}

// guard puts a container under its lease.
func (s *Service) guard(g Guard) {
	engine := &http.Client{Timeout: engineWithin, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", g.Engine)
		}}}
	s.leases.hold(g.ID, &heldTask{
		lease: g.Lease,
		note: func(l *Lease) error {
			noted := g
			noted.Lease = *l
			return s.writeGuard(&noted)
		},
		remove: func() bool {
			code, err := g.ask(engine, http.MethodDelete, "?force=true&v=true", nil)
			return err == nil && (code == http.StatusNoContent || code == http.StatusNotFound)
		},
		end: func(sig syscall.Signal) {
			if sig != syscall.SIGKILL {
				g.signal(engine, sig)
				return
			}
			for s.leases.holds(g.ID) {
				over, err := g.kill(engine)
				if over {
					return
				}
				if err != nil {
					fmt.Fprintf(os.Stderr, "supervisor: end the container of task %s: %v\n", g.ID, err)
				}
				time.Sleep(guardRetry)
			}
		},
	})
}

// ask sends a request about the container, and returns the status of the answer. into is filled if it is not nil.
func (g *Guard) ask(engine *http.Client, method, what string, into *engineState) (int, error) {
	req, err := http.NewRequest(method, "http://engine/containers/"+g.Container+what, nil)
	if err != nil {
		return 0, err
	}
	resp, err := engine.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if into != nil && resp.StatusCode == http.StatusOK {
		err = json.NewDecoder(resp.Body).Decode(into)
	}
	return resp.StatusCode, err
}

// engineState is what the engine says about a container.
type engineState struct {
	State struct {
		Status                      string
		Running, Paused, Restarting bool
	}
}

func (g *Guard) signal(engine *http.Client, sig syscall.Signal) {
	_, _ = g.ask(engine, http.MethodPost, "/unpause", nil) // a suspended container would not receive the signal
	if _, err := g.ask(engine, http.MethodPost, "/kill?signal="+strconv.Itoa(int(sig)), nil); err != nil {
		fmt.Fprintf(os.Stderr, "supervisor: send a signal to the container of task %s: %v\n", g.ID, err)
	}
}

// kill ends the container by force. over means that it does not run, and cannot any more.
func (g *Guard) kill(engine *http.Client) (over bool, err error) {
	var is engineState
	code, err := g.ask(engine, http.MethodGet, "/json", &is)
	switch {
	case err != nil:
		return false, err
	case code == http.StatusNotFound:
		return true, nil
	case code != http.StatusOK:
		return false, fmt.Errorf("the engine answers with status %d", code)
	case is.State.Status == "created": // a start may be under way
		_, err = g.ask(engine, http.MethodDelete, "?force=true", nil)
		return false, err
	case !is.State.Running && !is.State.Paused && !is.State.Restarting:
		return true, nil
	}
	_, _ = g.ask(engine, http.MethodPost, "/unpause", nil)
	_, err = g.ask(engine, http.MethodPost, "/kill?signal=KILL", nil)
	return false, err
}
