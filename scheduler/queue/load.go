package queue

import (
	"encoding/binary"
	"errors"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
)

// Load reads a complete input that scheduler.Dump wrote, including the line and the chooser. Deciding it gives the plan
// that was made.
func Load(b []byte) (in scheduler.Input, policy string, err error) {
	in, policy, err = scheduler.LoadWith(b, func(state []byte) (contend.Chooser, error) {
		lives, err := lifetimesOf(state)
		return Choosers{Lives: lives}, err
	})
	if err == nil && in.Queues != nil {
		in.Line = NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
	}
	return in, policy, err
}

// State returns how long work ran, as bytes.
func (c Choosers) State() []byte {
	if c.Lives == nil {
		return nil
	}
	var b []byte
	c.Lives.counts(func(n *int64) { b = binary.AppendVarint(b, *n) })
	return b
}

// lifetimesOf reads what State wrote.
func lifetimesOf(b []byte) (*Lifetimes, error) {
	if len(b) == 0 {
		return nil, nil
	}
	l, bad := &Lifetimes{}, false
	l.counts(func(n *int64) {
		v, used := binary.Varint(b)
		if bad = bad || used <= 0 || v < 0; !bad {
			*n, b = v, b[used:]
		}
	})
	if bad || len(b) > 0 {
		return nil, errors.New("the history of run times is not whole")
	}
	return l, nil
}

// counts calls f for every number of the history, in a fixed order.
func (l *Lifetimes) counts(f func(n *int64)) {
	each := func(x *life) {
		for i := range x.reached {
			f(&x.reached[i])
			f(&x.ended[i])
		}
	}
	each(&l.all)
	for i := range l.widths {
		each(&l.widths[i])
	}
}
