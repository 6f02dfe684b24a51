package gossip

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Anyone who reaches the port can make memberlist log a line per packet. This many lines are printed per period; the
// next line has the number left out.
const (
	logPeriod = 10 * time.Second
	logLines  = 50
)

// logLimit passes lines on, up to a number per period.
type logLimit struct {
	to  io.Writer
	now func() time.Time

	mu      sync.Mutex
	since   time.Time
	lines   int
	omitted int
}

// Write takes one line, as log.Logger writes it.
func (l *logLimit) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Sub(l.since) >= logPeriod {
		if l.omitted > 0 {
			fmt.Fprintf(l.to, "[WARN] memberlist: %d lines were left out in the last %s\n", l.omitted, now.Sub(l.since).Round(time.Second))
		}
		l.since, l.lines, l.omitted = now, 0, 0
	}
	if l.lines++; l.lines > logLines {
		l.omitted++
		return len(line), nil
	}
	return l.to.Write(line)
}
