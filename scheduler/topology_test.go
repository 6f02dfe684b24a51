package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/structs"
)

// forest is a random small cluster with levels of a topology.
type forest struct {
	levels []string // from near to far
	nodes  []*structs.Node
	allocs []*structs.Allocation
	free   map[structs.NodeID]int // GPUs
}

// newForest makes a cluster. Names of places are few, so that some are equal in different farther places, and some nodes lack
// a value.
func newForest(rng *rand.Rand) *forest {
	f := &forest{levels: []string{"rack", "leaf", "pod"}[:1+rng.IntN(3)], free: map[structs.NodeID]int{}}
	gaps, names := rng.IntN(3) == 0, 1+rng.IntN(3)
	for i := range 2 + rng.IntN(12) {
		n := node(i + 1)
		n.Resources.CPU, n.Resources.MemoryMiB, n.Meta = 128_000, 1_000_000, map[string]string{}
		for _, l := range f.levels {
			if !gaps || rng.IntN(5) > 0 {
				n.Meta[l] = fmt.Sprint(l, rng.IntN(names))
			}
		}
		g := structs.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H100"}
		gpus := 1 + rng.IntN(4)
		f.free[n.ID] = rng.IntN(gpus + 1)
		for k := range gpus {
			in := structs.DeviceInstance{ID: fmt.Sprintf("GPU-%d-%d", i, k), Healthy: true, MemoryMiB: 81920}
			g.Instances = append(g.Instances, in)
			if k >= f.free[n.ID] {
				f.allocs = append(f.allocs, &structs.Allocation{ID: structs.AllocID(id("alloc", i*8+k)), NodeID: n.ID, JobID: "held", Namespace: "default", Resources: structs.Vector{CPU: 1000, MemoryMiB: 1000},
					Client: structs.ClientRunning, Desired: structs.DesiredRun, Grants: []structs.Grant{{Task: "t", Device: "nvidia/gpu/H100", Instance: in.ID}}})
			}
		}
		n.Resources.Devices = []structs.DeviceGroup{g}
		f.nodes = append(f.nodes, n)
	}
	return f
}

// place returns the place of a node at a level, with those of the farther levels; "" if it has none.
func (f *forest) place(n *structs.Node, level int) string {
	if n.Meta[f.levels[level]] == "" {
		return ""
	}
	var path []string
	for _, l := range f.levels[level:] {
		path = append(path, n.Meta[l])
	}
	return strings.Join(path, "/")
}

// rooms returns how many members fit in each place of a level, and overall.
func (f *forest) rooms(level, gpus int) (by map[string]int, all int) {
	by = map[string]int{}
	for _, n := range f.nodes {
		room := f.free[n.ID] / gpus
		all += room
		if at := f.place(n, level); at != "" {
			by[at] += room
		}
	}
	return by, all
}

// decide decides about one gang, and returns the nodes of its members.
func (f *forest) decide(levels []string, p string, tg func(*structs.Group), members, gpus int) []*structs.Node {
	j := job("gang", members)
	j.Type = structs.JobBatch
	g := j.Groups[0]
	g.Gang = &structs.Gang{}
	g.Tasks[0].Resources = structs.Resources{CPU: 10, MemoryMiB: 10, GPU: []structs.GPURequest{{Count: int64(gpus)}}}
	if tg != nil {
		tg(g)
	}
	in := scheduler.Input{View: model.NewView(10, f.nodes, f.allocs, nil), Now: structs.LogTime(time.Hour), Pending: []contend.Workload{load(j, 0)}, Config: structs.SchedulerConfig{TopologyLevels: levels}}
	plan, _ := scheduler.Schedule(in, policy.Builtin[p])
	var out []*structs.Node
	for _, e := range plan.Entries {
		for i := range e.Parts {
			for _, pl := range e.Parts[i].Places {
				id := e.Nodes[pl.Node].ID
				out = append(out, f.nodes[slices.IndexFunc(f.nodes, func(n *structs.Node) bool { return n.ID == id })])
			}
		}
	}
	return out
}

