// Package gcra limits rates by the generic cell rate algorithm (ITU-T I.371): for each key it keeps the time at which
// everything taken so far would have come if it had been evenly spaced, which is a token bucket in one number.
package gcra

import (
	"crypto/sha256"
	"sync"
	"time"
)

// KeysMax is how many keys are remembered. At the limit all are forgotten.
const KeysMax = 16384

// Rate is how much a key may take.
type Rate struct {
	PerSecond int           // 0: no limit
	Burst     time.Duration // what this time allows may be taken at once
}

// Limiter counts what keys take. It is safe for concurrent use.
type Limiter struct {
	mu  sync.Mutex
	due map[[sha256.Size]byte]time.Time // guarded by mu
}

// New returns a limiter.
func New() *Limiter { return &Limiter{due: map[[sha256.Size]byte]time.Time{}} }

// Take counts n for a key, or returns how long to wait if that is too much now. A key that has taken nothing lately may take
// any n: what is beyond the burst counts as the burst.
func (l *Limiter) Take(key string, n int, r Rate) time.Duration {
	if r.PerSecond <= 0 || n <= 0 {
		return 0
	}
	k := sha256.Sum256([]byte(key)) // so that memory holds no secrets
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.due) >= KeysMax {
		l.forget(now)
	}
	due := l.due[k]
	if due.Before(now) {
		due = now
	}
	step := r.step(n)
	if early := due.Add(step).Sub(now) - r.Burst; early > 0 {
		return early
	}
	l.due[k] = due.Add(step)
	return 0
}

// Return gives back what was taken for nothing.
func (l *Limiter) Return(key string, n int, r Rate) {
	if r.PerSecond <= 0 || n <= 0 {
		return
	}
	k := sha256.Sum256([]byte(key))
	l.mu.Lock()
	defer l.mu.Unlock()
	if due, ok := l.due[k]; ok {
		l.due[k] = due.Add(-r.step(n))
	}
}

// Keys returns the number of keys that are remembered.
func (l *Limiter) Keys() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due)
}

// step is the time that n takes at the rate, at most the burst.
func (r Rate) step(n int) time.Duration {
	if float64(n) >= float64(r.PerSecond)*r.Burst.Seconds() {
		return r.Burst
	}
	return time.Duration(n) * time.Second / time.Duration(r.PerSecond)
}

// forget removes the keys that have taken nothing lately, or all if that removes none.
func (l *Limiter) forget(now time.Time) {
	for k, due := range l.due {
		if due.Before(now) {
			delete(l.due, k)
		}
	}
	if len(l.due) >= KeysMax {
		clear(l.due)
	}
}
