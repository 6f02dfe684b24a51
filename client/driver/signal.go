package driver

import (
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
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
