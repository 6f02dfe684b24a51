package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

const (
	pollEvery  = 300 * time.Millisecond // interval at which a command that waits for its job polls it
	tellAfter  = 3 * time.Second        // waiting time before the user gets the reason
	tellEvery  = 10 * time.Second       // interval at which the reason is checked for changes
	logsLinger = 10 * time.Second       // time for the rest of the output of a job whose node was lost
	lookWithin = 30 * time.Second       // time limit of one poll of the job
)

// caught receives the signals of a command for one job: they cancel the job, not only the command.
type caught struct {
	ctx  context.Context // ends with the first signal
	ch   chan os.Signal
	raw  chan os.Signal
	end  context.CancelFunc
	mu   sync.Mutex
	last os.Signal
}

// catch takes over the signals that end a command, until stop. Under nohup SIGHUP remains ignored.
func catch(parent context.Context) *caught {
	c := &caught{ch: make(chan os.Signal, 4), raw: make(chan os.Signal, 4)}
	c.ctx, c.end = context.WithCancel(parent)
	sigs := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) {
		sigs = append(sigs, syscall.SIGHUP)
	}
	signal.Notify(c.raw, sigs...)
	go func() { // more signals may come until stop
		for s := range c.raw {
			c.mu.Lock()
			c.last = s
			c.mu.Unlock()
			c.end()
			select {
			case c.ch <- s:
			default:
			}
		}
	}()
	return c
}

func (c *caught) stop() {
	signal.Stop(c.raw)
	close(c.raw) // nothing is sent after Stop
	c.end()
}

// first takes the signal that ended ctx; SIGINT if the caller's context ended without one.
func (c *caught) first() syscall.Signal {
	select {
	case s := <-c.ch:
		if s, ok := s.(syscall.Signal); ok {
			return s
		}
	case <-time.After(50 * time.Millisecond): // it arrives just after the end of ctx
	}
	return syscall.SIGINT
}

// code returns the exit code of a command that a signal ended, as in shells.
func (c *caught) code() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.last.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return 128 + int(syscall.SIGINT)
}

// cancel stops the job even if its caller is gone.
func (o *adhoc) cancel(a *api, job *wire.Job) bool {
	return o.cancelWithin(context.Background(), a, job)
}

// cancelWithin is cancel, until ctx ends.
func (o *adhoc) cancelWithin(ctx context.Context, a *api, job *wire.Job) bool {
	ctx, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	q := ns(val(job.Namespace))
	if _, err := a.delete(ctx, jobPath(*job.ID), q, nil); err != nil && !notFound(err) {
		o.hint("The job could not be stopped (%v):  muster job stop %s", err, *job.ID)
		return false
	}
	return true
}

// waiting keeps the user informed while a job waits.
type waiting struct {
	*adhoc
	api   *api
	job   *wire.Job
	since time.Time
	next  time.Time // time of the next check of the reason; zero: none yet
	said  string
	away  bool // the agent does not answer
	bound bool // the end of this command cancels the job
}

// passing reports whether an error may be temporary: an agent restart, a cluster without a leader for a moment. The job
// does not depend on this command.
func (w *waiting) passing(err error) bool {
	var answer *apiError
	if errors.As(err, &answer) && answer.Status < 500 && answer.Status != http.StatusTooManyRequests {
		return false
	}
	if !w.away {
		w.away = true
		w.hint("No answer from the cluster (%v); the job keeps running, and this command tries again", err)
	}
	return true
}

func (w *waiting) reached() {
	if w.away {
		w.away = false
		w.hint("The cluster answers again")
	}
}

// tell prints why the job waits and when it should start: after it has waited for a while, and on every change.
func (w *waiting) tell(ctx context.Context) {
	now := w.now()
	if now.Sub(w.since) < tellAfter || now.Before(w.next) {
		return
	}
	w.next = now.Add(tellEvery)
	var y nomadlike.Why
	ctx, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	if _, err := w.api.get(ctx, jobPath(*w.job.ID, "/why"), ns(val(w.job.Namespace)), &y); err != nil {
		return
	}
	if y.Reason == "" && len(y.Groups) == 0 {
		w.next = now.Add(pollEvery) // no decision yet
		return
	}
	var words, starts []string
	key := string(y.Reason)
	var list [][2]string
	list = (&jobWhyOptions{env: w.env}).lines(&y, true)
	adviceLines(y.Advice, func(k, f string, args ...any) { list = append(list, [2]string{k, fmt.Sprintf(f, args...)}) })
	for _, l := range list {
		switch text := strings.TrimSpace(l[1]); l[0] {
		case "blocked", "never", "given up", "try":
			words = append(words, fmt.Sprintf("  %-8s %s", l[0], text))
			key += "|" + text
		case "starts":
			starts = append(starts, fmt.Sprintf("  %-8s %s", l[0], text)) // it changes continuously
		}
	}
	if key == w.said {
		return
	}
	first := w.said == ""
	w.said = key
	w.hint("Waiting for a place [%s]", y.Reason)
	for _, l := range slices.Concat(words, starts) {
		w.hint("%s", l)
	}
	if first {
		end := ""
		if w.bound {
			end = "  (Ctrl-C cancels)"
		}
		w.hint("  all of it:  muster job why %s%s%s", inNamespace(val(w.job.Namespace)), word(*w.job.ID), end)
	}
}

