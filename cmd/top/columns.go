package top

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/muster-sched/muster/nomadlike"
)

// The tabs.
const (
	tabGPUs = iota
	tabJobs
	tabNodes
	tabQueue
	tabs
)

// column is one column of a table. A column with text is as wide as its content, between min and max; one with a drawing
// takes what is left over, up to max.
type column struct {
	head     string
	min, max int
	drop     int // columns with the highest number go first where there is not enough room; 0: it stays
	right    bool
	text     func(m *Model, r *row) (text, style string)
	draw     func(m *Model, r *row, w int) string // instead of text; the result is w cells wide
	less     func(a, b *row) int                  // nil: not a column to sort by
	down     bool                                 // the largest comes first at first
}

type table struct {
	name    string
	columns []column
	sort    int
	down    bool
}

const unknown = -1

func by[T cmp.Ordered](f func(*row) T) func(a, b *row) int {
	return func(a, b *row) int { return cmp.Compare(f(a), f(b)) }
}

func byName(f func(*row) string) func(a, b *row) int {
	return func(a, b *row) int { return natural(f(a), f(b)) }
}

func plain(f func(*row) string) func(*Model, *row) (string, string) {
	return func(_ *Model, r *row) (string, string) { return f(r), "" }
}

func stateStyle(word string) string {
	switch word {
	case "running", "ready":
		return green
	case "starting", "pending", "draining", "ineligible", "suspending", "suspended", "resuming", "initializing", "on hold", "unknown":
		return yellow
	case "down", "disconnected", "unhealthy":
		return red
	}
	return ""
}

func (r *row) nodeName() string {
	if r.node != nil {
		return r.node.Name
	}
	return ""
}

// The columns that several tables have.
var (
	nodeColumn = column{head: "NODE", min: 6, max: 24, text: plain((*row).nodeName), less: func(a, b *row) int {
		return cmp.Or(natural(a.nodeName(), b.nodeName()), a.index-b.index)
	}}
	jobColumn  = column{head: "JOB", min: 8, max: 40, text: plain((*row).jobName), less: byName((*row).jobName)}
	nsColumn   = column{head: "NAMESPACE", min: 9, max: 16, drop: 6, text: plain((*row).namespace), less: byName((*row).namespace)}
	userColumn = column{head: "USER", min: 5, max: 14, drop: 4, text: plain(func(r *row) string { return r.user }), less: byName(func(r *row) string { return r.user })}
	status     = column{head: "STATUS", min: 9, max: 14, text: func(_ *Model, r *row) (string, string) { return r.status, stateStyle(r.status) }, less: byName(func(r *row) string { return r.status })}
	utilColumn = column{head: "GPU USE", min: 10, max: 26, down: true, less: by(func(r *row) float64 { return r.util }), draw: func(m *Model, r *row, w int) string {
		return m.gauge(r.util, w, percent(r.util), 4, useStyle(r))
	}}
	pastColumn = column{head: "HISTORY", min: 10, max: 60, drop: 8, draw: func(m *Model, r *row, w int) string { return m.glyphs().spark(r.past, w, useStyle(r)) }}
	memColumn  = column{head: "GPU MEMORY", min: 14, max: 26, drop: 2, down: true, less: by(func(r *row) int64 { return r.memUsed }), draw: func(m *Model, r *row, w int) string {
		text := ""
		if r.memSize > 0 && r.util != unknown {
			text = gib(r.memUsed) + "/" + gib(r.memSize) + "G"
		}
		use := share(r.memUsed, r.memSize)
		if text == "" {
			use = unknown
		}
		return m.gauge(use, w, text, 8, blue)
	}}
)

// useStyle is the colour of GPU use: held GPUs that do nothing are what a user looks for.
func useStyle(r *row) string {
	switch {
	case r.held == 0:
		return dim
	case r.util >= 0 && r.util < 0.1:
		return yellow
	}
	return green
}

