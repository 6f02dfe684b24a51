package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/nomadlike"
)

// effMinimum is how long an allocation must have run before eff judges it: programs load and compile first.
const effMinimum = time.Minute

// hours returns the GPU hours held. They are unknown for a part of a GPU of unknown size.
func (g *effGPU) hours() (hours float64, known bool) {
	return val(g.Part) * g.HeldSeconds / 3600, g.Part != nil
}

// judged reports whether the GPU counts as idle or not: it was measured for long enough, in the newest run.
func (g *effGPU) judged() bool {
	return !g.Earlier && g.BusySeconds != nil && g.HeldSeconds >= effMinimum.Seconds()
}

// idleBelow is the part of the time that an idle GPU is busy at most.
const idleBelow = 0.01

// settleIdle finds the idle GPUs of an allocation. The records have no line of a GPU that nothing was done on. So where
// the agent measured work on one GPU of an allocation, another whole one without a line was measured, too, and stood idle;
// where it measured none, nothing is known.
func settleIdle(own []effGPU) {
	measures := slices.ContainsFunc(own, func(g effGPU) bool { return g.BusySeconds != nil && *g.BusySeconds > 0 })
	for i := range own {
		g := &own[i]
		if measures && g.PeakMiB == nil && val(g.Part) == 1 && !strings.Contains(g.Model, " MIG ") {
			g.PeakMiB, g.BusySeconds = new(int64), new(float64)
		}
		// A part of unknown size is idle only if it never worked.
		g.Idle = g.BusySeconds != nil && g.HeldSeconds >= effMinimum.Seconds() && (*g.BusySeconds == 0 || *g.BusySeconds < idleBelow*val(g.Part)*g.HeldSeconds)
	}
}

// total adds up the GPUs.
func (f *efficiency) total() {
	var asked, unmeasured float64
	f.GPUHoursAsked, f.GPUHoursUnmeasured = &asked, &unmeasured
	for i := range f.GPUs {
		g := &f.GPUs[i]
		hours, known := g.hours()
		asked += hours
		if !known {
			f.GPUHoursAsked, f.unknownGPU = nil, true
		}
		if g.BusySeconds != nil {
			busy := *g.BusySeconds/3600 + val(f.GPUHoursBusy)
			f.GPUHoursBusy = &busy
		} else {
			unmeasured += hours
			if !known {
				f.GPUHoursUnmeasured = nil
			}
		}
		if g.judged() {
			f.JudgedGPUs++
			f.gpuBusy, f.gpuHeld = f.gpuBusy+*g.BusySeconds/3600, f.gpuHeld+hours
		}
		if g.PeakMiB != nil && (f.GPUMemoryPeakMiB == nil || *g.PeakMiB > *f.GPUMemoryPeakMiB) {
			f.GPUMemoryPeakMiB, f.GPUMemoryAskedMiB = g.PeakMiB, g.AskedMiB
		}
		if g.Idle && g.judged() {
			f.IdleGPUs++
		}
	}
}

// recorded takes the sums of a run that has ended. The record has all allocations of the run, also those that are gone; n of
// them were looked at.
func (f *efficiency) recorded(r *nomadlike.AcctRecord, n int) {
	f.Namespace, f.Status = r.Namespace, "ended: "+r.Exit
	asked := float64(r.GPUSeconds) / 3600
	if n == 0 {
		f.RanSeconds = time.Duration(r.Longest).Seconds()
		f.GPUsAsked, f.askedMiB = int64(math.Ceil(r.GPUs)), r.GPUMemoryMiB
	}
	if int64(n) >= r.Allocs {
		if f.GPUHoursAsked == nil && int64(n) == r.Allocs {
			f.GPUHoursAsked = &asked // the servers knew the sizes of the GPUs
		}
		return // nothing is missing, and the sums are exact
	}
	if f.GPUHoursAsked != nil && f.GPUHoursUnmeasured != nil {
		unmeasured := max(0, asked-(*f.GPUHoursAsked-*f.GPUHoursUnmeasured))
		f.GPUHoursUnmeasured = &unmeasured
	}
	f.GPUHoursAsked = &asked
	f.AllocationsLeftOut = int(r.Allocs) - n
	if u := r.GPUUse; u != nil {
		busy := u.SMSeconds / 3600
		f.GPUHoursBusy = &busy
		f.GPUHoursUnmeasured, f.GPUHoursBusyAtLeast = new(float64), true
		if f.GPUMemoryPeakMiB == nil || u.PeakMiB > *f.GPUMemoryPeakMiB {
			f.GPUMemoryPeakMiB, f.GPUMemoryAskedMiB = &u.PeakMiB, 0
			if r.GPUs == 0 && n == 0 && r.Allocs == 1 {
				f.GPUMemoryAskedMiB = r.GPUMemoryMiB
			}
		}
	}
}