// attendance follows a job until it has ended.
type attendance struct {
	*adhoc
	api   *api
	job   *wire.Job
	sig   *caught
	life  context.Context // continues after the first signal
	mu    sync.Mutex      // serializes the output
	logs  sync.WaitGroup
	began map[string]bool // allocations whose output is followed
	seen  sync.Map        // allocation id -> its status
}

// attend prints the job's output until it has ended, and returns its exit code. The first signal cancels the job; the
// next one ends the command at once. Ctrl-C waits for the job's end, because a user reads its last output. SIGTERM and the
// end of the terminal do not wait: what sends SIGTERM (a service manager, a CI system, timeout) sends SIGKILL soon.
func (o *adhoc) attend(ctx context.Context, a *api, job *wire.Job) error {
	x := &attendance{adhoc: o, api: a, job: job, sig: catch(ctx), began: map[string]bool{}}
	defer x.sig.stop()
	var end context.CancelFunc
	x.life, end = context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	w := waiting{adhoc: o, api: a, job: job, since: o.now(), bound: true}
	over, canceled := x.sig.ctx.Done(), false
	for {
		list, err := x.look(over, x.again(canceled))
		switch {
		case err == nil:
			w.reached()
		case errors.Is(err, errSignal), w.passing(err):
		case canceled && notFound(err):
			return exitCode(x.sig.code())
		default:
			return errors.Join(err, errors.New("the job keeps running: muster job logs -all -f "+*job.ID))
		}
		for _, s := range list {
			x.seen.Store(s.ID, s.ClientStatus)
			x.follow(s)
		}
		if done, code := ended(list, o.tasks); err == nil && (done && !x.returns(list) || canceled && len(list) == 0) {
			x.drain(list)
			if canceled {
				return exitCode(x.sig.code())
			}
			var away bool
			for _, s := range list {
				if why := cmp.Or(unstarted(s), endedBy(s)); why != "" {
					o.hint("Error: on node %s: %s (muster alloc status %s)", s.NodeName, why, shortID(s.ID, false))
					away = away || o.bundle == nil && strings.Contains(why, "working directory")
				}
			}
			if away {
				o.hint("The node cannot use this directory: -pack sends it along, -dir names one that the nodes share")
			}
			if code != 0 {
				return exitCode(code)
			}
			return nil
		}
		if err == nil && len(list) == 0 {
			w.tell(x.sig.ctx)
		}
		select {
		case <-over:
			over, canceled = nil, true // wait for the next signal
			first := x.sig.first()
			code, waits := 128+int(first), first != syscall.SIGHUP && first != syscall.SIGTERM
			switch {
			case waits:
				o.hint("Canceling job %s; press Ctrl-C again to exit without waiting for it to end", *job.ID)
			case first != syscall.SIGHUP:
				o.hint("Canceling job %s; its tasks end without this command", *job.ID)
			}
			if !x.cancelOnce() || !waits {
				return exitCode(code)
			}
		case <-x.again(canceled):
			return exitCode(x.sig.code())
		case <-time.After(pollEvery):
		}
	}
}

// cancelPatience is how long the request that cancels the job has in any case: timeout(1) sends each signal twice.
const cancelPatience = 2 * time.Second

// cancelOnce cancels the job, until another signal comes after cancelPatience.
func (x *attendance) cancelOnce() bool {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	done := make(chan bool, 1)
	go func() { done <- x.cancelWithin(ctx, x.api, x.job) }()
	for patience := time.After(cancelPatience); ; {
		select {
		case ok := <-done:
			return ok
		case <-patience:
			patience = nil
		case <-x.again(patience == nil):
			stop()
			<-done
			return false
		}
	}
}

// returns reports whether a job continues although all its allocations have ended: lost and preempted ones are replaced, and
// an array has more indices.
func (x *attendance) returns(list []*wire.AllocationListStub) bool {
	more := x.array != "" || x.requeue > 0 || slices.ContainsFunc(list, func(s *wire.AllocationListStub) bool {
		return s.ClientStatus == "lost" || s.DesiredStatus == "evict"
	})
	if !more {
		return false
	}
	var job wire.Job
	ctx, stop := context.WithTimeout(x.life, lookWithin)
	defer stop()
	_, err := x.api.get(ctx, jobPath(*x.job.ID), ns(val(x.job.Namespace)), &job)
	return err != nil && !notFound(err) || err == nil && val(job.Status) != "dead"
}

