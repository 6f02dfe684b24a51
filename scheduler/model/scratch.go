package model

import "sync"

// Scratch is memory that one pass leaves to the next: columns as long as the cluster, which every decision needs anew.
// Without it a decision about one allocation on 10,000 nodes would leave 270 KB of garbage. What is in it means nothing.
type scratch struct {
	columns [][]int32   // counters by row
	future  []Occupancy // rows of a picture of the future
}

// scratchMax is how many columns are kept.
const scratchMax = 4

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Column gives a counter for each row, all zero.
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

// Keep takes a column back.
func (x *scratch) Keep(column []int32) {
	if x != nil && column != nil && len(x.columns) < scratchMax {
		x.columns = append(x.columns, column)
	}
}

// Pictures gives room for rows of a picture of the future.
func (x *scratch) Pictures(rows int) []Occupancy {
	if x == nil || cap(x.future) < rows {
		return make([]Occupancy, 0, rows)
	}
	p := x.future[:0]
	x.future = nil
	return p
}

// KeepPictures takes it back.
func (x *scratch) KeepPictures(p []Occupancy) {
	if x != nil {
		clear(p)
		x.future = p[:0]
	}
}
