// Package predict foretells how long work will run from how long like work ran. It is pure and computes with integers:
// a Predictor is a value that is told, in order, what ended, and gives the same answers wherever it is told the same. A
// server feeds it the accounting records of replicated state, a simulation what it lets end.
package predict

import "time"

// Work is what is known of a piece of work before it runs.
type Work struct {
	User     string
	Name     string        // of the job; "" when it says nothing
	Queue    string        // "" when there is only one
	Size     int64         // how much it holds while it runs, in any unit that is the same for all work of a Predictor
	Limit    time.Duration // wall-clock limit; 0: none
	Expected time.Duration // the submitter's own estimate; 0: none
}

// request is how long the submitter asked for, in milliseconds; 0 when he did not say.
func (w *Work) request() int64 {
	if w.Expected > 0 && (w.Limit <= 0 || w.Expected < w.Limit) {
		return max(1, w.Expected.Milliseconds())
	}
	return max(0, w.Limit.Milliseconds())
}

// Estimate is what a Predictor thinks of a piece of work.
type Estimate struct {
	// Expect is the predicted run time: it will take longer as likely as not. Never beyond the limit; 0: nothing is known.
	Expect time.Duration
	// Cost tells how dear it is to let the work go first: see Cost. 0 when nothing is known.
	Cost int64
}

// Predictor learns from what ended. Implementations are not safe for concurrent use.
type Predictor interface {
	// Name as written in configuration and reports.
	Name() string
	// Predict tells what to expect of work that is about to be decided on.
	Predict(w *Work) Estimate
	// Ended teaches: w ran for so long.
	Ended(w *Work, ran time.Duration)
	// Version changes when the estimates of a user's work may have; for callers that keep them.
	Version(user string) uint64
}

// Limits believes the submitters: every piece of work runs as long as it may.
type Limits struct{}

// Name is "limits".
func (Limits) Name() string { return "limits" }

// Predict gives the limit, or the submitter's estimate where there is no limit.
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

// known is the estimate of work that runs for so many milliseconds and not otherwise.
func known(ms int64) Estimate {
	if ms <= 0 {
		return Estimate{}
	}
	return Estimate{Expect: time.Duration(ms) * time.Millisecond, Cost: CostOf(ms)}
}
