package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

const (
	gap    = 2 // cells between columns
	margin = 2 // cells at the left of the table, for the mark of the selection
)

// Lines around the table.
const (
	headLines = 5 // title, totals, an empty line, tabs, heads of columns
	footLines = 2 // an empty line, keys or a message
)

// View draws the screen. Its cost follows from the size of the screen, not of the cluster.
func (m *Model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen = true
	v.WindowTitle = "muster top"
	return v
}

// screen returns at most height lines of at most width cells.
func (m *Model) screen() string {
	var lines []string
	switch {
	case m.help:
		lines = m.helpLines()
	case m.pane != nil:
		lines = m.paneScreen()
	default:
		lines = m.tableScreen()
	}
	lines = lines[:min(len(lines), m.height)]
	for i, l := range lines {
		if ansi.StringWidth(l) > m.width {
			lines[i] = ansi.Truncate(l, m.width, "")
		}
	}
	return strings.Join(lines, "\n")
}

// bodyHeight is the number of rows that the table shows.
func (m *Model) bodyHeight() int { return max(m.height-headLines-footLines, 1) }

func (m *Model) tableScreen() []string {
	v := &m.views[m.tab]
	lines := []string{m.title(), m.summary(), "", m.tabLine()}
	w := m.layout()
	var heads []string
	for i, c := range tables[m.tab].columns {
		if w[i] > 0 {
			style := dim
			if i == v.sort && c.less != nil {
				style = bold
			}
			heads = append(heads, paint(style, fit(m.headOf(i), w[i], c.right)))
		}
	}
	lines = append(lines, strings.Repeat(" ", margin)+strings.Join(heads, strings.Repeat(" ", gap)))
	body := m.bodyHeight()
	if len(v.shown) == 0 {
		for _, l := range m.empty() {
			lines = append(lines, strings.Repeat(" ", margin)+l)
		}
	}
	for i := v.from; i < min(v.from+body, len(v.shown)); i++ {
		lines = append(lines, m.line(v.shown[i], w, i == v.at))
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(min(len(lines), m.height-1), 0)], m.footer())
	return lines
}

// headOf returns a column's head, with the mark of the order.
func (m *Model) headOf(i int) string {
	c, v := &tables[m.tab].columns[i], &m.views[m.tab]
	if i != v.sort || c.less == nil {
		return c.head
	}
	if v.down {
		return c.head + m.glyphs().down
	}
	return c.head + m.glyphs().up
}

func (m *Model) line(r *row, w []int, selected bool) string {
	var cells []string
	for i := range tables[m.tab].columns {
		c := &tables[m.tab].columns[i]
		switch {
		case w[i] == 0:
		case c.draw != nil:
			cells = append(cells, c.draw(m, r, w[i]))
		default:
			text, style := c.text(m, r)
			cells = append(cells, paint(style, fit(clean(text), w[i], c.right)))
		}
	}
	line := strings.Join(cells, strings.Repeat(" ", gap))
	if !selected {
		return strings.Repeat(" ", margin) + line
	}
	line = "> " + ansi.Strip(line)
	return paint(reverse, fit(line, m.width, false))
}

// sides puts text at both ends of a line; the right one gives way.
func (m *Model) sides(left, right string) string {
	room := m.width - ansi.StringWidth(left) - ansi.StringWidth(right)
	if room < 1 {
		return left
	}
	return left + strings.Repeat(" ", room) + right
}

func (m *Model) title() string {
	scope := "all namespaces"
	if m.opt.Scope != "*" {
		scope = "namespace " + clean(m.opt.Scope)
	}
	right := "connecting"
	if m.data != nil {
		right = time.Unix(0, m.data.Time).In(m.opt.Zone).Format(time.TimeOnly)
		if m.err != nil {
			right = "last answer " + right
		}
	}
	return m.sides(paint(bold, "muster top")+paint(dim, "  "+scope), paint(dim, right))
}

// summary draws the totals; the last parts give way to a narrow terminal.
func (m *Model) summary() string {
	if m.data == nil {
		return ""
	}
	t, g := &m.totals, m.glyphs()
	var parts []string
	if t.gpus > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s GPUs held %s", paint(bold, fmt.Sprint(t.held)), fmt.Sprint(t.gpus), g.bar(float64(t.held)/float64(t.gpus), 10, cyan)))
		if t.util >= 0 {
			parts = append(parts, fmt.Sprintf("use %s %s", paint(bold, fit(percent(t.util), 4, true)), g.spark(&t.utilPast, 12, green)))
		}
		if t.memSize > 0 {
			parts = append(parts, fmt.Sprintf("memory %s %s", paint(bold, fit(percent(share(t.memUsed, t.memSize)), 4, true)), g.spark(&t.memPast, 12, blue)))
		}
	}
	if t.unhealthy > 0 {
		parts = append(parts, paint(red, fmt.Sprintf("%d unhealthy", t.unhealthy)))
	}
	if t.nodes > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d nodes ready", t.ready, t.nodes))
	}
	line := ""
	for _, p := range parts {
		next := line + p
		if ansi.StringWidth(next) > m.width {
			break
		}
		line = next + "   "
	}
	return strings.TrimRight(line, " ")
}

