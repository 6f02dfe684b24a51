package driver

import (
	"cmp"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/muster-sched/muster/structs"
)

// ParseSignal turns "SIGTERM", "term" or "TERM" into a signal; "" is SIGTERM.
func ParseSignal(name string) (syscall.Signal, error) {
	if name == "" {
		return syscall.SIGTERM, nil
	}
	up := strings.ToUpper(name)
	if !strings.HasPrefix(up, "SIG") {
		up = "SIG" + up
	}
	if s := unix.SignalNum(up); s != 0 {
		return s, nil
	}
	return 0, Permanent(fmt.Errorf("unknown signal %q; examples are SIGTERM, SIGINT, SIGHUP, SIGUSR1", name))
}

// HowToStop returns the signal and the timeout of a Stop: the caller's, else the task's own, else SIGTERM and
// structs.KillTimeoutDefault.
func HowToStop(signal string, timeout time.Duration, ownSignal string, ownTimeout time.Duration) (syscall.Signal, time.Duration, error) {
	sig, err := ParseSignal(cmp.Or(signal, ownSignal))
	return sig, cmp.Or(timeout, ownTimeout, structs.KillTimeoutDefault), err
}
