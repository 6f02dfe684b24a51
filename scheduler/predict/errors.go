package predict

import "time"

// Errors are the statistics of how wrong predictions were.
type Errors struct {
	N     int64 // predictions that came to an end
	Under int64 // of them: it ran longer
	sum   int64 // of absolute errors, ms
	ran   int64 // of run times, ms
}

// Add counts a prediction and what became of it.
func (e *Errors) Add(predicted, ran time.Duration) {
	p, r := predicted.Milliseconds(), ran.Milliseconds()
	e.N++
	if r > p {
		e.Under++
	}
	e.sum += max(p-r, r-p)
	e.ran += r
}

// MeanAbsolute is the mean absolute error.
func (e *Errors) MeanAbsolute() time.Duration {
	if e.N == 0 {
		return 0
	}
	return time.Duration(e.sum/e.N) * time.Millisecond
}

// Relative is the sum of absolute errors over the sum of run times, in thousandths: 0 is perfect.
func (e *Errors) Relative() int64 {
	if e.ran == 0 {
		return 0
	}
	return mulDiv(e.sum, 1000, e.ran)
}
