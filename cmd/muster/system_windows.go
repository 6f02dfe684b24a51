package main

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/windows"
	"golang.org/x/term"
)

// umask returns "": Windows has none, and the task keeps the one of its node.
func umask() string { return "" }

// resizeEvery is how often the size of a terminal is looked at: Windows sends no signal when it changes.
const resizeEvery = 300 * time.Millisecond

// resizes calls f when the terminal may have changed its size, until ctx ends.
func resizes(ctx context.Context, f func()) {
	t := time.NewTicker(resizeEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

// escapes makes a console obey escape sequences, which older ones print unless asked.
func escapes(f *os.File) {
	var mode uint32
	if h := windows.Handle(f.Fd()); windows.GetConsoleMode(h, &mode) == nil {
		_ = windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING)
	}
}

// terminalSize returns the width and height of the console. Windows knows them for the output only.
func terminalSize(*os.File) (w, h int, err error) { return term.GetSize(int(os.Stdout.Fd())) }
