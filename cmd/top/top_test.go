package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/muster-sched/muster/nomadlike"
)

var update = flag.Bool("update", false, "write the golden screens anew")

// noon is the time of the answers in tests.
var noon = time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)

func ptr[T any](v T) *T { return &v }

// cluster is a small cluster: two nodes with GPUs, one without, four jobs, three in the queue.
func cluster(tick int) *nomadlike.Top {
	at := noon.Add(time.Duration(tick) * 2 * time.Second)
	wave := func(i int) int64 { return int64(55 + (tick*7+i*13)%43) }
	gpu := func(node string, i int, used, percent int64) nomadlike.TopGPU {
		return nomadlike.TopGPU{ID: fmt.Sprintf("GPU-%s-%d", node, i), Model: "NVIDIA H100 80GB HBM3", MemoryMiB: 81559,
			Use: &nomadlike.TopGPUUse{MemoryMiB: used, Percent: ptr(percent), PowerW: ptr(70 + percent*6), TemperatureC: ptr(30 + percent/2)}}
	}
	a := nomadlike.TopNode{ID: "aaaaaaaa-0000-4000-8000-000000000001", Name: "gpu-2", Pool: "h100", Status: "ready", Eligibility: "eligible", Use: &nomadlike.TopNodeUse{CPUPercent: 61, MemoryUsed: 700 << 30, MemorySize: 2 << 40}}
	b := nomadlike.TopNode{ID: "aaaaaaaa-0000-4000-8000-000000000002", Name: "gpu-10", Pool: "h100", Status: "ready", Eligibility: "eligible", Drain: true, Use: &nomadlike.TopNodeUse{CPUPercent: 3, MemoryUsed: 40 << 30, MemorySize: 2 << 40}}
	for i := range 8 {
		a.GPUs = append(a.GPUs, gpu("a", i, 70000+int64(i)*1000, wave(i)))
	}
	for i := range 4 {
		b.GPUs = append(b.GPUs, gpu("b", i, 0, 0))
	}
	b.GPUs[1].Use.MemoryMiB = 30000 // held and idle
	b.GPUs[2].Use, b.GPUs[2].Unhealthy = nil, "Xid 79"
	grants := func(n nomadlike.TopNode, from, to int) (out []nomadlike.TopGrant) {
		for _, g := range n.GPUs[from:to] {
			out = append(out, nomadlike.TopGrant{ID: g.ID, Model: g.Model})
		}
		return out
	}
	alloc := func(id, job, ns, user string, n nomadlike.TopNode, ago time.Duration, gpus []nomadlike.TopGrant) nomadlike.TopAlloc {
		out := nomadlike.TopAlloc{ID: id, Name: job + ".g[0]", JobID: job, Namespace: ns, User: user, NodeID: n.ID, NodeName: n.Name, Status: "running", Since: noon.Add(-ago).UnixNano(), GPUs: gpus,
			Tasks: []nomadlike.TopTask{{Name: "main", CPUPercent: 310, Memory: 20 << 30}}}
		for _, g := range gpus {
			out.Tasks[0].GPUs = append(out.Tasks[0].GPUs, nomadlike.TopTaskGPU{ID: g.ID, MemoryMiB: 70000, ShareMiB: 81559})
			for _, have := range n.GPUs {
				if have.ID == g.ID {
					out.Tasks[0].GPUs[len(out.Tasks[0].GPUs)-1].GPU = *have.Use
				}
			}
		}
		return out
	}
	c := nomadlike.TopNode{ID: "aaaaaaaa-0000-4000-8000-000000000003", Name: "cpu-1", Pool: "default", Status: "down", Eligibility: "eligible"}
	idle := alloc("bbbbbbbb-0000-4000-8000-000000000003", "notebook-für-日本語", "research", "carol", b, 26*time.Hour, grants(b, 1, 2))
	frozen := alloc("bbbbbbbb-0000-4000-8000-000000000004", "web", "default", "dave", c, 40*24*time.Hour, nil)
	frozen.Suspension = "suspended"
	return &nomadlike.Top{Time: at.UnixNano(), Nodes: []nomadlike.TopNode{b, c, a},
		Allocs: []nomadlike.TopAlloc{
			alloc("bbbbbbbb-0000-4000-8000-000000000001", "llama-sft", "ml", "alice", a, 3*time.Hour+7*time.Minute, grants(a, 0, 4)),
			alloc("bbbbbbbb-0000-4000-8000-000000000002", "vit-large", "ml", "bob", a, 14*time.Minute, grants(a, 4, 8)),
			idle, frozen,
		},
		Queue: []nomadlike.QueueItem{
			{Position: 1, JobID: "sweep-42", Namespace: "ml", User: "alice", Queue: "research.vision", Priority: 70, GPUs: 16, Model: "H100", Reason: "GANG", SubmitTime: noon.Add(-14 * time.Minute).UnixNano(), StartEstimate: noon.Add(40 * time.Minute).UnixNano()},
			{Position: 2, JobID: "eval", Namespace: "ml", User: "bob", Queue: "research", Priority: 50, GPUs: 1, Reason: "RESOURCES", SubmitTime: noon.Add(-3 * time.Hour).UnixNano()},
			{Position: 3, JobID: "prep", Namespace: "default", User: "carol", Queue: "default", Priority: 50, Held: true, Reason: "DEPENDENCY", Starts: "after sweep-42", SubmitTime: noon.Add(-30 * time.Second).UnixNano()},
		}}
}

