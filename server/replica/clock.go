package replica

import (
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// clockStepMax is the largest forward step of log time that one server may make on its own (D11).
const clockStepMax = 5 * time.Second

// Clock mints log times: never backwards, and a wall clock that jumps ahead is followed only when most servers agree.
//
// The naive max(last, time.Now()) would let one server whose clock was set two years ahead expire every token and
// deadline for ever, since log time cannot go back. So between two mints the clock trusts the monotonic reading: when
// the wall has moved more than clockStepMax beyond it, log time goes on by the monotonic reading, until the leader's
// clock service has asked the other servers and set the offset to what their median says.
type Clock struct {
	now  func() time.Time     // the wall
	mono func() time.Duration // moves evenly, whatever is done to the wall

	mu     sync.Mutex
	offset time.Duration // added to the wall clock; set by consent
	wall   time.Time     // at the last mint
	even   time.Duration // mono at the last mint
	last   structs.LogTime
	held   bool // the wall jumped and nobody has consented yet
	kick   chan struct{}
}

func newClock(now func() time.Time) *Clock {
	start := time.Now()
	return &Clock{now: now, mono: func() time.Duration { return time.Since(start) }, kick: make(chan struct{}, 1)}
}

// mint is the time of the next command, after floor.
func (c *Clock) mint(floor structs.LogTime) structs.LogTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, even := c.now().Round(0), c.mono()
	if !c.wall.IsZero() {
		step := w.Sub(c.wall) - (even - c.even) // what the wall moved beyond its time
		if step > clockStepMax || step < -clockStepMax {
			c.offset -= step // as if it had not moved
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

// newTerm forgets what an earlier leadership knew: its monotonic reference is stale.
func (c *Clock) newTerm(floor structs.LogTime) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = time.Time{}
	c.last = max(c.last, floor)
}

// Consent sets how far this server's wall clock is from what most servers say.
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

// Jumped is signalled when the wall clock has jumped and waits for a consent.
func (c *Clock) Jumped() <-chan struct{} { return c.kick }
