package main

import (
	"fmt"
	"strings"
	"time"
)

// inPart says how many of the GPUs that are asked for are not whole ones.
func (f *efficiency) inPart() string {
	switch f.askedParts {
	case 0:
		return ""
	case f.GPUsAsked:
		return " (parts of GPUs)"
	}
	return fmt.Sprintf(" (%d of them in part)", f.askedParts)
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

func (o *effOptions) print(f *efficiency) {
	const unknown = "unknown"
	name := f.JobID
	if f.Namespace != "default" {
		name = f.Namespace + "/" + name
	}
	busy, peak, memory, cores := unknown, unknown, unknown+" (measured of running tasks only)", unknown+" (measured of running tasks only)"
	if f.GPUHoursBusy != nil {
		busy = fmt.Sprintf("%.2f", *f.GPUHoursBusy)
		if f.GPUHoursBusyAtLeast {
			busy = "at least " + busy
		}
		if share, known := f.busyShare(); known {
			busy += " (" + percent(share) + ")"
		}
		if measured, known := f.measuredHours(); known && *f.GPUHoursUnmeasured > 0 {
			busy += fmt.Sprintf(" of %.2f that were measured", measured)
		}
	}
	if f.GPUMemoryPeakMiB != nil {
		peak = mib(*f.GPUMemoryPeakMiB) + " on one GPU"
		if f.GPUMemoryAskedMiB > 0 {
			peak += fmt.Sprintf(", of %s asked for (%s)", mib(f.GPUMemoryAskedMiB), percent(float64(*f.GPUMemoryPeakMiB)/float64(f.GPUMemoryAskedMiB)))
		}
	}
	idle := unknown
	if f.JudgedGPUs > 0 {
		idle = fmt.Sprintf("%d of %d", f.IdleGPUs, f.newestGPUs())
		if f.EarlierAllocations > 0 {
			idle += " of the newest run"
		}
		if n := f.newestGPUs() - f.JudgedGPUs; n > 0 {
			idle += fmt.Sprintf(" (unknown of %d)", n)
		}
	}
	hours := unknown + " (the size of a GPU that was shared is not known)"
	if f.GPUHoursAsked != nil {
		hours = fmt.Sprintf("%.2f", *f.GPUHoursAsked)
	}
	if f.EarlierAllocations > 0 {
		hours += fmt.Sprintf(", with %s before the newest run", plural(int64(f.EarlierAllocations), "allocation"))
	}
	if f.MemoryPeakMiB != nil {
		memory = fmt.Sprintf("peak %s, of %s asked for", mib(*f.MemoryPeakMiB), mib(f.MemoryAskedMiB))
	}
	if f.CoresBusy != nil {
		cores = fmt.Sprintf("%.1f cores busy now", *f.CoresBusy)
		switch {
		case f.CoresAsked > 0:
			cores += fmt.Sprintf(", of %s asked for", plural(f.CoresAsked, "core"))
		case f.MHzAsked > 0:
			cores += fmt.Sprintf(", %d MHz asked for", f.MHzAsked)
		}
	}
	rows := [][2]string{{"Job", name}, {"Status", f.Status}}
	switch {
	case f.heldGPUs():
		rows = append(rows, [2]string{"GPU Hours Asked", hours}, [2]string{"GPU Hours Busy", busy}, [2]string{"GPU Memory Peak", peak}, [2]string{"Idle GPUs", idle})
	case f.GPUsAsked > 0 && len(f.asked) > 0:
		rows = append(rows, [2]string{"GPUs", fmt.Sprintf("%d asked for%s: %s", f.GPUsAsked, f.inPart(), strings.Join(f.asked, ", "))})
	case f.GPUsAsked > 0:
		rows = append(rows, [2]string{"GPUs", fmt.Sprintf("%d asked for", f.GPUsAsked)})
	case f.askedMiB > 0:
		rows = append(rows, [2]string{"GPUs", mib(f.askedMiB) + " of GPU memory asked for"})
	default:
		rows = append(rows, [2]string{"GPUs", "none asked for"})
	}
	o.kv(append(rows, [2]string{"Memory", memory}, [2]string{"Processor", cores}))
	if f.AllocationsLeftOut > 0 {
		o.printf("GPUs are shown of the allocations that are kept, at most %d; there were %d more.\n", effAllocs, f.AllocationsLeftOut)
	}
	if len(f.GPUs) > 0 {
		o.println()
		table := [][]string{}
		for i := range f.GPUs {
			g := &f.GPUs[i]
			b, p := unknown, unknown
			if hours, known := g.hours(); g.BusySeconds != nil && known && hours > 0 {
				b = percent(*g.BusySeconds / 3600 / hours)
			}
			if g.Idle {
				b = "idle"
			}
			if g.PeakMiB != nil {
				p = mib(*g.PeakMiB)
			}
			of := unknown
			if g.AskedMiB > 0 {
				of = mib(g.AskedMiB)
			}
			table = append(table, []string{g.GPU, g.Model, g.NodeName, shortID(g.AllocID, false), span(time.Duration(g.HeldSeconds * float64(time.Second))), b, p, of})
		}
		o.table("GPU|MODEL|NODE|ALLOCATION|HELD|BUSY|PEAK|ASKED", table)
	}
	o.println()
	for _, l := range f.Advice {
		o.println("Advice: " + l)
	}
}
