package search

import (
	"time"

	"github.com/muster-sched/muster/scheduler/model"
)

// Past is how work went on a node: moving averages in which one end counts for an eighth. The zero value means unknown.
type Past struct {
	Ends    int64 // number of ends counted
	Success int64 // millionths of those that succeeded
	Speed   int64 // expected over true run time in millionths; 2,000,000 for twice as fast
}

// pastWindow sets the weight of the newest end to 1/8; the first ends count as in a plain mean.
const pastWindow = 8

// speedMax limits one observation: beyond it the expectation was wrong.
const speedMax = 8 * model.Micro

// Learn returns the past with one more end. An expectation of 0 says nothing about speed.
func (p Past) Learn(ok bool, expected, took time.Duration) Past {
	p.Ends++
	weight := min(p.Ends, pastWindow)
	seen := int64(0)
	if ok {
		seen = model.Micro
	}
	p.Success += (seen - p.Success) / weight
	if run := took.Milliseconds(); ok && expected > 0 && run > 0 {
		seen := min(expected.Milliseconds(), run*(speedMax/model.Micro)) * model.Micro / run
		if p.Speed == 0 {
			p.Speed = model.Micro
		}
		p.Speed += (seen - p.Speed) / weight
	}
	return p
}
