package nomadlike

import (
	"math"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// devicesOf sorts measurements into groups, in their order. Unknown values are left out.
func devicesOf(list []methods.DeviceStats) []*wire.DeviceGroupStats {
	out := []*wire.DeviceGroupStats{}
	at := map[string]*wire.DeviceGroupStats{}
	for _, d := range list {
		g := at[d.Group]
		if g == nil {
			p := append(strings.SplitN(d.Group, "/", 3), "", "")
			g = &wire.DeviceGroupStats{Vendor: p[0], Type: p[1], Name: p[2], InstanceStats: map[string]*wire.DeviceStats{}}
			at[d.Group] = g
			out = append(out, g)
		}
		g.InstanceStats[d.ID] = deviceOf(d)
	}
	return out
}

// mibBytes is one MiB.
const mibBytes = 1 << 20

func deviceOf(d methods.DeviceStats) *wire.DeviceStats {
	s := &wire.DeviceStats{Stats: &wire.StatObject{Attributes: map[string]*wire.StatValue{}}, Timestamp: time.Unix(0, int64(d.Time)).UTC()}
	part := func(n, of int64, unit, desc string) *wire.StatValue {
		v := &wire.StatValue{IntNumeratorVal: &n, Unit: unit, Desc: desc}
		if of >= 0 {
			v.IntDenominatorVal = &of
		}
		return v
	}
	add := func(name string, n int64, unit string) {
		if n >= 0 {
			s.Stats.Attributes[name] = part(n, -1, unit, name)
		}
	}
	memory := part(d.UsedBytes/mibBytes, d.TotalBytes/mibBytes, "MiB", "UsedMemory / TotalMemory")
	s.Summary, s.Stats.Attributes["Memory state"] = memory, memory
	add("GPU utilization", d.Utilization, "%")
	add("Memory utilization", d.MemoryUtil, "%")
	add("Temperature", d.TemperatureC, "C")
	if d.PowerMW >= 0 {
		add("Power usage", d.PowerMW/1000, "W")
	}
	add("Energy", d.EnergyMJ, "mJ")
	add("ECC errors, uncorrected", d.ECCUncorrected, "#")
	add("ECC errors, corrected", d.ECCFixed, "#")
	for _, f := range d.More {
		add(f.Name, f.Value, f.Unit)
	}
	for _, u := range d.Use {
		of := u.QuotaBytes / mibBytes
		if of == 0 {
			of = d.TotalBytes / mibBytes
		}
		if u.UsedBytes >= 0 {
			s.Stats.Attributes["Task memory"] = part(u.UsedBytes/mibBytes, of, "MiB", "UsedMemory / Share")
		}
		add("Task memory, peak", u.PeakBytes/mibBytes, "MiB")
		add("Task memory over time", u.MiBSeconds, "MiB*s")
		add("Task SM time", u.SMMillis, "ms")
		add("Task energy", u.EnergyMJ, "mJ")
		add("Task allocations refused", u.Denied, "#")
		if u.KnownMillis > 0 {
			mean := math.Round(1000*float64(u.ActiveMillis)/float64(u.KnownMillis)) / 10
			s.Stats.Attributes["Task SM activity"] = &wire.StatValue{FloatNumeratorVal: &mean, Unit: "%", Desc: "Task SM activity"}
		}
	}
	return s
}
