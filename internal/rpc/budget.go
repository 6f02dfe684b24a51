package rpc

import "sync"

// Budget bounds repeated calls by a share of first ones, so that callers of a server that fails do not multiply its load
// ("Handling Overload" in Site Reliability Engineering, Beyer et al., 2016). It is a bucket of tokens: every first call
// adds a tenth of one, and a repetition takes one. The zero value is empty; NewBudget gives a full one.
type Budget struct {
	mu     sync.Mutex
	tenths int // tokens times 10
	burst  int
}

// callsPerRetry is how many first calls earn one repetition.
const callsPerRetry = 10

// NewBudget returns a budget that allows burst repetitions at once.
func NewBudget(burst int) *Budget {
	return &Budget{tenths: burst * callsPerRetry, burst: burst * callsPerRetry}
}

// Called counts a first call.
func (b *Budget) Called() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tenths = min(b.tenths+1, b.burst)
}

// Retry reports whether a call may be repeated now, and counts it.
func (b *Budget) Retry() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tenths < callsPerRetry {
		return false
	}
	b.tenths -= callsPerRetry
	return true
}