// measuredHours returns the GPU hours that were measured.
func (f *efficiency) measuredHours() (hours float64, known bool) {
	if f.GPUHoursAsked == nil || f.GPUHoursUnmeasured == nil {
		return 0, false
	}
	return *f.GPUHoursAsked - *f.GPUHoursUnmeasured, true
}

// busyShare returns how much of the measured GPU hours was busy.
func (f *efficiency) busyShare() (share float64, known bool) {
	measured, known := f.measuredHours()
	if f.GPUHoursBusy == nil || !known || measured <= 0 {
		return 0, false
	}
	return *f.GPUHoursBusy / measured, true
}

// heldGPUs reports whether the job holds or held GPUs.
func (f *efficiency) heldGPUs() bool {
	return f.GPUHoursAsked == nil || *f.GPUHoursAsked > 0 || len(f.GPUs) > 0
}

// advise says what to change. Idle GPUs and their use are judged in the newest run; of a job whose allocations are gone, by
// the sums of its record.
func (f *efficiency) advise() {
	add := func(format string, args ...any) { f.Advice = append(f.Advice, fmt.Sprintf(format, args...)) }
	ended := strings.HasPrefix(f.Status, "ended: ") || f.Status == "dead"
	ran := time.Duration(f.RanSeconds * float64(time.Second))
	switch {
	case f.forgotten:
		add("There is nothing to judge: no allocation and no record of it is left.")
		return
	case f.NotStarted && ended:
		add("It never started, so there is nothing to judge.")
		return
	case f.NotStarted:
		hint := "muster job why " + inNamespace(f.Namespace) + word(f.JobID)
		if f.GPUsAsked > 0 {
			add("It has not started, and asks for %s%s. What it waits for:  %s", plural(f.GPUsAsked, "GPU"), f.inPart(), hint)
		} else {
			add("It has not started. What it waits for:  %s", hint)
		}
		return
	case ran < effMinimum && ended:
		add("Too short to judge: it ran for %s.", span(ran))
		return
	case ran < effMinimum:
		add("Too early to judge: it has run for %s.", span(ran))
		return
	}
	share, known := f.busyShare()
	if len(f.GPUs) > 0 && !f.GPUHoursBusyAtLeast && (f.EarlierAllocations > 0 || !f.unknownGPU) {
		if known = f.gpuHeld > 0 && !f.unknownGPU; known {
			share = f.gpuBusy / f.gpuHeld
		}
	}
	memory := 1.0 // of what was asked for
	if f.GPUMemoryPeakMiB != nil && f.GPUMemoryAskedMiB > 0 {
		memory = float64(*f.GPUMemoryPeakMiB) / float64(f.GPUMemoryAskedMiB)
	}
	switch {
	case !f.heldGPUs():
	case f.IdleGPUs > 0 && f.IdleGPUs == f.newestGPUs():
		add("No GPU did any work: ask for none, or see whether the program finds its GPUs (CUDA_VISIBLE_DEVICES, its log).")
	case f.IdleGPUs > 0:
		add("Ask for fewer GPUs, or use them all: %d of %d did no work.", f.IdleGPUs, f.newestGPUs())
	case !known && f.unknownGPU && f.GPUHoursBusy != nil:
		add("How busy the GPUs were is not known: the size of a GPU that was shared is not known (that needs node:read, and the node).")
	case !known:
		add("How busy the GPUs were is not known: nothing was measured of this job.")
	case share < 0.5 && memory < 0.5:
		add("A part of a GPU may be enough:  gpu { memory = \"%dGiB\" }  (the peak and a fifth).", (*f.GPUMemoryPeakMiB*6/5+1023)/1024)
	case share < 0.5:
		add("The GPUs waited for more than half of the time: look at what feeds them (data loading, cores, checkpoints) before asking for more.")
	}
	if f.MemoryPeakMiB != nil && f.MemoryAskedMiB >= 2048 && *f.MemoryPeakMiB*2 < f.MemoryAskedMiB {
		add("Ask for less memory: the peak is %s of %s so far.", mib(*f.MemoryPeakMiB), mib(f.MemoryAskedMiB))
	}
	if len(f.Advice) == 0 {
		add("Nothing to change.")
	}
}

// newestGPUs counts the GPUs of the newest run.
func (f *efficiency) newestGPUs() (n int) {
	for i := range f.GPUs {
		if !f.GPUs[i].Earlier {
			n++
		}
	}
	return n
}
