package nodes

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Reports of agents become few log entries. The naive way, an entry for all that have come by then, has no limit: when the log is
// slower than the reports, entries pile up, agents give up waiting and report the same again, and the log is then busy with
// what it holds already. So only as much is in the log at a time as it applies in flightTime, by its speed of late. The rest
// waits here, where a later report of a node replaces what an earlier one says of the same allocations. The line has room for
// what the log applies in lineTime. Beyond it an agent is refused: it keeps its report, learns when to return, and sends then
// what is true then.
//
//	Add --room--> waiting, one report of each node --entries of entryMax--> log --applied--> answered
//	   \--no room--> CodeBusy with a time to return
const (
	gather     = 10 * time.Millisecond // time that the first report waits for others
	entryMax   = 64 << 10              // bytes of reports in one entry: it applies in about 10 ms
	flightTime = time.Second           // what the log may have of reports, as the time that it takes to apply them
	flightMax  = 1 << 20               // the same in bytes, at most; two entries at least
	lineTime   = 2 * time.Second       // what may wait besides; less than an agent's patience together
	lineMax    = 16 << 20              // the same in bytes, at most; an entry at least
	speedStart = 256 << 10             // bytes a second that the log is expected to apply before any have been measured
	speedKeep  = 0.9                   // weight of what was measured before, for each entry
	speedLate  = time.Second           // an entry that takes longer says how fast the log is, however small it is

	againMin  = 500 * time.Millisecond // shortest and longest time after which a refused agent is to return
	againMax  = 10 * time.Second
	lateFor   = 10 * time.Second // how long after a refusal Stressed says so
	numberMax = 200_000          // nodes whose newest report is known by number; beyond it all are forgotten
)

// Report is what an agent has observed about the allocations of its node.
type Report struct {
	Node    structs.NodeID
	Start   structs.StartID // of the agent
	Number  uint64          // rises with each report of the agent; 0: unknown
	Bytes   int             // size of its encoding
	Updates []structs.AllocObserved
}

// Proposed is a command on its way into the log (replica.Proposal).
type Proposed interface {
	Done() <-chan struct{}
	Result() (structs.Result, error)
}

// Observations writes the reports of all nodes in few log entries. Each report is answered when it is applied.
type Observations struct {
	propose func(cmd structs.Command) Proposed

	mu      sync.Mutex
	waiting map[structs.NodeID]*observed
	line    []*observed // those of waiting, the oldest first
	bytes   int         // of waiting
	flying  int         // bytes in the log
	timer   bool        // pump will be called
	applied struct {    // of the newest entries, the older the less
		bytes, seconds float64
		at             time.Time // when the newest was applied, or the log received one after a pause
	}
	refused map[structs.NodeID]bool // nodes that were refused and have not returned, since the line was last empty
	late    time.Time               // the last refusal
	numbers map[structs.NodeID]reportNumber
	counts  ReportMetrics
}

type reportNumber struct {
	start structs.StartID
	n     uint64
}

// ReportMetrics count reports since the server started, and what waits now.
type ReportMetrics struct {
	Entries, Refused int64 // log entries proposed; reports refused because the line was full or late
	Superseded       int64 // waiting observations that a later report replaced
	Waiting          int64 // bytes that wait, or are in the log
}

// observed is a report, or several of one node, that waits.
type observed struct {
	node    structs.NodeID
	since   time.Time
	bytes   int // of updates
	updates []structs.AllocObserved
	parts   int  // entries with a part of it that have not been answered
	whole   bool // nothing of it waits any more
	result  observeResult
	callers []chan observeResult // each has room for its answer
}

type observeResult struct {
	index structs.Index
	err   error
}

// part is what one entry has of a report.
type part struct {
	of      *observed
	bytes   int
	updates []structs.AllocObserved
}

// NewObservations returns Observations that write through propose.
func NewObservations(propose func(cmd structs.Command) Proposed) *Observations {
	return &Observations{propose: propose, waiting: map[structs.NodeID]*observed{}, refused: map[structs.NodeID]bool{}, numbers: map[structs.NodeID]reportNumber{}}
}

