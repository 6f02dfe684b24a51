package scheduler

import "sync"

// scratch is memory that one pass leaves to the next: columns as long as the cluster, which every decision needs anew.
// Without it a decision about one allocation on 10,000 nodes would leave 270 KB of garbage. What is in it means nothing.
type scratch struct {
	columns [][]int32   // counters by row
	future  []occupancy // rows of a picture of the future
}

// scratchMax is how many columns are kept.
const scratchMax = 4

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// column gives a counter for each row, all zero.
func (w *whatIf) column() []int32 {
	if x := w.scratch; x != nil && len(x.columns) > 0 {
		last := len(x.columns) - 1
		c := x.columns[last]
		x.columns = x.columns[:last]
		if cap(c) >= w.View.rows {
			c = c[:w.View.rows]
			clear(c)
			return c
		}
	}
	return make([]int32, w.View.rows)
}

// keep takes a column back.
func (x *scratch) keep(column []int32) {
	if x != nil && column != nil && len(x.columns) < scratchMax {
		x.columns = append(x.columns, column)
	}
}

// pictures gives room for rows of a picture of the future.
func (x *scratch) pictures(rows int) []occupancy {
	if x == nil || cap(x.future) < rows {
		return make([]occupancy, 0, rows)
	}
	p := x.future[:0]
	x.future = nil
	return p
}

// keepPictures takes it back.
func (x *scratch) keepPictures(p []occupancy) {
	if x != nil {
		clear(p)
		x.future = p[:0]
	}
}