func (m *Model) tabLine() string {
	var parts []string
	for i, t := range tables {
		text := fmt.Sprintf(" %d %s ", i+1, t.name)
		if n := len(m.rows[i]); m.width >= 50 && m.data != nil {
			text += fmt.Sprintf("%d ", n)
		}
		if i == m.tab {
			text = paint("1;7", text)
		} else {
			text = paint(dim, text)
		}
		parts = append(parts, text)
	}
	left, right := strings.Join(parts, " "), ""
	v := &m.views[m.tab]
	if m.filter != "" && !m.typing {
		right = paint(yellow, "/"+m.filter) + fmt.Sprintf(" %d of %d", len(v.shown), len(m.rows[m.tab]))
	} else if len(v.shown) > m.bodyHeight() {
		right = paint(dim, fmt.Sprintf("%d-%d of %d", v.from+1, min(v.from+m.bodyHeight(), len(v.shown)), len(v.shown)))
	}
	return m.sides(left, right)
}

// empty says why a table has no rows, and what to do.
func (m *Model) empty() []string {
	switch {
	case m.data == nil:
		return nil
	case m.filter != "" && len(m.rows[m.tab]) > 0:
		return []string{fmt.Sprintf("Nothing here matches %q.", m.filter), paint(dim, "esc shows everything again")}
	case m.data.Nodes == nil && m.tab == tabNodes:
		return []string{"The token in use may not read nodes."}
	case m.data.Queue == nil && m.tab == tabQueue:
		return []string{"The token in use may not list what waits."}
	}
	return [tabs][]string{
		tabGPUs:  {"No GPUs.", paint(dim, "Made-up ones to try things:  muster agent -dev -dev-gpus=8xH100")},
		tabJobs:  {"Nothing runs.", paint(dim, "An example:  muster job init; muster job run example.muster.hcl")},
		tabNodes: {"No nodes.", paint(dim, "A node joins with:  muster agent -client -servers HOST:4647")},
		tabQueue: {"Nothing waits."},
	}[m.tab]
}

type hint struct{ key, what string }

// hints draws the keys that fit.
func (m *Model) hints(list []hint) string {
	line := ""
	for i, h := range list {
		next := line
		if i > 0 {
			next += "  "
		}
		next += paint(bold, h.key) + paint(dim, " "+h.what)
		if ansi.StringWidth(next) > m.width {
			break
		}
		line = next
	}
	return line
}

func (m *Model) footer() string {
	switch {
	case m.typing:
		return paint(bold, "/") + m.filter + paint(reverse, " ") + paint(dim, "  enter keeps it, esc removes it")
	case m.err != nil:
		text := clean(m.err.Error())
		again := fmt.Sprintf("; next attempt in %s", span(m.pause.Round(time.Second)))
		return paint(red, fit(text, min(ansi.StringWidth(text), max(m.width-len(again), 10)), false)+again)
	}
	list := []hint{{"q", "quit"}, {"?", "help"}, {"/", "filter"}, {"s", "sort"}, {"enter", "details"}, {"l", "logs"}, {"w", "why"}, {"tab", "next tab"}}
	if m.tab == tabQueue {
		list = slices.DeleteFunc(list, func(h hint) bool { return h.key == "l" })
	}
	if m.tab == tabNodes {
		list = slices.DeleteFunc(list, func(h hint) bool { return h.key == "l" || h.key == "w" })
	}
	return m.hints(list)
}

// Panes.

func (m *Model) paneHeight() int { return max(m.height-4, 1) }

// wrap folds the lines of the pane to a width.
func (p *pane) wrap(width int) {
	p.fold = nil
	for _, l := range p.lines {
		if ansi.StringWidth(l) <= width {
			p.fold = append(p.fold, l)
			continue
		}
		p.fold = append(p.fold, strings.Split(ansi.Hardwrap(l, width, true), "\n")...)
	}
}

func (m *Model) paneScreen() []string {
	p := m.pane
	all, h := p.fold, m.paneHeight()
	where := ""
	if len(all) > h {
		where = fmt.Sprintf("%d-%d of %d", p.from+1, p.from+h, len(all))
	}
	lines := []string{m.sides(paint(bold, "$ muster "+clean(strings.Join(p.args, " "))), paint(dim, where)), ""}
	switch {
	case len(all) == 0 && p.busy:
		lines = append(lines, paint(dim, "..."))
	case len(all) == 0:
		lines = append(lines, paint(dim, "(nothing)"))
	}
	for _, l := range all[p.from:min(p.from+h, len(all))] {
		if p.failed {
			l = paint(red, l)
		}
		lines = append(lines, l)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return append(lines[:max(m.height-1, 0)], m.hints([]hint{{"esc", "back"}, {"up down", "scroll"}, {"G", "follow the end"}, {"g", "beginning"}}))
}

var helpText = []struct{ key, what string }{
	{"1 2 3 4", "GPUs, jobs, nodes, queue; tab and arrows go on"},
	{"up down", "move; also j k, page up, page down, home, end"},
	{"enter", "details of the selected line"},
	{"l", "logs of the selected job; on the GPUs, of what holds it"},
	{"w", "why the job waits, or why it runs where it runs"},
	{"n", "the node of the selected line"},
	{"s S", "sort by the next or the previous column; r reverses"},
	{"/", "filter by words: job, user, namespace, node, model, status"},
	{"esc", "leave details, remove the filter"},
	{"q", "quit; the jobs go on"},
	{"", ""},
	{"GPU USE", "time in which the GPU worked; yellow: held and idle"},
	{"HISTORY", "the same since the program started"},
	{"others", "in place of a job: held in a namespace that is not shown"},
}

func (m *Model) helpLines() []string {
	lines := []string{paint(bold, "muster top") + paint(dim, "  keys"), ""}
	for _, h := range helpText {
		lines = append(lines, "  "+paint(bold, fit(h.key, 9, false))+" "+h.what)
	}
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	return append(lines[:max(m.height-1, 0)], paint(dim, "any key goes back"))
}