// TestTopologyTree compares the places of gangs in random trees with what a search of all places finds: a gang is in one place
// of the nearest level that has room for it, in the one with the least room, and it is placed if and only if it is without
// levels.
func TestTopologyTree(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	names := model.SortedKeys(policy.Builtin)
	reached := map[string]int{}
	for run := range 4000 {
		f := newForest(rng)
		members, gpus, p := 2+rng.IntN(6), 1+rng.IntN(2), names[rng.IntN(len(names))]
		if gpus == 2 && rng.IntN(2) == 0 {
			gpus = 1
		}
		say := func(what string, args ...any) {
			t.Helper()
			var b strings.Builder
			for _, n := range f.nodes {
				fmt.Fprintf(&b, "\n%s %v: %d free", n.ID.Short(), n.Meta, f.free[n.ID])
			}
			t.Fatalf("run %d: %d members of %d GPUs by %s: %s%s", run, members, gpus, p, fmt.Sprintf(what, args...), b.String())
		}
		want, least := len(f.levels), 0 // the level that has room, and the room of the tightest place there
		for level := range f.levels {
			by, _ := f.rooms(level, gpus)
			for _, room := range by {
				if room >= members && (want > level || room < least) {
					want, least = level, room
				}
			}
			if want == level {
				break
			}
		}
		got := f.decide(f.levels, p, nil, members, gpus)
		if plain := f.decide([]string{structs.TopologyNone}, p, nil, members, gpus); len(plain) != len(got) {
			say("%d are placed, %d without levels", len(got), len(plain))
		}
		if _, all := f.rooms(0, gpus); len(got) == 0 {
			if all >= members {
				say("it waits, though there is room for %d", all)
			}
			reached["nothing"]++
			continue
		}
		in := func(level int) string { // the place that has all of them
			at := f.place(got[0], level)
			for _, n := range got {
				if f.place(n, level) != at {
					return ""
				}
			}
			return at
		}
		is := 0
		for is < len(f.levels) && in(is) == "" {
			is++
		}
		if is != want {
			say("they are together at level %d, and could be at %d", is, want)
		}
		if is < len(f.levels) {
			if by, _ := f.rooms(is, gpus); by[in(is)] != least {
				say("they are in %s with room for %d; there is a place with room for %d", in(is), by[in(is)], least)
			}
			reached[f.levels[is]]++
		} else {
			reached["apart"]++
			f.fewest(say, got, members, gpus)
		}
		// Required: placed where a place of that level has room, and nowhere else.
		level := rng.IntN(len(f.levels))
		there := f.decide(f.levels, p, func(g *structs.Group) {
			g.Topology = &structs.Topology{Across: f.levels[level], Mode: structs.TopologyRequired}
		}, members, gpus)
		most := 0
		by, _ := f.rooms(level, gpus)
		for _, room := range by {
			most = max(most, room)
		}
		if (len(there) > 0) != (most >= members) {
			say("%d are placed with %s required; the largest has room for %d", len(there), f.levels[level], most)
		}
		for _, n := range there {
			if at := f.place(n, level); at == "" || at != f.place(there[0], level) {
				say("%s is required, and they are in %q and %q", f.levels[level], f.place(there[0], level), at)
			}
		}
	}
	t.Log(reached)
	for _, k := range []string{"rack", "leaf", "pod", "apart", "nothing"} {
		if reached[k] < 20 {
			t.Errorf("only %d gangs ended at %s", reached[k], k)
		}
	}
}

// fewest checks that members that no single place can hold are in as few places of the farthest level as possible, where every node has
// one.
func (f *forest) fewest(say func(string, ...any), got []*structs.Node, members, gpus int) {
	top := len(f.levels) - 1
	if slices.ContainsFunc(f.nodes, func(n *structs.Node) bool { return f.place(n, top) == "" }) {
		return
	}
	by, _ := f.rooms(top, gpus)
	var rooms []int
	for _, room := range by {
		rooms = append(rooms, room)
	}
	slices.Sort(rooms)
	slices.Reverse(rooms)
	need, sum := 0, 0
	for ; sum < members; need++ {
		sum += rooms[need]
	}
	used := map[string]bool{}
	for _, n := range got {
		used[f.place(n, top)] = true
	}
	if len(used) > need {
		say("they are in %d places of level %s, and %d are enough", len(used), f.levels[top], need)
	}
}
