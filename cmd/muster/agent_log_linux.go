package main

import (
	"errors"
	"io"
	"syscall"
)

// unreadLog writes to a pipe that may have lost its reader. It then reports that once and drops further output without
// an error, so that a log file next to it continues.
type unreadLog struct {
	w      io.Writer
	unread chan<- struct{} // buffered
}

func (u unreadLog) Write(p []byte) (int, error) {
	if _, err := u.w.Write(p); errors.Is(err, syscall.EPIPE) {
		select {
		case u.unread <- struct{}{}:
		default:
		}
	}
	return len(p), nil
}
