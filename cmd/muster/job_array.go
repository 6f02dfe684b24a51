package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/nomadlike/wire"
)

// arrayRowsMax is the largest array of which every index has a row; of larger ones complete indices are only counted.
const arrayRowsMax = 50

// indexLine is what is known of one index of an array.
type indexLine struct {
	index int
	state string
	alloc *wire.AllocationListStub // the newest; nil where it is gone, or was not placed
}

// indexLines returns the state of every index, in order.
func indexLines(count int, over bool, ended []wire.IndexRange, allocs []*wire.AllocationListStub) []indexLine {
	newest := map[int]*wire.AllocationListStub{}
	for _, s := range allocs {
		i := nameIndex(s.Name)
		if old := newest[i]; old == nil || s.CreateIndex > old.CreateIndex {
			newest[i] = s
		}
	}
	gone := map[int]string{}
	for _, r := range ended {
		for i := r.From; i <= r.To; i++ {
			gone[i] = "complete"
			if r.Failed {
				gone[i] = "failed"
			}
		}
	}
	out := make([]indexLine, 0, count)
	for i := range count {
		l := indexLine{index: i, alloc: newest[i]}
		switch {
		case l.alloc == nil && gone[i] != "":
			l.state = gone[i]
		case l.alloc == nil && over:
			l.state = "never ran"
		case l.alloc == nil:
			l.state = "waiting"
		default:
			l.state = allocState(l.alloc.ClientStatus, l.alloc.Suspension)
			if code := allocExit(l.alloc); code != "0" && code != "-" && l.alloc.ClientStatus == "failed" {
				l.state += " (exit " + code + ")"
			}
		}
		out = append(out, l)
	}
	return out
}

// indices prints an array by index: which indices are in which state, and then the allocation of each.
func (o *jobStatusOptions) indices(job *wire.Job, sum *wire.JobSummary, allocs []*wire.AllocationListStub) {
	lines := indexLines(val(job.Array.Count), val(job.Status) == "dead", sum.Ended, allocs)
	o.heading("Indices")
	o.table("State|Count|Indices", indexStates(lines))
	o.heading("Allocations")
	all := o.verbose || o.allAllocs || len(lines) <= arrayRowsMax
	var ids []string
	for _, s := range allocs {
		ids = append(ids, s.ID)
	}
	cut := abbreviate(o.verbose, ids)
	rows, left := [][]string{}, 0
	for _, l := range lines {
		s := l.alloc
		switch {
		case s == nil:
			continue
		case !all && (l.state == "complete" || len(rows) == arrayRowsMax):
			left++
			continue
		}
		rows = append(rows, []string{strconv.Itoa(l.index), l.state, cut(s.ID), s.NodeName, o.ageNanos(s.CreateTime, o.verbose), o.ageNanos(s.ModifyTime, o.verbose)})
	}
	if len(rows) > 0 {
		o.table("Index|Status|ID|Node|Created|Modified", rows)
	} else if left == 0 {
		o.println("No allocations placed")
	}
	if left > 0 {
		o.printf("... and %d more (-all-allocs shows them)\n", left)
	}
}

// indexStates groups indices by state, in the order in which the states first occur.
func indexStates(lines []indexLine) [][]string {
	by, order := map[string][]int{}, []string{}
	for _, l := range lines {
		if by[l.state] == nil {
			order = append(order, l.state)
		}
		by[l.state] = append(by[l.state], l.index)
	}
	rows := [][]string{}
	for _, state := range order {
		rows = append(rows, []string{state, strconv.Itoa(len(by[state])), ranges(by[state])})
	}
	return rows
}

// rangesMax bounds the ranges of indices in a line.
const rangesMax = 12

// ranges writes ascending indices as 0-4,6,8-11.
func ranges(list []int) string {
	var parts []string
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		if len(parts) == rangesMax {
			parts = append(parts, "...")
			break
		}
		if i == j {
			parts = append(parts, strconv.Itoa(list[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", list[i], list[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// allocExit returns the exit code of an allocation that has ended: of the first task that failed, else 0; "-" while it
// runs and where no task has one.
func allocExit(s *wire.AllocationListStub) string {
	if !over(s) {
		return "-"
	}
	code, at := "-", int64(0)
	for _, name := range sortedKeys(s.TaskStates) {
		t := s.TaskStates[name]
		if t == nil {
			continue
		}
		last := slices.IndexFunc(t.Events, func(e *wire.TaskEvent) bool { return e.Type == "Terminated" && e.ExitCode != 0 })
		if last >= 0 && t.Failed && (at == 0 || t.FinishedAt.UnixNano() < at) {
			code, at = strconv.Itoa(t.Events[last].ExitCode), t.FinishedAt.UnixNano()
		}
	}
	if s.ClientStatus == "complete" {
		return cmp.Or(strings.Trim(code, "-"), "0")
	}
	return code
}

// gpusHeld counts the GPUs, whole or shared, of an allocation.
func gpusHeld(r *wire.AllocatedResources) string {
	if r == nil {
		return "-"
	}
	n := 0
	for _, t := range r.Tasks {
		if t == nil {
			continue
		}
		for _, d := range t.Devices {
			n += len(d.DeviceIDs)
		}
	}
	return strconv.Itoa(n)
}
