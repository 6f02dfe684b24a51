package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// titles are the metrics' titles in tables, where the name does not suffice.
var titles = map[string]string{
	"avebsld": "Bounded slowdown, mean", "p50_bsld": "Bounded slowdown, p50", "p95_bsld": "Bounded slowdown, p95", "p99_bsld": "Bounded slowdown, p99",
	"mean_wait": "Wait, mean", "p50_wait": "Wait, p50", "p95_wait": "Wait, p95", "p99_wait": "Wait, p99", "max_wait": "Wait, longest",
	"avg_jct": "Completion, mean", "p50_jct": "Completion, p50", "p95_jct": "Completion, p95", "p99_jct": "Completion, p99",
	"jain": "Jain's index of users", "overhead": "Scheduling overhead", "wall_s": "Time of the simulation", "lost_work": "Work done again (unit time)", "resizes": "Gangs that grew or shrank", "resize_lost": "What that cost (GPU time)",
	"alloc_100": "Allocated at 100 %", "alloc_130": "Allocated at 130 %", "refused": "Parts refused",
}

// Title returns a metric's title in tables.
func Title(name string) string {
	if t, ok := titles[name]; ok {
		return t
	}
	t := strings.ReplaceAll(name, "_", " ")
	if t == "" {
		return t
	}
	return strings.ToUpper(t[:1]) + t[1:]
}

// Show formats a metric's value with its unit.
func Show(f Figure) string {
	switch f.Unit {
	case "%":
		if f.Value != 0 && f.Value < 0.01 {
			return "< 0.01 %"
		}
		return strconv.FormatFloat(f.Value, 'f', 2, 64) + " %"
	case "s":
		d := time.Duration(f.Value * float64(time.Second))
		switch {
		case f.Value >= 48*3600:
			return fmt.Sprintf("%.1f d", d.Hours()/24)
		case f.Value >= 120:
			return d.Round(time.Second).String()
		}
		return strconv.FormatFloat(f.Value, 'f', 2, 64) + " s"
	}
	if f.Value == float64(int64(f.Value)) {
		return strconv.FormatInt(int64(f.Value), 10)
	}
	return strconv.FormatFloat(f.Value, 'f', 3, 64)
}
