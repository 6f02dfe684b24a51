package rpc

import "testing"

// TestBudget: against a server that fails every call, repetitions are a burst and then a tenth of the calls.
func TestBudget(t *testing.T) {
	b := NewBudget(5)
	retries := 0
	for range 1000 {
		b.Called()
		for range 7 { // a caller that would try every server
			if b.Retry() {
				retries++
			}
		}
	}
	if retries < 100 || retries > 105 {
		t.Errorf("%d repetitions of 1,000 calls, want a tenth and the burst of 5", retries)
	}
}
