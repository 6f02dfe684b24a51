package predict

import "time"

// Tsafrir predicts the mean of the last two run times of the user's work, and the limit where there are not two yet
// (Tsafrir, Etzion, Feitelson: Backfilling Using System-Generated Predictions Rather than User Runtime Estimates,
// 2007).
type Tsafrir struct {
	last users[lastTwo]
}

type lastTwo struct {
	ms [2]int64 // newest first
	n  uint64
}

// NewTsafrir returns a predictor that has seen no work yet.
func NewTsafrir() *Tsafrir { return &Tsafrir{} }

// Name is "tsafrir".
func (*Tsafrir) Name() string { return "tsafrir" }

// Predict returns the mean of the last two, at most the limit.
func (t *Tsafrir) Predict(w *Work) Estimate {
	l := t.last.get(w.User)
	if l == nil || l.n < 2 {
		return Limits{}.Predict(w)
	}
	// The mean is taken in whole seconds, as published: half a second decides between equals.
	ms := max(1, (l.ms[0]+l.ms[1])/2000) * 1000
	if limit := w.Limit.Milliseconds(); limit > 0 {
		ms = min(ms, limit)
	}
	return known(ms)
}

// Ended records a run time.
func (t *Tsafrir) Ended(w *Work, ran time.Duration) {
	l := t.last.at(w.User)
	l.ms[0], l.ms[1] = ran.Milliseconds(), l.ms[0]
	l.n++
}

// Version counts the ended work of the user.
func (t *Tsafrir) Version(user string) uint64 {
	if l := t.last.get(user); l != nil {
		return l.n + 1
	}
	return 1
}
