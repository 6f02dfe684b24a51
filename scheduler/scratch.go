package scheduler

import "sync"

// scratch is memory that one pass leaves to the next: columns as long as the cluster, which every decision needs anew.
// Without it a decision about one allocation on 10,000 nodes would leave 270 KB of garbage. What is in it means nothing.
type scratch struct {
	columns [][]int32     // counters by row
	heaps   [][]candidate // of scans that are done
	wants   []want        // of a gang that found no place
	future  []occupancy   // rows of a picture of the future
}

// scratchMax is how many columns and how many heaps are kept.
const scratchMax = 4

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// column gives a counter for each row, all zero.
func (w *whatIf) column() []int32 {
	if x := w.scratch; x != nil && len(x.columns) > 0 {
		last := len(x.columns) - 1
		c := x.columns[last]
		x.columns = x.columns[:last]
		if cap(c) >= w.v.rows {
			c = c[:w.v.rows]
			clear(c)
			return c
		}
	}
	return make([]int32, w.v.rows)
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

// heap gives room for a candidate of every row.
func (w *whatIf) heap() []candidate {
	if x := w.scratch; x != nil && len(x.heaps) > 0 {
		last := len(x.heaps) - 1
		h := x.heaps[last]
		x.heaps = x.heaps[:last]
		if cap(h) >= w.v.rows {
			return h[:0]
		}
	}
	return make([]candidate, 0, w.v.rows)
}

// done gives back what a decision has of the scratch, when its entries are made.
func (d *decision) done() {
	d.rec.done()
	x := d.w.scratch
	if x == nil {
		return
	}
	x.wants = d.rec.spare
	if len(d.placed) > 0 || d.promise != nil {
		return // their wants may be referred to
	}
	for _, g := range d.rec.groups {
		if g.gang && cap(g.wants) > cap(x.wants) {
			clear(g.wants)
			x.wants, g.wants = g.wants[:0], nil
		}
	}
}

// done gives back what the scans of the groups have of the scratch.
func (r *reconciler) done() {
	for _, g := range r.groups {
		if g.scan != nil {
			g.scan.done()
		}
	}
}

// done gives back what a scan has of the scratch. It places nothing from here on, and still tells its report.
func (s *scan) done() {
	x := s.w.scratch
	if x == nil {
		return
	}
	x.keep(s.onRow)
	x.keep(s.jobRow)
	s.onRow, s.jobRow = nil, nil
	if len(s.cells) == 1 && cap(s.cells[0].heap) >= s.w.v.rows && len(x.heaps) < scratchMax {
		x.heaps = append(x.heaps, s.cells[0].heap)
		s.cells[0].heap, s.turn = nil, nil
	}
}
