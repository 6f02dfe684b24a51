package driver

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// An error in a config block names the driver, and no other attempt cures it.
func TestSchemaRefusesForGood(t *testing.T) {
	s := Schema{{Name: "command", Type: "string", Required: true}, {Name: "pids_limit", Type: "number"}}
	_, err := s.Decode("d", map[string]any{"comand": "x", "pids_limit": "many"})
	want := `d: unknown config key "comand"; did you mean "command"? (valid keys: command, pids_limit); config key "pids_limit": want a number, got the string "many"`
	if !errors.Is(err, ErrPermanent) || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestSignals(t *testing.T) {
	for name, want := range map[string]syscall.Signal{"": syscall.SIGTERM, "SIGHUP": syscall.SIGHUP, "usr1": syscall.SIGUSR1, "INT": syscall.SIGINT} {
		if got, err := ParseSignal(name); err != nil || got != want {
			t.Errorf("%q: %v, %v; want %v", name, got, err, want)
		}
	}
	if _, err := ParseSignal("9"); !errors.Is(err, ErrPermanent) {
		t.Errorf("a number is no name: %v", err)
	}
}

func TestHowToStop(t *testing.T) {
	for _, c := range []struct {
		name, signal, own   string
		timeout, ownTimeout time.Duration
		wantSignal          syscall.Signal
		wantTimeout         time.Duration
	}{
		{name: "defaults", wantSignal: syscall.SIGTERM, wantTimeout: structs.KillTimeoutDefault},
		{name: "the task's", own: "SIGINT", ownTimeout: time.Minute, wantSignal: syscall.SIGINT, wantTimeout: time.Minute},
		{name: "the caller's", signal: "HUP", timeout: time.Second, own: "SIGINT", ownTimeout: time.Minute, wantSignal: syscall.SIGHUP, wantTimeout: time.Second},
		{name: "at once", timeout: -1, ownTimeout: time.Minute, wantSignal: syscall.SIGTERM, wantTimeout: -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			sig, timeout, err := HowToStop(c.signal, c.timeout, c.own, c.ownTimeout)
			if err != nil || sig != c.wantSignal || timeout != c.wantTimeout {
				t.Errorf("got %v, %s, error %v, want %v, %s", sig, timeout, err, c.wantSignal, c.wantTimeout)
			}
		})
	}
	if _, _, err := HowToStop("SIGNOPE", 0, "", 0); err == nil {
		t.Error("an unknown signal was accepted")
	}
}