// Metrics returns the counts since the server started.
func (o *Observations) Metrics() ReportMetrics {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.counts
	c.Waiting = int64(o.bytes + o.flying)
	return c
}

// Stressed reports whether reports had to be refused within the last lateFor.
func (o *Observations) Stressed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.late.IsZero() && time.Since(o.late) < lateFor
}

// Add queues a report and waits until it is applied. With CodeBusy nothing of it was taken, and the error says when to
// report again.
func (o *Observations) Add(ctx context.Context, r Report) (structs.Index, error) {
	if len(r.Updates) == 0 {
		return 0, nil
	}
	answer := make(chan observeResult, 1)
	o.mu.Lock()
	if err := o.join(r, answer, time.Now()); err != nil {
		o.mu.Unlock()
		return 0, err
	}
	switch {
	case o.bytes >= entryMax:
		o.pump()
	case !o.timer:
		o.timer = true
		time.AfterFunc(gather, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.timer = false
			o.pump()
		})
	}
	o.mu.Unlock()
	select {
	case x := <-answer:
		return x.index, x.err
	case <-ctx.Done(): // it stays in the line, because the agent will report the same or something later
		return 0, structs.Errorf(structs.CodeTimeout, "the deadline passed before the report was confirmed; report again")
	}
}

// join puts a report into the line, or what it says into the report of its node that waits there. The caller holds mu.
func (o *Observations) join(r Report, answer chan observeResult, now time.Time) error {
	if err := o.order(r); err != nil {
		return err
	}
	if room := o.within(lineTime, entryMax, lineMax); o.bytes > 0 && o.bytes+r.Bytes > room {
		o.counts.Refused++
		o.late = now
		o.refused[r.Node] = true
		return &structs.Error{Code: structs.CodeBusy, RetryAfter: o.again(),
			Msg: "the servers are late with what agents report; nothing was recorded, report again later"}
	}
	delete(o.refused, r.Node)
	o.bytes += r.Bytes
	x := o.waiting[r.Node]
	if x == nil {
		x = &observed{node: r.Node, since: now, bytes: r.Bytes, updates: r.Updates, callers: []chan observeResult{answer}}
		o.waiting[r.Node] = x
		o.line = append(o.line, x)
		return nil
	}
	o.counts.Superseded += int64(x.supersede(r, &o.bytes))
	x.callers = append(x.callers, answer)
	return nil
}

// order refuses a report that was overtaken by a later one of the same agent, which may have come by another server. The
// caller holds mu.
func (o *Observations) order(r Report) error {
	if r.Number == 0 {
		return nil
	}
	if last := o.numbers[r.Node]; last.start == r.Start && r.Number < last.n {
		return structs.Errorf(structs.CodeConflict, "report %d of node %s came after report %d; it is not recorded", r.Number, r.Node, last.n)
	}
	if len(o.numbers) >= numberMax {
		clear(o.numbers)
	}
	o.numbers[r.Node] = reportNumber{r.Start, r.Number}
	return nil
}

// supersede replaces what x says of the allocations of a later report, and returns of how many. total is the sum to which
// the bytes of both have been added.
func (x *observed) supersede(r Report, total *int) int {
	newer := make(map[structs.AllocID]bool, len(r.Updates))
	for i := range r.Updates {
		newer[r.Updates[i].ID] = true
	}
	before := len(x.updates)
	each := x.bytes / max(before, 1)
	x.updates = slices.DeleteFunc(slices.Clone(x.updates), func(u structs.AllocObserved) bool { return newer[u.ID] })
	gone := before - len(x.updates)
	x.updates = append(x.updates, r.Updates...)
	x.bytes += r.Bytes - gone*each
	*total -= gone * each
	return gone
}

// speed returns how many bytes a second the log applies. The caller holds mu.
func (o *Observations) speed() float64 {
	if o.applied.seconds == 0 {
		return speedStart
	}
	return o.applied.bytes / o.applied.seconds
}

// within returns how many bytes the log applies in a time, within limits. The caller holds mu.
func (o *Observations) within(d time.Duration, least, most int) int {
	return int(min(max(o.speed()*d.Seconds(), float64(least)), float64(most)))
}

