// Package top is the full-screen program of muster top. A Model holds what the API answered and what the user chose; its
// View follows from these alone. Requests, commands and the clock are outside, behind Options.
package top

import (
	"context"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/muster-sched/muster/nomadlike"
)

const (
	lookTimeout = 20 * time.Second // of one request
	retryMax    = 30 * time.Second // longest time between two attempts
	dutyFactor  = 4                // the time between looks is at least this many times as long as a look takes
	historyMax  = 240              // samples kept of each GPU, node and job
)

// Options connect a Model to the outside.
type Options struct {
	Look  func(ctx context.Context, nodes []string) (*nomadlike.Top, error)     // one request; nodes says which ones to measure, nil for the API's choice
	Run   func(ctx context.Context, args []string) (output string, failed bool) // runs a muster command
	Every time.Duration                                                         // between two looks
	Scope string                                                                // namespace to show, "*" for all
	ASCII bool                                                                  // draw with ASCII characters
	Zone  *time.Location
}

// Model is the state of the program.
type Model struct {
	opt           Options
	ctx           context.Context
	width, height int
	tab           int
	views         [tabs]view
	filter        string
	typing        bool // keys go to the filter
	help          bool
	pane          *pane

	data   *nomadlike.Top // the last good answer, or nil
	rows   [tabs][]*row
	asked  map[string]bool // nodes that the last look asked for; nil: the API chose
	turn   int             // position of the rotation over nodes that are not on the screen
	past   map[string]*history
	known  measured
	totals totals

	err   error // of the last look; nil: it succeeded
	fails int   // looks that failed since the last good one
	pause time.Duration
	seq   int // of the last look or tick; older messages are dropped
	paneN int // the same for panes
}

// view is what the user chose on one tab.
type view struct {
	shown    []*row // sorted and filtered
	widths   []int  // of the content of each column
	key      string // of the selected row
	at, from int    // its position, and the first row on the screen
	sort     int    // column
	down     bool
}

// pane is the output of a command in place of the table.
type pane struct {
	args   []string
	lines  []string
	fold   []string // lines, folded to the width of the screen
	from   int
	follow bool // stay at the end
	busy   bool
	failed bool
}

type (
	lookMsg struct {
		seq  int
		top  *nomadlike.Top
		took time.Duration
		err  error
	}
	tickMsg struct{ seq int }
	paneMsg struct {
		n      int
		text   string
		failed bool
	}
	paneTickMsg struct{ n int }
)

// New returns a Model before its first look. ctx ends its requests.
func New(ctx context.Context, opt Options) *Model {
	m := &Model{opt: opt, ctx: ctx, width: 80, height: 24, past: map[string]*history{}, known: newMeasured()}
	if m.opt.Zone == nil {
		m.opt.Zone = time.Local
	}
	for i := range m.views {
		m.views[i].sort, m.views[i].down = tables[i].sort, tables[i].down
		m.arrange(i)
	}
	return m
}

// Init starts the first look.
func (m *Model) Init() tea.Cmd { return m.look() }

// look asks for the state of the cluster.
func (m *Model) look() tea.Cmd {
	m.seq++
	seq, nodes, ctx, opt := m.seq, m.nodesToAsk(), m.ctx, m.opt
	m.asked = nil
	if nodes != nil {
		m.asked = map[string]bool{}
		for _, id := range nodes {
			m.asked[id] = true
		}
	}
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		began := time.Now()
		t, err := opt.Look(ctx, nodes)
		return lookMsg{seq: seq, top: t, err: err, took: time.Since(began)}
	}
}

// nodesToAsk returns nil while all nodes fit into one answer. Else it returns the ones on the screen and, in turn, others,
// so that every node is measured now and then.
func (m *Model) nodesToAsk() []string {
	if m.data == nil || len(m.data.Nodes) <= nomadlike.TopNodesMax {
		return nil
	}
	seen := map[string]bool{}
	var out []string
	add := func(id string) {
		if id != "" && !seen[id] && len(out) < nomadlike.TopNodesMax {
			seen[id] = true
			out = append(out, id)
		}
	}
	v := &m.views[m.tab]
	for _, r := range v.shown[min(v.from, len(v.shown)):min(v.from+m.bodyHeight(), len(v.shown))] {
		if r.node != nil {
			add(r.node.ID)
		}
		for _, a := range r.allocs {
			add(a.NodeID)
		}
	}
	for range m.data.Nodes {
		if len(out) == nomadlike.TopNodesMax {
			break
		}
		m.turn = (m.turn + 1) % len(m.data.Nodes)
		if n := &m.data.Nodes[m.turn]; n.Status == "ready" {
			add(n.ID)
		}
	}
	return out
}