// large is a cluster of n nodes with 8 GPUs each, all held.
func large(n int) *nomadlike.Top {
	t := &nomadlike.Top{Time: noon.UnixNano()}
	for i := range n {
		node := nomadlike.TopNode{ID: fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", i), Name: fmt.Sprintf("gpu-%d", i), Pool: "h100", Status: "ready", Eligibility: "eligible"}
		al := nomadlike.TopAlloc{ID: fmt.Sprintf("bbbbbbbb-0000-4000-8000-%012d", i), JobID: fmt.Sprintf("job-%d", i), Namespace: "ml", User: "alice", NodeID: node.ID, NodeName: node.Name, Status: "running", Since: noon.UnixNano()}
		for k := range 8 {
			id := fmt.Sprintf("GPU-%d-%d", i, k)
			node.GPUs = append(node.GPUs, nomadlike.TopGPU{ID: id, Model: "H100", MemoryMiB: 81559})
			al.GPUs = append(al.GPUs, nomadlike.TopGrant{ID: id, Model: "H100"})
		}
		t.Nodes, t.Allocs = append(t.Nodes, node), append(t.Allocs, al)
	}
	return t
}

// screenOf returns a Model of a width and height that has seen answers, and has had keys pressed.
func screenOf(t *testing.T, w, h int, keys string, answers ...*nomadlike.Top) *Model {
	t.Helper()
	m := New(t.Context(), Options{Every: 2 * time.Second, Scope: "*", Zone: time.UTC,
		Run: func(_ context.Context, args []string) (string, bool) {
			return "the output of " + strings.Join(args, " ") + "\n\x1b[31mred\x1b[m\ttab\x07\n" + strings.Repeat("long ", 40), false
		}})
	m.Init()
	m.Update(tea.WindowSizeMsg{Width: w, Height: h})
	for _, a := range answers {
		m.Update(lookMsg{seq: m.seq, top: a, took: 10 * time.Millisecond})
		m.look()
	}
	press(m, keys)
	return m
}

// press sends keys, separated by spaces, and the results of their commands.
func press(m *Model, keys string) {
	codes := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "tab": tea.KeyTab, "down": tea.KeyDown, "up": tea.KeyUp, "end": tea.KeyEnd, "pgdown": tea.KeyPgDown, "backspace": tea.KeyBackspace}
	for _, k := range strings.Fields(keys) {
		msg := tea.KeyPressMsg{Code: codes[k]}
		if msg.Code == 0 {
			r, _ := utf8.DecodeRuneInString(k)
			msg = tea.KeyPressMsg{Code: r, Text: k}
		}
		if _, cmd := m.Update(msg); cmd != nil {
			if out, ok := cmd().(paneMsg); ok {
				m.Update(out)
			}
		}
	}
}

func history10() (out []*nomadlike.Top) {
	for i := range 30 {
		out = append(out, cluster(i))
	}
	return out
}