// gauge is a bar with a text of textWidth cells at its right.
func (m *Model) gauge(share float64, w int, text string, textWidth int, style string) string {
	if text == "" {
		text = m.glyphs().none
	}
	n := w - textWidth - 1
	if n < 3 {
		return fit(text, w, true)
	}
	return m.glyphs().bar(share, n, style) + " " + fit(text, textWidth, true)
}

func percent(share float64) string {
	if share < 0 {
		return ""
	}
	return fmt.Sprintf("%.0f%%", share*100)
}

// gib formats MiB as GiB without the unit.
func gib(mib int64) string {
	if mib < 10<<10 && mib%1024 != 0 {
		return strconv.FormatFloat(float64(mib)/1024, 'f', 1, 64)
	}
	return strconv.FormatInt((mib+512)/1024, 10)
}

func number1(n *int64, unit string, warn, bad int64) (text, style string) {
	if n == nil {
		return "", ""
	}
	switch {
	case *n >= bad:
		style = red
	case *n >= warn:
		style = yellow
	}
	return strconv.FormatInt(*n, 10) + unit, style
}

// shortModel leaves out the maker, and the memory that another column shows: "H100 MIG 1g.10gb" of "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
func shortModel(model string) string {
	model = strings.TrimPrefix(model, "NVIDIA ")
	short, _, _ := strings.Cut(model, " ")
	if _, profile, ok := strings.Cut(model, " MIG "); ok {
		short += " MIG " + profile
	}
	return short
}

func gpuUse(r *row) nomadlike.TopGPUUse {
	if r.gpu != nil && r.gpu.Use != nil {
		return *r.gpu.Use
	}
	return nomadlike.TopGPUUse{}
}

func orNone(n *int64) int64 {
	if n == nil {
		return unknown
	}
	return *n
}

const (
	warmC = 80 // degrees at which a temperature is shown in yellow
	hotC  = 90 // and in red
)