var errSignal = errors.New("a signal has come")

// look lists the job's allocations. A silent agent must not block signals: when one comes, look gives up and the caller
// handles it.
func (x *attendance) look(first <-chan struct{}, again <-chan os.Signal) (list []*wire.AllocationListStub, err error) {
	ctx, stop := context.WithTimeout(x.life, lookWithin)
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		list, err = newest(ctx, x.api, x.job)
	}()
	select {
	case <-done:
		return list, err
	case <-first:
	case s := <-again:
		select {
		case x.sig.ch <- s:
		default: // more signals are queued
		}
	}
	stop()
	<-done
	return nil, errSignal
}

// again returns the signals after the first one.
func (x *attendance) again(canceled bool) <-chan os.Signal {
	if !canceled {
		return nil
	}
	return x.sig.ch
}

// ended reports whether all allocations have ended, and with which exit code: that of the first failure, because later
// ends were caused by it.
func ended(list []*wire.AllocationListStub, nodes int) (done bool, code int) {
	n := 0
	var first int64
	for _, s := range list {
		if !over(s) {
			continue
		}
		n++
		at := s.ModifyTime
		if st := s.TaskStates["main"]; st != nil && !st.FinishedAt.IsZero() {
			at = st.FinishedAt.UnixNano()
		}
		if c := exitOf(s); c != 0 && (code == 0 || at < first) {
			code, first = c, at
		}
	}
	return n == nodes || n > 0 && code != 0 && n == len(list), code
}

// follow prints the output of an allocation once it has started.
func (x *attendance) follow(s *wire.AllocationListStub) {
	if s.ClientStatus != "running" && !over(s) || x.began[s.ID] {
		return
	}
	x.began[s.ID] = true
	al := &wire.Allocation{ID: s.ID, Namespace: s.Namespace}
	var gapTold atomic.Bool
	out, errw := x.out, x.err
	if x.array != "" {
		_, index, _ := strings.Cut(strings.TrimSuffix(s.Name, "]"), "[")
		out, errw = &labelWriter{out, index + "| "}, &labelWriter{errw, index + "| "}
	}
	for typ, w := range map[string]*lineWriter{"stdout": {mu: &x.mu, w: out}, "stderr": {mu: &x.mu, w: errw}} {
		x.logs.Go(func() {
			mark := &logMark{}
			logs := allocLogsOptions{env: x.env, follow: true, rank: -1, mark: mark}
			for failures := 0; ; {
				err := logs.stream(x.life, x.api, al, "main", typ, w)
				if mark.gap && !gapTold.Swap(true) {
					x.hint("Warning: part of the output is missing: the command wrote faster than it could be carried here, and its node keeps 100 MiB of it. With -log FILE all of it goes to a file.")
				}
				if x.life.Err() != nil || err == nil && x.closes(s.ID) || w.err != nil {
					return // the error of w is reported at the end
				}
				if mark.moved {
					failures, mark.moved = 0, false
				}
				var answer *apiError
				most := 20
				if x.over(s.ID) { // its output is there by now, or never: it may have failed before it had files
					most = 5
				}
				if failures++; failures > 100 || errors.As(err, &answer) && answer.Status < 500 && (answer.Status != http.StatusNotFound || failures > most) {
					if x.status(s.ID) == "running" {
						x.hint("%v", err)
					}
					return
				}
				// Its agent restarts or is disconnected.
				if !sleepFor(x.life, min(time.Duration(failures)*pollEvery, 5*time.Second)) {
					return
				}
			}
		})
	}
}

// status returns the last known status of an allocation.
func (x *attendance) status(id string) string {
	s, _ := x.seen.Load(id)
	text, _ := s.(string)
	return text
}

// over reports whether an allocation was seen to have ended.
func (x *attendance) over(id string) bool {
	return over(&wire.AllocationListStub{ClientStatus: x.status(id)})
}

// closes reports whether an output ended because its allocation did. The end of an agent that forwards it looks the
// same.
func (x *attendance) closes(id string) bool {
	for range 7 {
		if x.over(id) {
			return true
		}
		if !sleepFor(x.life, pollEvery) {
			return true
		}
	}
	return false
}

func sleepFor(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// drain waits for the rest of the output; the output of a lost node is unavailable.
func (x *attendance) drain(list []*wire.AllocationListStub) {
	all := make(chan struct{})
	go func() { x.logs.Wait(); close(all) }()
	var enough <-chan time.Time
	if slices.ContainsFunc(list, func(s *wire.AllocationListStub) bool { return s.ClientStatus == "lost" }) {
		enough = time.After(logsLinger)
	}
	select {
	case <-all:
	case <-enough:
	case <-x.sig.ch:
	}
}
