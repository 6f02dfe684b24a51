package raftlog

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"

	"github.com/muster-sched/muster/internal/fsync"
)

// Health says whether a server's disk takes writes. The zero value is a healthy disk.
type Health struct {
	Wrote  func(began time.Time) // called after each write of entries, or nil
	failed atomic.Int64          // time of the last failure in Unix nanoseconds; 0: the newest write succeeded
	why    atomic.Pointer[string]
}

// illFor is how long a failed write counts if no other follows. Nothing is written by a server that hears of no leader,
// so it must try at some time.
const illFor = 10 * time.Second

func (h *Health) note(err error) {
	if err == nil {
		h.failed.Store(0)
	} else {
		why := err.Error()
		if errno := syscall.Errno(0); errors.As(err, &errno) { // who asks for the health need not know the file
			why = errno.Error()
		}
		h.why.Store(&why)
		h.failed.Store(time.Now().UnixNano())
	}
}

// Problem returns why the newest write failed, however long ago that was; "" if it succeeded.
func (h *Health) Problem() string {
	if h.failed.Load() == 0 {
		return ""
	}
	return *h.why.Load()
}

// Ill reports whether the newest write failed, unless that was long ago.
func (h *Health) Ill() bool {
	at := h.failed.Load()
	return at != 0 && time.Since(time.Unix(0, at)) < illFor
}

// Watch returns a store that ends the process when a write takes longer than limit, when a sync fails, or when an entry
// cannot be read. Raft would wait for a hung disk forever and keep sending heartbeats, so that no other server could lead. Returning an
// error instead is not safe: the late write may still reach the disk and overwrite a newer entry. Failed writes are
// noted in health, and change nothing that can be read.
func Watch(store raft.LogStore, health *Health, limit time.Duration, exit func(why string)) raft.LogStore {
	return &watchdog{LogStore: &tail{LogStore: store}, health: health, limit: limit, exit: exit}
}

type watchdog struct {
	raft.LogStore
	health *Health
	limit  time.Duration
	exit   func(why string)
}

// guardSteps is the number of steps in which the limit of a write passes. Time in which the process does not run counts as one
// step, not as all of it: that it was stopped, that its machine slept or was busy, and also that thousands of goroutines were
// ready to run. A goroutine whose system call has returned waits for its turn behind them, while timers fire early. So each
// step waits for such a turn, too, and a write has had about as many turns as steps have passed.
const guardSteps = 50

// guard runs a write and ends the process when it takes longer than the limit.
func (w *watchdog) guard(what string, write func() error) error {
	var mu sync.Mutex
	var t *time.Timer
	left, done := guardSteps, false
	step := func() {
		runtime.Gosched() // to the end of the queue in which the write's goroutine waits
		mu.Lock()
		defer mu.Unlock()
		if done {
			return
		}
		if left--; left > 0 {
			t.Reset(w.limit / guardSteps)
			return
		}
		w.exit(fmt.Sprintf("the disk of the raft log hangs: %s took more than %s", what, w.limit))
	}
	began := time.Now()
	mu.Lock()
	t = time.AfterFunc(w.limit/guardSteps, step)
	mu.Unlock()
	err := write()
	mu.Lock()
	done = true
	t.Stop()
	mu.Unlock()
	if f := w.health.Wrote; f != nil {
		f(began)
	}
	w.health.note(err)
	switch {
	case errors.Is(err, errForgotten):
		w.exit(err.Error())
	case errors.Is(err, wal.ErrSealed): // the next file could not be created, and the library tries again only when it opens the log
		w.exit("the raft log cannot create its next file; is its disk full?")
	case errors.Is(err, ErrDamaged):
		w.exit(fmt.Sprintf("the raft log cannot be written: %v%s", err, advice(err)))
	case fsync.Failed(err):
		w.exit(fmt.Sprintf("the raft log could not be synced while %s, so nobody knows what its disk holds until it is read again: %v", what, err))
	}
	return err
}

func (w *watchdog) StoreLog(l *raft.Log) error {
	return w.guard("writing an entry", func() error { return w.LogStore.StoreLog(l) })
}

func (w *watchdog) StoreLogs(ls []*raft.Log) error {
	return w.guard("writing entries", func() error { return w.LogStore.StoreLogs(ls) })
}

func (w *watchdog) DeleteRange(first, last uint64) error {
	return w.guard("removing entries", func() error { return w.LogStore.DeleteRange(first, last) })
}

// GetLog ends the process when an entry cannot be read. Raft would do so, too, but without saying what to do.
func (w *watchdog) GetLog(index uint64, l *raft.Log) error {
	err := w.LogStore.GetLog(index, l)
	if err != nil && !errors.Is(err, raft.ErrLogNotFound) && !errors.Is(err, ErrClosed) {
		w.exit(fmt.Sprintf("entry %d of the raft log cannot be read: %v%s", index, err, advice(err)))
	}
	return err
}

// IsMonotonic reports whether the store refuses gaps. Raft then empties it before it continues after a snapshot.
func (w *watchdog) IsMonotonic() bool {
	m, ok := w.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// Patient returns a store that retries to store a number until limit has passed, and then ends the process. Raft panics
// at the first error, but a full disk may have room a second later. Until then the server does not vote, and failures are
// noted in health. A failed sync ends the process at once.
func Patient(store raft.StableStore, health *Health, limit time.Duration, exit func(why string)) raft.StableStore {
	return patient{store, health, limit, exit}
}

// stableRetry is the time between two attempts to store the term.
const stableRetry = 50 * time.Millisecond

type patient struct {
	raft.StableStore
	health *Health
	limit  time.Duration
	exit   func(why string)
}

// Set stores a value.
func (p patient) Set(key, value []byte) error {
	err := p.StableStore.Set(key, value)
	p.ended(key, err)
	return err
}

// ended ends the process if a sync has failed.
func (p patient) ended(key []byte, err error) bool {
	if !fsync.Failed(err) {
		return false
	}
	p.exit(fmt.Sprintf("raft's %s could not be synced to disk: %v", key, err))
	return true
}

// SetUint64 stores a number.
func (p patient) SetUint64(key []byte, n uint64) error {
	err := p.StableStore.SetUint64(key, n)
	for end := time.Now().Add(p.limit); err != nil && !errors.Is(err, ErrClosed); err = p.StableStore.SetUint64(key, n) {
		p.health.note(err)
		if p.ended(key, err) {
			break
		}
		if time.Now().After(end) {
			p.exit(fmt.Sprintf("raft's %s cannot be stored: %v", key, err))
			break
		}
		time.Sleep(stableRetry)
	}
	return err
}