// TestScreens compares whole screens, without colours, with the golden ones.
func TestScreens(t *testing.T) {
	for _, c := range []struct {
		name    string
		w, h    int
		keys    string
		answers []*nomadlike.Top
	}{
		{"gpus_80x24", 80, 24, "", history10()},
		{"gpus_200x24", 200, 24, "down down", history10()},
		{"gpus_40x14", 40, 14, "", history10()},
		{"gpus_by_use", 100, 20, "s s", history10()},
		{"gpus_filter", 80, 16, "/ a l i c e enter", history10()},
		{"gpus_filter_typing", 80, 16, "/ x y z", history10()},
		{"jobs_80x24", 80, 24, "2", history10()},
		{"jobs_200x12", 200, 12, "2", history10()},
		{"jobs_40x12", 40, 12, "2", history10()},
		{"nodes_80x12", 80, 12, "3", history10()},
		{"nodes_160x12", 160, 12, "3", history10()},
		{"queue_80x12", 80, 12, "4", history10()},
		{"queue_160x12", 160, 12, "4", history10()},
		{"help_80x24", 80, 24, "?", history10()},
		{"why", 80, 12, "4 w", history10()},
		{"logs_40", 40, 14, "2 l", history10()},
		{"empty_80x12", 80, 12, "", []*nomadlike.Top{{Time: noon.UnixNano(), Nodes: []nomadlike.TopNode{}, Queue: []nomadlike.QueueItem{}}}},
		{"empty_gpus", 80, 12, "1", []*nomadlike.Top{{Time: noon.UnixNano(), Nodes: []nomadlike.TopNode{}, Queue: []nomadlike.QueueItem{}}}},
		{"connecting", 80, 12, "", nil},
		{"large", 100, 16, "end", []*nomadlike.Top{large(1000)}},
		{"tiny_12x4", 12, 4, "", history10()},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := screenOf(t, c.w, c.h, c.keys, c.answers...)
			got := plainScreen(t, m)
			file := filepath.Join("testdata", c.name+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if string(want) != got {
				t.Errorf("the screen is\n%s\nwant\n%s\n(go test ./cmd/top -update writes it)", got, want)
			}
		})
	}
}

