package model

import "sync"

// scratch is memory that passes reuse: columns with one element for each node, which every decision needs. Without it a
// decision about one allocation on 10,000 nodes would leave 270 KB of garbage. Its content has no meaning.
type scratch struct {
	columns [][]int32   // counters by row
	future  []Occupancy // occupancies for a what-if about the future
}

// scratchMax is the highest number of columns kept.
const scratchMax = 4

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Column returns a counter for each row, all zero.
func (w *WhatIf) Column() []int32 {
	if x := w.Scratch; x != nil && len(x.columns) > 0 {
		last := len(x.columns) - 1
		c := x.columns[last]
		x.columns = x.columns[:last]
		if cap(c) >= w.View.Rows {
			c = c[:w.View.Rows]
			clear(c)
			return c
		}
	}
	return make([]int32, w.View.Rows)
}

// Keep takes back a column for reuse.
func (x *scratch) Keep(column []int32) {
	if x != nil && column != nil && len(x.columns) < scratchMax {
		x.columns = append(x.columns, column)
	}
}

// FutureRows returns an empty slice with room for the occupancy of so many rows.
func (x *scratch) FutureRows(rows int) []Occupancy {
	if x == nil || cap(x.future) < rows {
		return make([]Occupancy, 0, rows)
	}
	p := x.future[:0]
	x.future = nil
	return p
}

// KeepFutureRows takes back that slice for reuse.
func (x *scratch) KeepFutureRows(p []Occupancy) {
	if x != nil {
		clear(p)
		x.future = p[:0]
	}
}
