package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

// leased makes a task that ignores SIGTERM unless polite.
func (s *sup) leased(id, group string, limit, timeout time.Duration, polite bool) *Spec {
	script := "trap '' TERM; while :; do sleep 0.05; done"
	if polite {
		script = "trap 'exit 7' TERM; while :; do sleep 0.05; done"
	}
	spec := s.spec(id, script)
	spec.Lease = &Lease{Group: group, Limit: limit, Signal: int(syscall.SIGTERM), Timeout: timeout}
	return spec
}

func (s *sup) renew(at time.Duration) {
	s.t.Helper()
	if err := s.Renew(s.t.Context(), at); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sup) lapsed(group string) bool {
	s.t.Helper()
	yes, err := s.Lapsed(s.t.Context(), group)
	if err != nil {
		s.t.Fatal(err)
	}
	return yes
}

// TestLease: tasks run while the lease is renewed, end by their signal, or by force, when it is not, and nothing of their
// allocation starts again, also under another supervisor.
func TestLease(t *testing.T) {
	s := newSup(t)
	const limit, timeout = 600 * time.Millisecond, 400 * time.Millisecond
	s.renew(Boottime())
	s.start(s.leased("a.rude", "a", limit, timeout, false))
	s.start(s.leased("a.polite", "a", limit, timeout, true))
	s.start(s.leased("b.long", "b", time.Hour, timeout, true))
	s.start(s.spec("c.free", "sleep 1000"))
	begun := Boottime()
	within(t, time.Minute, "the limit passes twice", func() bool {
		s.renew(Boottime())
		return Boottime()-begun > 2*limit
	})
	renewed := Boottime()
	s.renew(renewed)
	s.renew(renewed - time.Hour) // never back
	for _, id := range []string{"a.rude", "a.polite"} {
		if st, err := s.Inspect(t.Context(), id); err != nil || st.Ended {
			t.Fatalf("%s: %+v, %v; the lease was renewed", id, st, err)
		}
	}
	if e := s.wait("a.polite"); e.Code != 7 {
		t.Errorf("ended by its signal: %+v, want code 7", e)
	}
	if d := Boottime() - renewed; d < limit || d > limit+timeout {
		t.Errorf("it was sent its signal after %s, want %s", d, limit)
	}
	if e := s.wait("a.rude"); e.Signal != int(syscall.SIGKILL) {
		t.Errorf("ended by force: %+v", e)
	}
	if d := Boottime() - renewed; d < limit+timeout || d > limit+timeout+2*time.Second {
		t.Errorf("it was killed after %s, want %s", d, limit+timeout)
	}
	s.renew(Boottime()) // contact returns
	for range 2 {
		if _, err := s.Start(t.Context(), s.leased("a.again", "a", limit, timeout, true)); !errors.Is(err, ErrLapsed) {
			t.Errorf("started again: %v", err)
		}
		if !s.lapsed("a") || s.lapsed("b") {
			t.Error("lapsed: want a, not b")
		}
		s.killSupervisor()
		s.renew(Boottime())
	}
	for _, id := range []string{"b.long", "c.free"} {
		if st, err := s.Inspect(t.Context(), id); err != nil || st.Ended {
			t.Errorf("%s: %+v, %v; it should run", id, st, err)
		}
	}
}

// TestLeaseOutlivesSupervisor: a supervisor that takes up tasks counts from the last renewal of the one before.
func TestLeaseOutlivesSupervisor(t *testing.T) {
	s := newSup(t)
	const limit = 2 * time.Second
	at := Boottime()
	s.renew(at)
	s.start(s.leased("a.t", "a", limit, 0, false))
	s.killSupervisor()
	if st, err := s.Inspect(t.Context(), "a.t"); err != nil || st.Ended {
		t.Fatalf("%+v, %v; its time is not over", st, err)
	}
	s.wait("a.t")
	if d := Boottime() - at; d < limit || d > limit+2*time.Second {
		t.Errorf("it ended %s after the last renewal, want %s", d, limit)
	}
	if !s.lapsed("a") {
		t.Error("it did not lapse")
	}
}

// TestLeaseRefusesLateStart: a task does not start when its time is over, and a lease of another boot does not count.
func TestLeaseRefusesLateStart(t *testing.T) {
	s := newSup(t)
	if err := os.WriteFile(filepath.Join(s.dir, "lease"), []byte("another-boot 99999999999999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.renew(Boottime() - time.Minute)
	if _, err := s.Start(t.Context(), s.leased("a.t", "a", time.Minute, 0, false)); !errors.Is(err, ErrLapsed) {
		t.Errorf("started a minute late: %v", err)
	}
	s.renew(Boottime())
	if _, err := s.Start(t.Context(), s.leased("a.t", "a", time.Minute, 0, false)); !errors.Is(err, ErrLapsed) {
		t.Errorf("a refused allocation started: %v", err)
	}
	s.start(s.leased("b.t", "b", time.Minute, 0, false))
	s.renew(Boottime() + time.Hour) // a time to come is now
	if d := Boottime() - s.renewedOnDisk(); d < 0 || d > 10*time.Second {
		t.Errorf("renewed %s ago", d)
	}
}

func (s *sup) renewedOnDisk() time.Duration {
	s.t.Helper()
	l, err := openLeases(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	defer l.timer.Close()
	return l.renewed
}

// TestLeaseAfterSuspend: a machine that slept for longer than signal and kill timeout kills the tasks at once when it
// wakes; one that slept for less gives them the rest of the time. A task that is starting then ends, too.
func TestLeaseAfterSuspend(t *testing.T) {
	for _, c := range []struct {
		slept time.Duration
		want  []syscall.Signal
	}{
		{59 * time.Second, nil},
		{61 * time.Second, []syscall.Signal{syscall.SIGTERM}},
		{time.Hour, []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}},
	} {
		l, err := openLeases(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		now := time.Hour
		l.clock = func() time.Duration { return now }
		if err := l.renew(now); err != nil {
			t.Fatal(err)
		}
		got := make(chan syscall.Signal, 4)
		lease := Lease{Group: "a", Limit: time.Minute, Signal: int(syscall.SIGTERM), Timeout: 5 * time.Second}
		noted := 0
		held := func() *heldTask {
			return &heldTask{lease: lease, end: func(s syscall.Signal) { got <- s }, note: func(*Lease) error { noted++; return nil }}
		}
		l.hold("t", held())
		now += c.slept
		l.expire()
		l.expire() // twice: nothing is sent again
		for range c.want {
			select {
			case s := <-got:
				if !slices.Contains(c.want, s) {
					t.Errorf("slept %s: it was sent %v, want %v", c.slept, s, c.want)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("slept %s: fewer signals than %v", c.slept, c.want)
			}
		}
		if len(got) > 0 || noted != min(1, len(c.want)) || l.isLapsed("a") != (len(c.want) > 0) {
			t.Errorf("slept %s: %d more signals, noted %d times, lapsed %v", c.slept, len(got), noted, l.isLapsed("a"))
		}
		if err := l.check(&Lease{Group: "a", Limit: time.Minute, Renewed: now}); (err != nil) != (len(c.want) > 0) {
			t.Errorf("slept %s: a start with contact again: %v", c.slept, err)
		}
		if len(c.want) > 0 {
			l.hold("late", held())
			l.expire()
			if s := <-got; s != syscall.SIGTERM {
				t.Errorf("a task whose allocation lapsed while it started was sent %v", s)
			}
		}
		l.timer.Close()
	}
}