// plainScreen returns the screen without styles and without spaces at the ends of lines, after it checked its size.
func plainScreen(t *testing.T, m *Model) string {
	t.Helper()
	lines := strings.Split(m.View().Content, "\n")
	if len(lines) > m.height {
		t.Errorf("%d lines on a screen of %d", len(lines), m.height)
	}
	for i, l := range lines {
		if n := ansi.StringWidth(l); n > m.width {
			t.Errorf("line %d has %d cells on a screen of %d: %q", i, n, m.width, l)
		}
		lines[i] = strings.TrimRight(ansi.Strip(l), " ")
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestEverySizeFits draws every tab, the help and a pane at many sizes.
func TestEverySizeFits(t *testing.T) {
	for _, keys := range []string{"1", "2", "3", "4", "?", "4 w", "/ a", "1 s", "2 r"} {
		m := screenOf(t, 80, 24, keys, history10()...)
		for w := 1; w < 220; w += 3 {
			for _, h := range []int{1, 2, 5, 6, 8, 24, 60} {
				m.Update(tea.WindowSizeMsg{Width: w, Height: h})
				plainScreen(t, m)
			}
		}
	}
	m := screenOf(t, 80, 24, "", cluster(0))
	m.opt.ASCII = true
	for _, r := range plainScreen(t, m) {
		if r > 126 && r != '…' {
			t.Errorf("%q on a screen without Unicode", r)
		}
	}
}

// TestSelectionStays checks that the selected row follows its object, and that sorting goes to the top.
func TestSelectionStays(t *testing.T) {
	m := screenOf(t, 100, 24, "2 down", cluster(0))
	v := &m.views[tabJobs]
	job := v.selected().jobName()
	after := cluster(1)
	after.Allocs = append([]nomadlike.TopAlloc{{ID: "x", JobID: "another", Namespace: "ml", Status: "running", GPUs: make([]nomadlike.TopGrant, 64)}}, after.Allocs...)
	m.Update(lookMsg{seq: m.seq, top: after})
	if got := v.selected().jobName(); got != job || v.at != 2 {
		t.Errorf("row %d is selected, %s; %s was", v.at, got, job)
	}
	press(m, "r")
	if v.at != 0 {
		t.Errorf("after sorting, row %d is selected", v.at)
	}
	press(m, "/ n o t h i n g")
	if v.selected() != nil {
		t.Errorf("%v is selected of no rows", v.selected())
	}
	press(m, "w l n")
	press(m, "esc enter")
	if m.pane == nil || m.filter != "" {
		t.Errorf("filter %q, pane %v", m.filter, m.pane)
	}
}

// TestCommands checks what the keys run.
func TestCommands(t *testing.T) {
	for keys, want := range map[string]string{
		"1 enter":         "alloc status -namespace ml bbbbbbbb-0000-4000-8000-000000000001",
		"1 l":             "alloc logs -namespace ml -tail -n 500 bbbbbbbb-0000-4000-8000-000000000001",
		"1 w":             "job why -namespace ml llama-sft",
		"1 n":             "node status aaaaaaaa-0000-4000-8000-000000000001",
		"1 end enter":     "node status aaaaaaaa-0000-4000-8000-000000000002",
		"1 end w":         "",
		"2 enter":         "job status -namespace ml llama-sft",
		"2 l":             "job logs -tail -n 500 -namespace ml llama-sft",
		"3 enter":         "node status aaaaaaaa-0000-4000-8000-000000000003",
		"3 w":             "",
		"4 enter":         "job why -namespace ml sweep-42",
		"4 l":             "",
		"4 down down w":   "job why -namespace default prep",
		"/ b o b enter w": "job why -namespace ml vit-large",
		"4 w esc down w":  "job why -namespace ml eval",
		"tab tab tab n":   "",
	} {
		m := screenOf(t, 80, 24, keys, cluster(0))
		got := ""
		if m.pane != nil {
			got = strings.Join(m.pane.args, " ")
		}
		if got != want {
			t.Errorf("%s runs %q, want %q", keys, got, want)
		}
	}
}

// TestErrorsAndPauses checks that errors are shown with the last answer, that attempts become rare, and that a slow cluster
// is asked less often.
func TestErrorsAndPauses(t *testing.T) {
	m := screenOf(t, 80, 24, "", cluster(0))
	for i, want := range []time.Duration{4, 8, 16, 30, 30} {
		if _, cmd := m.Update(lookMsg{seq: m.seq, err: errors.New("no agent answers at http://127.0.0.1:4646: connection refused, and so on and so forth")}); cmd == nil || m.pause != want*time.Second {
			t.Errorf("after %d failures the next attempt comes in %s, want %ds", i+1, m.pause, want)
		}
	}
	got := plainScreen(t, m)
	for _, want := range []string{"next attempt in 30s", "no agent answers", "llama-sft", "last answer 12:00:00"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	stale := m.seq - 1
	if _, cmd := m.Update(tickMsg{seq: stale}); cmd != nil {
		t.Error("an old tick starts a look")
	}
	m.Update(lookMsg{seq: stale, top: cluster(1)})
	if m.err == nil {
		t.Error("an old answer is taken")
	}
	m.Update(lookMsg{seq: m.seq, top: cluster(1), took: 3 * time.Second})
	if m.err != nil || m.pause != 12*time.Second {
		t.Errorf("error %v; after a look of 3s the next one comes in %s", m.err, m.pause)
	}
}

// TestRotation checks that all nodes of a large cluster are measured in turn, those on the screen always, and that what
// was measured is kept until it is measured again.
func TestRotation(t *testing.T) {
	m := screenOf(t, 80, 24, "", large(300))
	asked := map[string]bool{}
	for range 8 {
		ids := m.nodesToAsk()
		if len(ids) != nomadlike.TopNodesMax || !slices.Contains(ids, m.rows[tabGPUs][0].node.ID) {
			t.Fatalf("%d nodes are asked: %v", len(ids), ids)
		}
		for _, id := range ids {
			asked[id] = true
		}
	}
	if len(asked) != 300 {
		t.Errorf("%d of 300 nodes were asked", len(asked))
	}
	one, two := large(300), large(300)
	one.Nodes[7].GPUs[0].Use = &nomadlike.TopGPUUse{MemoryMiB: 100, Percent: ptr(int64(50))}
	m.asked = map[string]bool{one.Nodes[7].ID: true}
	m.Update(lookMsg{seq: m.seq, top: one})
	m.asked = map[string]bool{}
	m.Update(lookMsg{seq: m.seq, top: two})
	if got := m.rows[tabGPUs][56].util; got != 0.5 {
		t.Errorf("use %v, want the last measured one", got)
	}
	m.asked = map[string]bool{one.Nodes[7].ID: true}
	m.Update(lookMsg{seq: m.seq, top: large(300)})
	if got := m.rows[tabGPUs][56].util; got != unknown {
		t.Errorf("use %v of a node that was asked and did not answer", got)
	}
}

// TestLargeClusterIsCheap checks that keys and drawing cost what the screen costs, however many nodes there are.
func TestLargeClusterIsCheap(t *testing.T) {
	cost := func(nodes int) float64 {
		m := screenOf(t, 120, 40, "", large(nodes))
		return testing.AllocsPerRun(20, func() {
			press(m, "down")
			m.View()
		})
	}
	small, big := cost(100), cost(10_000)
	if big > 1.5*small {
		t.Errorf("a key costs %.0f allocations with 10,000 nodes and %.0f with 100", big, small)
	}
}

// TestWithoutNodes shows GPUs to a token that may not read nodes.
func TestWithoutNodes(t *testing.T) {
	c := cluster(0)
	c.Nodes, c.Queue = nil, nil
	got := plainScreen(t, screenOf(t, 80, 24, "", c))
	if !strings.Contains(got, "llama-sft") || !strings.Contains(got, "9 of 9 GPUs held") {
		t.Errorf("the screen is\n%s", got)
	}
	if got := plainScreen(t, screenOf(t, 80, 24, "3", c)); !strings.Contains(got, "may not read nodes") {
		t.Errorf("the screen is\n%s", got)
	}
}

// TestOfOneNamespace checks that GPUs of others do not look free.
func TestOfOneNamespace(t *testing.T) {
	c := cluster(0)
	c.Allocs = c.Allocs[:1]
	for i := range c.Nodes {
		for k := range c.Nodes[i].GPUs {
			c.Nodes[i].GPUs[k].Held = c.Nodes[i].Name == "gpu-2"
		}
	}
	m := screenOf(t, 100, 24, "", c)
	m.opt.Scope = "ml"
	got := plainScreen(t, m)
	for text, n := range map[string]int{"llama-sft": 4, "others": 4, "in use": 1, "free": 2, "8 of 12 GPUs held": 1, "namespace ml": 1} {
		if strings.Count(got, text) != n {
			t.Errorf("%d times %q, want %d:\n%s", strings.Count(got, text), text, n, got)
		}
	}
}

func TestText(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{fit("日本語", 4, false), "日… "}, {fit("abc", 5, true), "  abc"}, {fit("abcdef", 4, false), "abc…"}, {clean("a\x1b[2Jb\x07\tc"), "ab    c"},
		{span(59 * time.Second), "59s"}, {span(3*time.Hour + 7*time.Minute), "3h07m"}, {span(100 * 24 * time.Hour), "100d"}, {span(-time.Second), "0s"},
		{bytes(0), "0B"}, {bytes(9 << 30), "9.0G"}, {bytes(81559 << 20), "80G"}, {gib(81559), "80"}, {gib(1536), "1.5"},
		{ansi.Strip(unicodeGlyphs.bar(0.55, 10, green)), "━━━━━╸────"}, {ansi.Strip(unicodeGlyphs.bar(0.001, 4, "")), "╸───"}, {ansi.Strip(asciiGlyphs.bar(1, 3, "")), "==="},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	names := []string{"gpu-10", "gpu-2", "gpu-2a", "b", "gpu-002"}
	slices.SortStableFunc(names, natural)
	if got := strings.Join(names, " "); got != "b gpu-2 gpu-002 gpu-2a gpu-10" {
		t.Errorf("the order is %s", got)
	}
}