// Update handles one message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(msg.Width, 1), max(msg.Height, 1)
		m.scroll()
		if m.pane != nil {
			m.pane.wrap(m.width)
			m.scrollPane(0)
		}
	case lookMsg:
		if msg.seq == m.seq {
			return m, m.looked(msg)
		}
	case tickMsg:
		if msg.seq == m.seq {
			return m, m.look()
		}
	case paneMsg:
		if m.pane != nil && msg.n == m.paneN {
			m.pane.fill(msg)
			m.pane.wrap(m.width)
			m.scrollPane(0)
			n := m.paneN
			return m, tea.Tick(max(m.opt.Every, time.Second), func(time.Time) tea.Msg { return paneTickMsg{n} })
		}
	case paneTickMsg:
		if m.pane != nil && msg.n == m.paneN {
			return m, m.runPane()
		}
	case tea.PasteMsg:
		if m.typing {
			m.setFilter(m.filter + msg.Content)
		}
	case tea.KeyPressMsg:
		return m, m.pressed(msg)
	}
	return m, nil
}

// looked takes an answer and plans the next look.
func (m *Model) looked(msg lookMsg) tea.Cmd {
	m.err = msg.err
	if msg.err != nil {
		m.fails++
		m.pause = min(m.opt.Every<<min(m.fails, 10), retryMax)
	} else {
		first := m.data == nil
		m.fails, m.pause = 0, max(m.opt.Every, dutyFactor*msg.took)
		m.take(msg.top)
		if first && len(m.rows[tabGPUs]) == 0 {
			m.tab = tabJobs
		}
	}
	m.seq++
	seq := m.seq
	return tea.Tick(m.pause, func(time.Time) tea.Msg { return tickMsg{seq} })
}

// pressed handles a key.
func (m *Model) pressed(k tea.KeyPressMsg) tea.Cmd {
	key := k.String()
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case key == "ctrl+z":
		return tea.Suspend
	case m.typing:
		m.typed(k)
		return nil
	case m.help:
		m.help = false
		if key == "q" {
			return tea.Quit
		}
		return nil
	case m.pane != nil:
		return m.pressedInPane(key)
	}
	v := &m.views[m.tab]
	switch key {
	case "q":
		return tea.Quit
	case "?", "h", "f1":
		m.help = true
	case "/":
		m.typing = true
	case "esc":
		m.setFilter("")
	case "tab", "right":
		m.setTab((m.tab + 1) % tabs)
	case "shift+tab", "left":
		m.setTab((m.tab + tabs - 1) % tabs)
	case "1", "2", "3", "4":
		m.setTab(int(key[0] - '1'))
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b", "ctrl+u":
		m.move(-m.bodyHeight())
	case "pgdown", "ctrl+f", "ctrl+d", "space":
		m.move(m.bodyHeight())
	case "home", "g":
		m.move(-len(v.shown))
	case "end", "G":
		m.move(len(v.shown))
	case "s", "S":
		n := len(tables[m.tab].columns)
		step := map[string]int{"s": 1, "S": n - 1}[key]
		for v.sort = (v.sort + step) % n; tables[m.tab].columns[v.sort].less == nil; v.sort = (v.sort + step) % n {
		}
		v.down = tables[m.tab].columns[v.sort].down
		v.at = 0
		m.arrange(m.tab)
	case "r":
		v.down = !v.down
		v.at = 0
		m.arrange(m.tab)
	case "enter", "w", "l", "n":
		if r := v.selected(); r != nil {
			if args := r.command(m.tab, key); args != nil {
				m.pane = &pane{args: args, follow: key == "l"}
				return m.runPane()
			}
		}
	}
	return nil
}

