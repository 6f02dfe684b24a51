// Package admit decides which calls a server takes on when more come than it can answer.
//
// A Gate bounds how many calls of users are in progress, and how long others wait for their turn. The naive queue is long
// and first come, first served: under overload every call waits until its caller has given up, and all work is wasted. A
// short queue refuses calls in bursts that a server could well answer. So the length does not decide, but the delay, as in
// CoDel (K. Nichols, V. Jacobson, "Controlling Queue Delay", ACM Queue 10(5), 2012), in the form for servers with many
// connections that B. Maurer describes ("Fail at Scale", ACM Queue 13(8), 2015): a line that was empty within the last
// patienceCalm lets a call wait that long. A line that was not is overloaded: a call waits patienceOverload at most, and
// the newest goes first, because its caller is most likely to be still there. When the load drops, the line is empty at
// once, and with it the overload. A call that will be refused waits, too: a caller that is refused at once comes back at
// once, and refusing costs nearly as much as serving what is small. The times are long compared with those of the sources,
// because a process that gets no processor for some 100 ms is not overloaded by its callers.
//
//	Enter --a place is free--> in progress --leave--> the next one enters
//	   \--line full, or no place within the patience--> refused: CodeBusy, nothing was done
//
// Calls of servers and nodes pass without a place, so that a crowd of users never costs a heartbeat. Writes, reads and
// operators have lines of their own: writes that wait for a quorum do not keep reads out, and users do not keep out the
// operator who comes to help.
package admit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/structs"
)

// Class is whose call it is, from the most important on.
type Class uint8

// The classes of calls.
const (
	Node     Class = iota // of servers and nodes; never refused
	Operator              // about the cluster itself
	Read                  // of users
	Write                 // of users
	classes
)

// Classes are all classes.
var Classes = []Class{Node, Operator, Read, Write}

func (c Class) String() string { return [...]string{"node", "operator", "read", "write"}[c] }

// Limits of a line.
const (
	operatorsPerProc = 32   // calls of operators in progress for each processor: dashboards and scripts make them, too
	readsPerProc     = 32   // reads in progress for each processor: few wait for anything but a round to the other servers
	writesPerProc    = 64   // writes in progress for each processor: most of them wait for the log, which writes them together
	lineMax          = 4096 // calls that wait in a line

	patienceCalm     = time.Second            // longest wait in a line that was empty within this time
	patienceOverload = 500 * time.Millisecond // longest wait in one that was not
	overloadMemory   = 10 * time.Second       // how long after an overload Stressed says so
)

// Gate admits calls. It is safe for concurrent use.
type Gate struct {
	mu    sync.Mutex
	lines [classes]line // guarded by mu
}

type line struct {
	places   int       // calls in progress at most
	taken    int       // calls in progress
	waiting  []*waiter // oldest first
	emptyAt  time.Time // when the line was last empty, if it is not
	stressed time.Time // when the line was last seen overloaded
	counts   Counts
}

// Counts count the calls of a class since the server started.
type Counts struct{ Admitted, Waited, Refused int64 }

type waiter struct{ turn chan struct{} }

// New returns a gate for a machine with the processors that the process may use.
func New() *Gate {
	n := max(runtime.GOMAXPROCS(0), 2)
	g := &Gate{}
	g.lines[Operator].places = operatorsPerProc * n
	g.lines[Read].places = readsPerProc * n
	g.lines[Write].places = writesPerProc * n
	return g
}

// Enter waits until the call may begin; leave ends it. If the server is overloaded, the error has CodeBusy. A call that
// begins to wait for events gives its place back (Release).
func (g *Gate) Enter(ctx context.Context, c Class) (leave func(), err error) {
	if c == Node {
		g.mu.Lock()
		g.lines[Node].counts.Admitted++
		g.mu.Unlock()
		return func() {}, nil
	}
	leave = func() { g.leave(c) }
	now := time.Now()
	g.mu.Lock()
	l := &g.lines[c]
	if l.taken < l.places {
		l.taken++
		l.counts.Admitted++
		g.mu.Unlock()
		return leave, nil
	}
	if len(l.waiting) >= lineMax {
		l.counts.Refused++
		g.mu.Unlock()
		return nil, refused(c)
	}
	if len(l.waiting) == 0 {
		l.emptyAt = now
	}
	w := &waiter{make(chan struct{})}
	l.waiting = append(l.waiting, w)
	l.counts.Waited++
	timer := time.NewTimer(l.patience(now))
	g.mu.Unlock()
	defer timer.Stop()
	select {
	case <-w.turn:
		return leave, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	at := slices.Index(l.waiting, w)
	if at < 0 {
		return leave, nil // its turn came meanwhile
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	l.counts.Refused++
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, refused(c)
}

type heldKey struct{}

// Hold returns a context whose calls have a place already; leave gives it back, and may be called more than once.
func Hold(ctx context.Context, leave func()) context.Context {
	return context.WithValue(ctx, heldKey{}, leave)
}

// Release gives back the place of a call that begins to wait for events.
func Release(ctx context.Context) {
	if leave, ok := ctx.Value(heldKey{}).(func()); ok {
		leave()
	}
}

// Held reports whether a call has a place already.
func Held(ctx context.Context) bool { return ctx.Value(heldKey{}) != nil }

// leave gives the place of a call to the next one.
func (g *Gate) leave(c Class) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	l := &g.lines[c]
	n := len(l.waiting)
	if n == 0 {
		l.taken--
		return
	}
	next := 0
	if l.overloaded(now) {
		next = n - 1
	}
	w := l.waiting[next]
	l.waiting = slices.Delete(l.waiting, next, next+1)
	l.counts.Admitted++
	close(w.turn)
}

// Stressed reports whether calls of users had to be refused, or nearly so, within the last overloadMemory.
func (g *Gate) Stressed() bool {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.ContainsFunc(g.lines[:], func(l line) bool { return !l.stressed.IsZero() && now.Sub(l.stressed) < overloadMemory })
}

// Counts returns the counts of a class.
func (g *Gate) Counts(c Class) Counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.lines[c].counts
}

// overloaded reports whether the line has not been empty for patienceCalm.
func (l *line) overloaded(now time.Time) bool {
	if len(l.waiting) == 0 || now.Sub(l.emptyAt) <= patienceCalm {
		return false
	}
	l.stressed = now
	return true
}

func (l *line) patience(now time.Time) time.Duration {
	if l.overloaded(now) {
		return patienceOverload
	}
	return patienceCalm
}

func refused(c Class) error {
	what := map[Class]string{Operator: "calls of operators", Read: "reads", Write: "writes"}[c]
	return structs.Errorf(structs.CodeBusy, "this server is overloaded: it cannot begin more %s within %s; nothing was done, try again in a few seconds", what, patienceCalm)
}
