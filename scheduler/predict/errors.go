package predict

import "time"

// Errors are the statistics of how wrong predictions were.
type Errors struct {
	N       int64                 // predictions whose work has ended
	Under   int64                 // of them: the work ran longer
	Unknown int64                 // work that ended without a prediction
	sum     int64                 // of absolute errors, ms
	ran     int64                 // of run times, ms
	factors [factorMost + 1]int64 // predictions by their error, in 1/16 of a doubling
}

// Factors are counted in steps of 1/16 of a doubling, up to 2^16.
const (
	factorStep = Doubling / 16
	factorMost = 256
)

// factorTable holds the middles of the 16 steps of a doubling, in thousandths.
var factorTable = [16]int64{1022, 1067, 1114, 1164, 1215, 1269, 1325, 1384, 1445, 1509, 1576, 1646, 1719, 1795, 1874, 1957}

// Add counts a prediction and the actual run time.
func (e *Errors) Add(predicted, ran time.Duration) {
	p, r := predicted.Milliseconds(), ran.Milliseconds()
	e.N++
	if r > p {
		e.Under++
	}
	e.sum += max(p-r, r-p)
	e.ran += r
	off := Log(max(p, 1)) - Log(max(r, 1))
	e.factors[min(max(off, -off)/factorStep, factorMost)]++
}

// MedianFactor returns by which factor the median prediction was off, either way, in thousandths and to 1/16 of a
// doubling: 2000 is twice or half the run time, and below 1044 it cannot be told from perfect. 0 for no predictions.
func (e *Errors) MedianFactor() int64 {
	if e.N == 0 {
		return 0
	}
	sum := int64(0)
	for i, n := range e.factors {
		if sum += n; 2*sum >= e.N {
			return factorTable[i%16] << (i / 16)
		}
	}
	return 0
}

// MeanAbsolute returns the mean absolute error.
func (e *Errors) MeanAbsolute() time.Duration {
	if e.N == 0 {
		return 0
	}
	return time.Duration(e.sum/e.N) * time.Millisecond
}

// Relative returns the sum of absolute errors over the sum of run times, in thousandths: 0 is perfect.
func (e *Errors) Relative() int64 {
	if e.ran == 0 {
		return 0
	}
	return mulDiv(e.sum, 1000, e.ran)
}