var tables = [tabs]table{
	tabGPUs: {name: "GPUs", columns: []column{
		nodeColumn,
		{head: "GPU", min: 3, max: 3, right: true, text: plain(func(r *row) string { return strconv.Itoa(r.index) })},
		{head: "MODEL", min: 4, max: 22, drop: 5, text: plain(func(r *row) string { return shortModel(r.gpu.Model) }), less: byName(func(r *row) string { return r.gpu.Model })},
		utilColumn, pastColumn, memColumn,
		{head: "POWER", min: 5, max: 5, drop: 4, right: true, down: true, less: by(func(r *row) int64 { return orNone(gpuUse(r).PowerW) }),
			text: func(_ *Model, r *row) (string, string) { return number1(gpuUse(r).PowerW, "W", 1<<40, 1<<40) }},
		{head: "TEMP", min: 4, max: 4, drop: 3, right: true, down: true, less: by(func(r *row) int64 { return orNone(gpuUse(r).TemperatureC) }),
			text: func(_ *Model, r *row) (string, string) { return number1(gpuUse(r).TemperatureC, "C", warmC, hotC) }},
		{head: "JOB", min: 10, max: 40, less: byName((*row).jobName), text: func(_ *Model, r *row) (string, string) {
			switch {
			case len(r.allocs) > 0:
				return r.jobName(), ""
			case r.status == "unhealthy":
				return r.status, red
			}
			return r.status, dim
		}},
		{head: "USER", min: 5, max: 14, drop: 7, text: userColumn.text, less: userColumn.less},
	}},
	tabJobs: {name: "Jobs", sort: 4, down: true, columns: []column{
		jobColumn, nsColumn, userColumn, status,
		{head: "GPUS", min: 4, max: 5, right: true, down: true, less: by(func(r *row) int { return r.held }), text: func(m *Model, r *row) (string, string) {
			if r.held == 0 {
				return m.glyphs().none, dim
			}
			return strconv.Itoa(r.held), ""
		}},
		utilColumn, pastColumn,
		{head: "GPU MEM", min: 7, max: 8, drop: 3, right: true, down: true, less: by(func(r *row) int64 { return r.memUsed }), text: func(_ *Model, r *row) (string, string) {
			if r.memSize == 0 {
				return "", ""
			}
			return bytes(r.memUsed << 20), ""
		}},
		{head: "CPU", min: 6, max: 6, drop: 5, right: true, down: true, less: by(func(r *row) float64 { return r.cpu }), text: plain(func(r *row) string { return percent(r.cpu / 100) })},
		{head: "MEMORY", min: 6, max: 6, drop: 7, right: true, down: true, less: by(func(r *row) int64 { return r.ramUsed }), text: plain(func(r *row) string {
			if r.ramUsed < 0 {
				return ""
			}
			return bytes(r.ramUsed)
		})},
		{head: "TIME", min: 6, max: 6, right: true, down: true, less: by(func(r *row) int64 { return -r.since }), text: func(m *Model, r *row) (string, string) { return m.since(r.since), "" }},
	}},
	tabNodes: {name: "Nodes", columns: []column{
		nodeColumn,
		{head: "POOL", min: 5, max: 14, drop: 6, text: plain(func(r *row) string { return r.node.Pool }), less: byName(func(r *row) string { return r.node.Pool })},
		status,
		{head: "GPUS HELD", min: 9, max: 22, down: true, less: by(func(r *row) int { return r.held }), draw: func(m *Model, r *row, w int) string {
			if r.gpus == 0 {
				return m.gauge(unknown, w, "", 5, "")
			}
			return m.gauge(float64(r.held)/float64(r.gpus), w, fmt.Sprintf("%d/%d", r.held, r.gpus), 5, cyan)
		}},
		utilColumn, pastColumn,
		{head: "CPU", min: 9, max: 18, drop: 3, down: true, less: by(func(r *row) float64 { return r.cpu }), draw: func(m *Model, r *row, w int) string {
			return m.gauge(r.cpu/100, w, percent(r.cpu/100), 4, blue)
		}},
		{head: "MEMORY", min: 5, max: 18, drop: 4, down: true, less: by(func(r *row) int64 { return r.ramUsed }), draw: func(m *Model, r *row, w int) string {
			if r.ramUsed < 0 {
				return m.gauge(unknown, w, "", 5, "")
			}
			return m.gauge(share(r.ramUsed, r.ramSize), w, bytes(r.ramUsed), 5, blue)
		}},
		{head: "ALLOCS", min: 6, max: 6, drop: 5, right: true, down: true, less: by(func(r *row) int { return len(r.allocs) }), text: plain(func(r *row) string { return strconv.Itoa(len(r.allocs)) })},
	}},
	tabQueue: {name: "Queue", columns: []column{
		{head: "POS", min: 3, max: 6, right: true, less: by(func(r *row) int64 { return r.wait.Position }), text: plain(func(r *row) string { return strconv.FormatInt(r.wait.Position, 10) })},
		jobColumn, nsColumn, userColumn,
		{head: "QUEUE", min: 5, max: 20, drop: 7, text: plain(func(r *row) string { return r.wait.Queue }), less: byName(func(r *row) string { return r.wait.Queue })},
		{head: "PRIO", min: 4, max: 4, drop: 5, right: true, down: true, less: by(func(r *row) int { return r.wait.Priority }), text: plain(func(r *row) string { return strconv.Itoa(r.wait.Priority) })},
		{head: "GPUS", min: 7, max: 20, right: true, down: true, less: by(func(r *row) int64 { return r.wait.GPUs }), text: func(m *Model, r *row) (string, string) {
			switch {
			case r.wait.GPUs == 0:
				return m.glyphs().none, dim
			case r.wait.Model == "":
				return strconv.FormatInt(r.wait.GPUs, 10), ""
			}
			return fmt.Sprintf("%d %s", r.wait.GPUs, r.wait.Model), ""
		}},
		{head: "WAIT", min: 6, max: 6, right: true, down: true, less: by(func(r *row) int64 { return -r.wait.SubmitTime }), text: func(m *Model, r *row) (string, string) { return m.since(r.wait.SubmitTime), "" }},
		{head: "REASON", min: 10, max: 24, text: func(_ *Model, r *row) (string, string) { return r.status, stateStyle(r.status) }, less: byName(func(r *row) string { return r.status })},
		{head: "STARTS", min: 6, max: 24, drop: 3, less: by(func(r *row) int64 { return r.wait.StartEstimate }), text: func(m *Model, r *row) (string, string) {
			if r.wait.Starts != "" {
				return r.wait.Starts, ""
			}
			if r.wait.StartEstimate == 0 || m.data == nil {
				return m.glyphs().none, dim
			}
			if d := time.Duration(r.wait.StartEstimate - m.data.Time); d > 0 {
				return "in " + span(d), ""
			}
			return "now", ""
		}},
	}},
}

