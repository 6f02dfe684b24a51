package structs

import (
	"testing"
	"time"
)

// TestSilentUntil: work on a silent node may run for stop_on_client_after and the longest kill_timeout of its group, and is
// replaced 5 s after that (ADR 0023). Each part counts: without one of them two copies may run at once.
func TestSilentUntil(t *testing.T) {
	limit, older := 30*time.Second, time.Hour
	const since = LogTime(7e18)
	for name, x := range map[string]struct {
		edit func(*Group, *Allocation, *Node)
		want time.Duration // after the node became silent; 0 for no limit
	}{
		"the longest kill_timeout":        {func(*Group, *Allocation, *Node) {}, 30*time.Second + 20*time.Second + 5*time.Second},
		"tasks that set no kill_timeout":  {func(g *Group, _ *Allocation, _ *Node) { g.Tasks = g.Tasks[:1] }, 30*time.Second + KillTimeoutDefault + 5*time.Second},
		"the older setting":               {func(g *Group, _ *Allocation, _ *Node) { g.Disconnect, g.StopAfterDisc = nil, &older }, time.Hour + 20*time.Second + 5*time.Second},
		"the newer one wins":              {func(g *Group, _ *Allocation, _ *Node) { g.StopAfterDisc = &older }, 30*time.Second + 20*time.Second + 5*time.Second},
		"no limit":                        {func(g *Group, _ *Allocation, _ *Node) { g.Disconnect = nil }, 0},
		"the node is in contact":          {func(_ *Group, _ *Allocation, n *Node) { n.SilentAt = 0 }, 0},
		"the tasks are known to be ended": {func(_ *Group, a *Allocation, _ *Node) { a.Client = ClientComplete }, 0},
	} {
		g := &Group{Name: "g", Disconnect: &Disconnect{StopOnClientAfter: &limit},
			Tasks: []*Task{{Name: "a"}, {Name: "b", KillTimeout: 20 * time.Second}, {Name: "c", KillTimeout: time.Second}}}
		a, n := &Allocation{Group: "g", Client: ClientRunning, Job: &Job{Groups: []*Group{g}}}, &Node{SilentAt: since}
		x.edit(g, a, n)
		want := LogTime(0)
		if x.want > 0 {
			want = since.Add(x.want)
		}
		if got := a.SilentUntil(n); got != want {
			t.Errorf("%s: replaced %s after the node became silent, want %s", name, time.Duration(got-since), x.want)
		}
	}
}
