//go:build e2e

package gang

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/internal/fakegpu"
)

// TestTopology: on a cluster without configuration, a gang that asks for nothing starts in one rack, and one that no
// rack has room for under one leaf. Commands say so. Declared levels take the place of the discovered ones.
func TestTopology(t *testing.T) {
	at := func(name, rack, leaf string) harness.FleetNode {
		return harness.FleetNode{Name: name, GPUs: "1xH100", Meta: map[string]string{"rack": rack, "leaf": leaf, "row": rack + leaf}}
	}
	f := harness.StartFleet(t, at("a", "r1", "l1"), at("b", "r2", "l2"), at("c", "r2", "l2"), at("d", "r2", "l2"), at("e", "r4", "l1"))
	says := func(want string, args ...string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, strings.Join(args, " ")+" says "+want, func() (bool, string) {
			text, err := f.Muster(args...)
			return strings.Contains(text, want), fmt.Sprint(text, err)
		})
	}
	gang := func(id string, more string) harness.Work {
		return harness.Work{ID: id, Group: "count = 2\n    gang = {}\n    " + more, GPUs: "count = 1"}
	}
	nodes := func(w harness.Work) (names []string) {
		t.Helper()
		for _, a := range live(f, w, 2) {
			names = append(names, a.NodeName)
		}
		slices.Sort(names)
		return names
	}
	want := func(w harness.Work, names ...string) {
		t.Helper()
		if got := nodes(w); !slices.Equal(got, names) {
			t.Errorf("%s is on %v, want %v", w.ID, got, names)
		}
	}
	says("rack < leaf (discovered)", "operator", "scheduler", "get-config")
	racked, leafed := gang("racked", ""), gang("leafed", "")
	says("all 2 in rack r2", "job", "plan", f.File("racked.hcl", racked.HCL()))
	f.Run(racked)
	if got := nodes(racked); slices.ContainsFunc(got, func(n string) bool { return n == "a" || n == "e" }) {
		t.Errorf("racked is on %v, not in rack r2", got)
	}
	says("gang g: all 2 in rack r2", "job", "why", "racked")
	f.Run(leafed)
	want(leafed, "a", "e")
	says("all 2 in leaf l1, 2 racks", "job", "status", "leafed")
	id := live(f, leafed, 2)[0].ID
	says("Gang Topology", "alloc", "status", id)
	says("leaf l1", "alloc", "status", id)
	says("rack r2, leaf l2", "node", "status", "d")
	f.Stop(racked, leafed)

	f.Must("operator", "scheduler", "set-config", "-topology-levels", "none")
	says("Topology Levels               = none", "operator", "scheduler", "get-config")
	if out, err := f.Muster("operator", "scheduler", "set-config", "-topology-levels", "rack,rack"); err == nil || !strings.Contains(out, "twice") {
		t.Errorf("a level that is named twice: %v %s", err, out)
	}
	f.Must("operator", "scheduler", "set-config", "-topology-levels", "default")

	// An NVLink domain over two nodes of a rack, as their driver reports it, is nearer than a rack.
	for _, n := range []string{"c", "d"} {
		if err := f.GPUs(n).Edit(func(s *fakegpu.State) { s.GPUs[0].Fabric, s.GPUs[0].Clique = strings.Repeat("ab", 16), 4 }); err != nil {
			t.Fatal(err)
		}
		f.Must("gpu", "release", "-for", "1s", n) // the driver is opened again, and asked for the domain
	}
	says("nvlink.domain < rack < leaf (discovered)", "operator", "scheduler", "get-config")
	for _, n := range []string{"c", "d"} {
		says("nvlink.domain "+strings.Repeat("ab", 16)+".4", "node", "status", n)
	}
	nvl := gang("nvl", "")
	says("all 2 in nvlink.domain "+strings.Repeat("ab", 16)+".4", "job", "plan", f.File("nvl.hcl", nvl.HCL()))
	f.Run(nvl)
	want(nvl, "c", "d")
}