// since formats the time from t to the last answer.
func (m *Model) since(t int64) string {
	if t <= 0 || m.data == nil {
		return ""
	}
	return span(time.Duration(m.data.Time - t))
}

// measuredRows limits how many rows decide about the widths of columns.
const measuredRows = 500

// measure finds the widths of the content of a table.
func (v *view) measure(m *Model, t *table) {
	v.widths = make([]int, len(t.columns))
	for i := range t.columns {
		c := &t.columns[i]
		v.widths[i] = c.min
		if c.text == nil {
			continue
		}
		for k := 0; k < len(v.shown); k += max(1, len(v.shown)/measuredRows) {
			text, _ := c.text(m, v.shown[len(v.shown)-1-k]) // from the end: long numbers come last
			if v.widths[i] = max(v.widths[i], ansi.StringWidth(text)); v.widths[i] >= c.max {
				v.widths[i] = c.max
				break
			}
		}
	}
}

// layout returns the width of each column of the table, 0 for one without room.
func (m *Model) layout() []int {
	t, v := &tables[m.tab], &m.views[m.tab]
	w := make([]int, len(t.columns))
	used := -gap
	for i := range t.columns {
		c := &t.columns[i]
		if c.head == nsColumn.head && m.opt.Scope != "*" || c.head == pastColumn.head && !m.anyPast() {
			continue
		}
		w[i] = max(c.min, ansi.StringWidth(m.headOf(i)))
		used += w[i] + gap
	}
	room := m.width - margin
	for used > room {
		worst := -1
		for i := range t.columns {
			if w[i] > 0 && t.columns[i].drop > 0 && (worst < 0 || t.columns[i].drop >= t.columns[worst].drop) {
				worst = i
			}
		}
		if worst < 0 {
			break
		}
		used -= w[worst] + gap
		w[worst] = 0
	}
	for i := len(w) - 1; i > 0 && used > room; i-- { // a very narrow terminal
		if w[i] > 0 {
			used -= w[i] + gap
			w[i] = 0
		}
	}
	if used > room {
		w[0] = max(room, 1)
		return w
	}
	left := room - used
	for i := range w { // names first
		if w[i] > 0 && t.columns[i].text != nil {
			more := min(max(v.widths[i]-w[i], 0), left)
			w[i], left = w[i]+more, left-more
		}
	}
	for grown := m.anyPast() || m.tab == tabNodes; grown && left > 0; { // then drawings, evenly
		grown = false
		for i := range w {
			if w[i] > 0 && t.columns[i].draw != nil && w[i] < t.columns[i].max && left > 0 {
				w[i], left, grown = w[i]+1, left-1, true
			}
		}
	}
	return w
}

// anyPast reports whether there is a history to draw.
func (m *Model) anyPast() bool { return len(m.past) > 0 }