func (m *Model) typed(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter", "tab", "up", "down":
		m.typing = false
	case "esc":
		m.typing = false
		m.setFilter("")
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.setFilter(string(r[:len(r)-1]))
		}
	case "ctrl+u":
		m.setFilter("")
	default:
		m.setFilter(m.filter + k.Text)
	}
}

func (m *Model) setFilter(s string) {
	m.filter = clean(s)
	for i := range m.views {
		m.views[i].at = 0
		m.arrange(i)
	}
}

func (m *Model) setTab(i int) {
	m.tab = i
	m.scroll()
}

func (m *Model) pressedInPane(key string) tea.Cmd {
	page := m.paneHeight()
	switch key {
	case "q", "esc", "enter", "left", "backspace":
		m.pane = nil
		m.paneN++
		return nil
	case "up", "k":
		m.scrollPane(-1)
	case "down", "j":
		m.scrollPane(1)
	case "pgup", "ctrl+b", "ctrl+u":
		m.scrollPane(-page)
	case "pgdown", "ctrl+f", "ctrl+d", "space":
		m.scrollPane(page)
	case "home", "g":
		m.scrollPane(-len(m.pane.fold))
	case "end", "G":
		m.pane.follow = true
		m.scrollPane(0)
	case "?", "h", "f1":
		m.help = true
	}
	return nil
}

// scrollPane moves the text of the pane by n lines. At the end it follows what is written, if it did so before.
func (m *Model) scrollPane(n int) {
	p := m.pane
	last := max(0, len(p.fold)-m.paneHeight())
	p.from = min(max(p.from+n, 0), last)
	switch {
	case n < 0:
		p.follow = false
	case p.follow:
		p.from = last
	}
}

// runPane runs the command of the pane.
func (m *Model) runPane() tea.Cmd {
	m.paneN++
	m.pane.busy = true
	n, ctx, args, run := m.paneN, m.ctx, m.pane.args, m.opt.Run
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		text, failed := run(ctx, args)
		return paneMsg{n: n, text: text, failed: failed}
	}
}

// paneBytes limits the text of a pane; the end is kept.
const paneBytes = 1 << 20

func (p *pane) fill(msg paneMsg) {
	text := msg.text
	if len(text) > paneBytes {
		text = text[len(text)-paneBytes:]
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := range lines {
		lines[i] = clean(lines[i])
	}
	if len(lines) == 1 && lines[0] == "" {
		lines = nil
	}
	p.lines, p.failed, p.busy = lines, msg.failed, false
}

// move moves the selection.
func (m *Model) move(n int) {
	v := &m.views[m.tab]
	v.at = min(max(v.at+n, 0), max(len(v.shown)-1, 0))
	v.key = ""
	if v.at < len(v.shown) {
		v.key = v.shown[v.at].key
	}
	m.scroll()
}

// scroll keeps the selection on the screen.
func (m *Model) scroll() {
	v, h := &m.views[m.tab], m.bodyHeight()
	v.from = min(max(v.from, v.at-h+1), v.at)
	v.from = max(min(v.from, len(v.shown)-h), 0)
}

func (v *view) selected() *row {
	if v.at >= len(v.shown) {
		return nil
	}
	return v.shown[v.at]
}

// arrange filters and sorts the rows of a tab. The selected row stays selected wherever it goes, except at the top: there
// the first row is selected, also when another one comes first.
func (m *Model) arrange(tab int) {
	v, t := &m.views[tab], &tables[tab]
	words := strings.Fields(strings.ToLower(m.filter))
	v.shown = v.shown[:0:0]
	for _, r := range m.rows[tab] {
		if r.matches(words) {
			v.shown = append(v.shown, r)
		}
	}
	if less := t.columns[v.sort].less; less != nil {
		slices.SortStableFunc(v.shown, func(a, b *row) int {
			if v.down {
				return less(b, a)
			}
			return less(a, b)
		})
	}
	v.measure(m, t)
	if i := slices.IndexFunc(v.shown, func(r *row) bool { return r.key == v.key }); i >= 0 && v.at > 0 {
		v.at = i
	}
	v.at = min(v.at, max(len(v.shown)-1, 0))
	if v.key = ""; v.at < len(v.shown) {
		v.key = v.shown[v.at].key
	}
	if tab == m.tab {
		m.scroll()
	}
}
