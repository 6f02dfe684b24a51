// Package predict predicts how long work will run from how long similar work ran. It is pure and computes with
// integers: a Predictor is a value that receives, in order, what ended, and two with the same input give the same
// answers. A server feeds it the accounting records of replicated state, a simulation the work that it ends.
package predict

import "time"

// Work is what is known of a piece of work before it runs.
type Work struct {
	User     string
	Name     string        // of the job; "" when it says nothing
	Queue    string        // "" when there is only one
	Size     int64         // what it holds while it runs, in any unit that is the same for all work of a Predictor
	Limit    time.Duration // wall-clock limit; 0: none
	Expected time.Duration // the submitter's own estimate; 0: none
}

// request returns how long the submitter asked for, in milliseconds; 0 when unknown.
func (w *Work) request() int64 {
	if w.Expected > 0 && (w.Limit <= 0 || w.Expected < w.Limit) {
		return max(1, w.Expected.Milliseconds())
	}
	return max(0, w.Limit.Milliseconds())
}

// Estimate is what a Predictor expects of a piece of work.
type Estimate struct {
	// Expect is the predicted run time: a longer run is as likely as a shorter one. It is never beyond the limit; 0:
	// unknown.
	Expect time.Duration
	// Cost is what it costs to let the work go first: see the function Cost. 0: unknown.
	Cost int64
}

// Predictor learns from what ended. Implementations are not safe for concurrent use.
type Predictor interface {
	// Name returns the name in configuration and reports.
	Name() string
	// Predict returns what to expect of work that is about to be decided.
	Predict(w *Work) Estimate
	// Ended records that w ran for so long.
	Ended(w *Work, ran time.Duration)
	// Version changes when the estimates for a user's work may have changed; for callers that cache them.
	Version(user string) uint64
}

// Limits trusts the submitters: every piece of work runs until its limit.
type Limits struct{}

// Name is "limits".
func (Limits) Name() string { return "limits" }

// Predict returns the limit, or the submitter's estimate where there is no limit.
func (Limits) Predict(w *Work) Estimate {
	ms := w.Limit.Milliseconds()
	if ms <= 0 {
		ms = w.request()
	}
	return known(ms)
}

// Ended does nothing.
func (Limits) Ended(*Work, time.Duration) {}

// Version is always the same.
func (Limits) Version(string) uint64 { return 1 }

// known returns the estimate for work that runs for exactly so many milliseconds.
func known(ms int64) Estimate {
	if ms <= 0 {
		return Estimate{}
	}
	return Estimate{Expect: time.Duration(ms) * time.Millisecond, Cost: CostOf(ms)}
}
