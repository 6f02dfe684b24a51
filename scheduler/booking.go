package scheduler

// books are the promises of capacity in time that a pass keeps (D20).
type books struct {
	in *Input
	w  *whatIf
}

func newBooks(in *Input, w *whatIf) *books { return &books{in: in, w: w} }

// reserve promises capacity to what the decision could not place, by the queue's rule of backfilling.
func (d *decision) reserve() {}
