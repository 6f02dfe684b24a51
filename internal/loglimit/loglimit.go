// Package loglimit bounds how many lines a log gets within a time, where what happens outside decides how many there are.
package loglimit

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// The lines that a Writer passes on in one period. The first line of the next one follows the number of lines left out.
const (
	Period = 10 * time.Second
	Lines  = 50
)

// Writer passes lines on, up to a number per period.
type Writer struct {
	to   io.Writer
	name string
	now  func() time.Time

	mu      sync.Mutex
	since   time.Time
	lines   int
	omitted int
}

// New returns a writer to another. name stands in the line that counts those left out.
func New(to io.Writer, name string) *Writer { return &Writer{to: to, name: name, now: time.Now} }

// Write takes one line, as loggers write it.
func (l *Writer) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Sub(l.since) >= Period {
		if l.omitted > 0 {
			fmt.Fprintf(l.to, "[WARN] %s: %d lines were left out in the last %s\n", l.name, l.omitted, now.Sub(l.since).Round(time.Second))
		}
		l.since, l.lines, l.omitted = now, 0, 0
	}
	if l.lines++; l.lines > Lines {
		l.omitted++
		return len(line), nil
	}
	return l.to.Write(line)
}
