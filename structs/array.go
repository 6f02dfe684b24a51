package structs

import (
	"slices"
	"sort"
)

// An array (D22) is one job record. Of its indices those that run, and the newest that ended, are allocations; how the
// others ended is kept here, as runs of equal results, and those that are in neither have not begun.

// ArrayKept is how many ended allocations of a running array are kept beside its runs.
const ArrayKept = 1_000

// ArrayState is how the indices of an array ended whose allocations have been collected. Immutable in the store.
type ArrayState struct {
	Namespace   string
	JobID       string
	Ended       []ArrayRun // ascending; runs of one result that touch are one
	ModifyIndex Index
}

// ArrayRun is indices that ended alike.
type ArrayRun struct {
	From, To int // both included
	Failed   bool
}

// Key names the array's job.
func (s *ArrayState) Key() JobKey { return JobKey{Namespace: s.Namespace, ID: s.JobID} }

// ArrayEnd is how one index ended.
type ArrayEnd struct {
	Index  int
	Failed bool
}

// With gives the runs with further ends taken in; of an index that is in both the new end counts. ends is sorted.
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

// Count gives how many of the collected indices ended well, and how many failed. A nil state has none.
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

// Has reports whether an index has ended and been collected.
func (s *ArrayState) Has(index int) bool {
	if s == nil {
		return false
	}
	i := sort.Search(len(s.Ended), func(i int) bool { return s.Ended[i].To >= index })
	return i < len(s.Ended) && s.Ended[i].From <= index
}
