package rpc

import (
	"slices"
	"sync"
)

// flow divides the memory that a session gives to messages larger than windowFree. Bytes are charged when credit for
// them is granted, so what the peer has sent always fits.
//
// The naive way is to reset a stream when too much has arrived. The peer has then done its work for nothing, repeats it,
// and the calls of others are reset as well. Refusing credit alone is not enough either: if each of many messages has
// arrived in part and none gets more credit, all of them wait for each other. So one stream at a time, the turn, may
// exceed the budget until its message is complete. The session holds at most the budget, one message, and windowFree
// bytes of each stream.
type flow struct {
	mu struct {
		sync.Mutex
		charged int64        // credit granted beyond windowFree and bytes received for it, over all streams
		turn    *muxStream   // may exceed the budget, or nil
		waiting []*muxStream // have an incomplete message and got no credit, oldest first
	}
}

// take charges n bytes to s, whose message may be incomplete. Half of the budget is for such streams only. If take
// returns false for one, it is woken through its arrival channel when it should ask again.
func (f *flow) take(s *muxStream, n int64, incomplete bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !incomplete && f.mu.charged+n > flowBudget/2 {
		return false
	}
	if f.mu.charged+n > flowBudget && f.mu.turn != s {
		if f.mu.turn != nil {
			if !slices.Contains(f.mu.waiting, s) {
				f.mu.waiting = append(f.mu.waiting, s)
			}
			return false
		}
		f.mu.turn = s
	}
	f.mu.charged += n
	return true
}

// put returns n bytes of s, which has completed a message or is over, and wakes those that can go on.
func (f *flow) put(s *muxStream, n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.charged -= n
	if f.mu.turn == s {
		f.mu.turn = nil
	}
	if i := slices.Index(f.mu.waiting, s); i >= 0 {
		f.mu.waiting = slices.Delete(f.mu.waiting, i, i+1)
	}
	for room := (flowBudget - f.mu.charged) / window; len(f.mu.waiting) > 0 && (room > 0 || f.mu.turn == nil); room-- {
		next := f.mu.waiting[0]
		f.mu.waiting = slices.Delete(f.mu.waiting, 0, 1)
		if room <= 0 {
			f.mu.turn = next
		}
		notify(next.arrival)
	}
}
