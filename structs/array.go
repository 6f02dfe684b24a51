package structs

import (
	"slices"
	"sort"
)

// An array (D22) is one job record. Its running indices and the newest ended ones are allocations. The results of the
// other ended ones are kept here, as runs of equal results. An index in neither has not started.

// ArrayKept is how many ended allocations of a running array are kept in addition to its runs.
const ArrayKept = 1_000

// ArrayState holds the results of an array's indices whose allocations have been collected. Immutable in the store.
type ArrayState struct {
	Namespace   string
	JobID       string
	Ended       []ArrayRun // ascending; adjacent runs with the same result are merged
	ModifyIndex Index
}

// ArrayRun is a range of indices with the same result.
type ArrayRun struct {
	From, To int // both included
	Failed   bool
}

// Key returns the key of the array's job.
func (s *ArrayState) Key() JobKey { return JobKey{Namespace: s.Namespace, ID: s.JobID} }

// ArrayEnd is the result of one index.
type ArrayEnd struct {
	Index  int
	Failed bool
}

// With returns the runs merged with further results; a new result replaces an old one of the same index. It sorts ends.
func (s *ArrayState) With(ends []ArrayEnd) []ArrayRun {
	slices.SortStableFunc(ends, func(a, b ArrayEnd) int { return a.Index - b.Index })
	var out []ArrayRun
	add := func(from, to int, failed bool) {
		if n := len(out); n > 0 && out[n-1].To+1 == from && out[n-1].Failed == failed {
			out[n-1].To = to
			return
		}
		out = append(out, ArrayRun{from, to, failed})
	}
	var runs []ArrayRun
	if s != nil {
		runs = s.Ended
	}
	e := 0
	for _, r := range runs {
		for from := r.From; from <= r.To; {
			for e < len(ends) && ends[e].Index < from {
				add(ends[e].Index, ends[e].Index, ends[e].Failed)
				e++
			}
			if e < len(ends) && ends[e].Index <= r.To {
				if x := ends[e].Index; x > from {
					add(from, x-1, r.Failed)
				}
				from = ends[e].Index + 1
				add(ends[e].Index, ends[e].Index, ends[e].Failed)
				e++
				continue
			}
			add(from, r.To, r.Failed)
			break
		}
	}
	for ; e < len(ends); e++ {
		add(ends[e].Index, ends[e].Index, ends[e].Failed)
	}
	return out
}

// Count returns how many of the collected indices succeeded, and how many failed. s may be nil.
func (s *ArrayState) Count() (complete, failed int) {
	if s == nil {
		return 0, 0
	}
	for _, r := range s.Ended {
		if r.Failed {
			failed += r.To - r.From + 1
		} else {
			complete += r.To - r.From + 1
		}
	}
	return complete, failed
}

// Has reports whether an index has ended and been collected. s may be nil.
func (s *ArrayState) Has(index int) bool {
	if s == nil {
		return false
	}
	i := sort.Search(len(s.Ended), func(i int) bool { return s.Ended[i].To >= index })
	return i < len(s.Ended) && s.Ended[i].From <= index
}
