//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
)

// umask returns the umask of this process, in octal.
func umask() string {
	mask := syscall.Umask(0o077)
	syscall.Umask(mask)
	return fmt.Sprintf("%04o", mask)
}

// resizes calls f when the terminal may have changed its size, until ctx ends.
func resizes(ctx context.Context, f func()) {
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, syscall.SIGWINCH)
	defer signal.Stop(winch)
	for {
		select {
		case <-ctx.Done():
			return
		case <-winch:
			f()
		}
	}
}

// escapes makes a terminal obey escape sequences, which it does.
func escapes(*os.File) {}

// terminalSize returns the width and height of the terminal that in reads from.
func terminalSize(in *os.File) (w, h int, err error) { return term.GetSize(int(in.Fd())) }
