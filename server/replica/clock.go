package replica

import (
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// clockStepMax is the largest forward step of log time that one server may make on its own (D11).
const clockStepMax = 5 * time.Second

// Clock reads the time that the servers agree on, and mints log times from it. Log times never go backwards, and follow
// a forward jump of the wall clock only if most servers agree.
//
// The naive max(last, time.Now()) would let one server whose clock was set two years ahead expire every token and
// deadline for ever, since log time cannot go back. So between two readings the clock trusts the monotonic clock. When
// the wall clock has moved more than clockStepMax beyond that, time follows the monotonic clock, until the server has
// asked the others and set the offset to their median. A server that has just started does not trust its wall clock
// either: until the first consent, time continues from the newest log entry.
type Clock struct {
	now  func() time.Time     // wall clock
	mono func() time.Duration // monotonic clock, which changes of the wall clock do not affect

	mu     sync.Mutex
	agreed bool            // Consent has been called since the start
	base   structs.LogTime // before the first consent: the highest floor
	baseAt time.Duration   // mono when base was set
	offset time.Duration   // added to the wall clock; set by Consent
	wall   time.Time       // at the last reading
	even   time.Duration   // mono at the last reading
	last   structs.LogTime // minted last
	held   bool            // the wall clock has jumped since the last Consent
	kick   chan struct{}
}

func newClock(now func() time.Time) *Clock {
	start := time.Now()
	return &Clock{now: now, mono: func() time.Duration { return time.Since(start) }, kick: make(chan struct{}, 1)}
}

// mint returns the time of the next command, at least floor, the time of the newest entry here.
func (c *Clock) mint(floor structs.LogTime) structs.LogTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = c.read(floor)
	return c.last
}

// time returns the time that the next command would have. Unlike mint it does not move log time.
func (c *Clock) time(floor structs.LogTime) structs.LogTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read(floor)
}

// read reads both clocks. The caller holds mu.
func (c *Clock) read(floor structs.LogTime) structs.LogTime {
	w, even := c.now().Round(0), c.mono()
	if !c.wall.IsZero() {
		step := w.Sub(c.wall) - (even - c.even) // wall-clock change beyond the time that has passed
		if step > clockStepMax || step < -clockStepMax {
			c.offset -= step // undo the jump
			c.hold()
		}
	}
	c.wall, c.even = w, even
	t := structs.LogTimeOf(w.Add(c.offset))
	if floor > c.base {
		c.base, c.baseAt = floor, even
	}
	if passed := c.base.Add(even - c.baseAt); !c.agreed && c.base > 0 && t > passed.Add(clockStepMax) {
		t = passed
		c.hold()
	}
	return max(t, c.last, floor)
}

// hold asks for consent. The caller holds mu.
func (c *Clock) hold() {
	c.held = true
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Reading is one reading of the wall clock and of the monotonic clock.
type Reading struct {
	wall time.Time
	even time.Duration
}

// Reading reads both clocks. A comparison with other servers' clocks begins with it.
func (c *Clock) Reading() Reading { return Reading{c.now().Round(0), c.mono()} }

// Consent sets how far most servers' clocks are ahead of this server's wall clock. A median that was found while the
// wall clock jumped is of neither time: it is refused, and consent is due again.
func (c *Clock) Consent(median time.Duration, since Reading) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Reading()
	if step := now.wall.Sub(since.wall) - (now.even - since.even); step > clockStepMax || step < -clockStepMax {
		c.hold()
		return false
	}
	off := time.Duration(0)
	if median > clockStepMax || median < -clockStepMax {
		off = median
	}
	changed = c.held || off != c.offset
	c.agreed, c.offset, c.held = true, off, false
	c.wall, c.even = now.wall, now.even
	return changed
}

// Agreed reports whether most servers have agreed on the time since this server started.
func (c *Clock) Agreed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agreed
}

// Jumped is signalled when the wall clock has jumped and Consent is due.
func (c *Clock) Jumped() <-chan struct{} { return c.kick }
