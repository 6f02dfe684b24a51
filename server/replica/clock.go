package replica

import (
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// clockStepMax is the largest forward step of log time that one server may make on its own (D11).
const clockStepMax = 5 * time.Second

// Clock mints log times. They never go backwards, and follow a forward jump of the wall clock only if most servers
// agree.
//
// The naive max(last, time.Now()) would let one server whose clock was set two years ahead expire every token and
// deadline for ever, since log time cannot go back. So between two mints the clock trusts the monotonic clock. When the
// wall clock has moved more than clockStepMax beyond that, log time follows the monotonic clock, until the leader's
// clock service has asked the other servers and set the offset to their median.
type Clock struct {
	now  func() time.Time     // wall clock
	mono func() time.Duration // monotonic clock, which changes of the wall clock do not affect

	mu     sync.Mutex
	offset time.Duration // added to the wall clock; set by Consent
	wall   time.Time     // at the last mint
	even   time.Duration // mono at the last mint
	last   structs.LogTime
	held   bool // the wall clock has jumped since the last Consent
	kick   chan struct{}
}

func newClock(now func() time.Time) *Clock {
	start := time.Now()
	return &Clock{now: now, mono: func() time.Duration { return time.Since(start) }, kick: make(chan struct{}, 1)}
}

// mint returns the time of the next command, at least floor.
func (c *Clock) mint(floor structs.LogTime) structs.LogTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, even := c.now().Round(0), c.mono()
	if !c.wall.IsZero() {
		step := w.Sub(c.wall) - (even - c.even) // wall-clock change beyond the time that has passed
		if step > clockStepMax || step < -clockStepMax {
			c.offset -= step // undo the jump
			c.held = true
			select {
			case c.kick <- struct{}{}:
			default:
			}
		}
	}
	c.wall, c.even = w, even
	t := structs.LogTimeOf(w.Add(c.offset))
	c.last = max(t, c.last, floor)
	return c.last
}

// newTerm forgets the readings of an earlier term, because they are stale.
func (c *Clock) newTerm(floor structs.LogTime) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = time.Time{}
	c.last = max(c.last, floor)
}

// Consent sets how far most servers' clocks are ahead of this server's wall clock.
func (c *Clock) Consent(median time.Duration) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	off := time.Duration(0)
	if median > clockStepMax || median < -clockStepMax {
		off = median
	}
	changed = c.held || off != c.offset
	c.offset, c.held = off, false
	c.wall = time.Time{}
	return changed
}

// Jumped is signalled when the wall clock has jumped and Consent is due.
func (c *Clock) Jumped() <-chan struct{} { return c.kick }