// measure notes that the log has applied so many bytes. A small entry takes as long as one write does, which says nothing
// of the speed. The caller holds mu.
func (o *Observations) measure(bytes int, now time.Time) {
	took := now.Sub(o.applied.at)
	o.applied.at = now
	if bytes < entryMax/2 && took < speedLate {
		return
	}
	o.applied.bytes = o.applied.bytes*speedKeep + float64(bytes)
	o.applied.seconds = o.applied.seconds*speedKeep + max(took.Seconds(), 1e-6)
}

// again returns after what time a refused agent should return: when those that wait have left, and those that were refused
// need as much time in proportion. Times are drawn, so that agents come one after the other. The caller holds mu.
func (o *Observations) again() time.Duration {
	leave := time.Duration(float64(o.bytes+o.flying) / o.speed() * float64(time.Second))
	leave = min(max(leave, againMin), againMax)
	spread := leave * time.Duration(len(o.line)+len(o.refused)) / time.Duration(len(o.line))
	return min(max(againMin, leave/2+rand.N(spread)), againMax-rand.N(againMax/4))
}

// pump puts waiting reports into the log, as far as there is room. The caller holds mu, so that entries enter the log in
// the order of the line.
func (o *Observations) pump() {
	for len(o.line) > 0 && o.flying < o.within(flightTime, 2*entryMax, flightMax) {
		o.write(o.take())
	}
	if len(o.line) == 0 {
		o.line = nil
		clear(o.refused)
	}
}

// take takes the next entry from the line.
func (o *Observations) take() (entry []part) {
	size := 0
	for len(o.line) > 0 {
		x := o.line[0]
		each := max(1, x.bytes/len(x.updates))
		n := min(len(x.updates), (entryMax-size)/each)
		if n == 0 {
			if size > 0 {
				break
			}
			n = 1
		}
		p := part{of: x, bytes: n * each, updates: x.updates[:n]}
		if n == len(x.updates) {
			p.bytes = x.bytes
		}
		x.parts++
		x.updates, x.bytes = x.updates[n:], x.bytes-p.bytes
		o.bytes -= p.bytes
		size += p.bytes
		entry = append(entry, p)
		if len(x.updates) > 0 {
			break
		}
		x.whole = true
		delete(o.waiting, x.node)
		o.line[0] = nil
		o.line = o.line[1:]
	}
	return entry
}

// write puts an entry into the log. The caller holds mu.
func (o *Observations) write(entry []part) {
	n, size := 0, 0
	for _, p := range entry {
		n += len(p.updates)
		size += p.bytes
	}
	all := make([]structs.AllocObserved, 0, n)
	for _, p := range entry {
		all = append(all, p.updates...)
	}
	if o.flying == 0 {
		o.applied.at = time.Now()
	}
	o.flying += size
	o.counts.Entries++
	proposed := o.propose(structs.Command{Body: &structs.AllocObservedCommand{Updates: all}})
	go func() { // ends when the log has answered
		<-proposed.Done()
		res, err := proposed.Result()
		if err == nil && res.Err != nil {
			err = res.Err
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		o.flying -= size
		if err == nil {
			o.measure(size, time.Now())
		}
		if code := structs.CodeOf(err); err != nil && len(entry) > 1 && (code == structs.CodeInvalid || code == structs.CodeTooLarge) {
			for _, p := range entry { // only the report that is at fault fails
				o.write([]part{p})
			}
		} else {
			o.answer(entry, observeResult{res.Index, err})
		}
		if !o.timer || o.bytes >= entryMax { // otherwise more reports are being gathered
			o.pump()
		}
	}()
}

// answer answers the reports that are now written completely. The caller holds mu.
func (o *Observations) answer(entry []part, r observeResult) {
	for _, p := range entry {
		x := p.of
		x.parts--
		x.result.index = max(x.result.index, r.index)
		if r.err != nil && x.result.err == nil {
			x.result.err = r.err
		}
		if x.parts > 0 || !x.whole {
			continue
		}
		for _, c := range x.callers {
			c <- x.result
		}
	}
}
