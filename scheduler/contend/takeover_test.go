package contend

import (
	"testing"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// taken is a takeover on one node with 300 MHz, which the given work holds, and a newcomer that asks for 100.
func taken(t *testing.T, runs ...*contenderRun) (*takeover, []*Place, map[int]model.Occupancy, map[int][]contenderAlloc) {
	t.Helper()
	n := gpuNode(1, 1, 80_000)
	n.Resources.CPU = 300
	empty, allocs := map[int][]contenderAlloc{}, []*structs.Allocation{}
	for i, run := range runs {
		a := running(lowJob(string(rune('a'+i)), 1, 1), byte(i+1), 0, n, 0, 0, 0)
		a.Resources = structs.Vector{CPU: 100 * run.units}
		run.allocs, run.load = []*structs.Allocation{a}, &Workload{Key: a.JobKey(), Job: a.Job}
		run.losses, run.parts = []int64{1}, inParts(a.Job, run.allocs)
		empty[0], allocs = append(empty[0], contenderAlloc{run: run, alloc: a, nth: i, units: run.units, lost: 1}), append(allocs, a)
	}
	w := search.NewPass(model.NewView(1, []*structs.Node{n}, allocs, nil), model.Overlay{})
	t.Cleanup(w.Release)
	before := map[int]model.Occupancy{0: w.Get(0)}
	o := w.Get(0)
	for _, a := range allocs {
		o = o.Without(n, a.ID)
	}
	newcomer := &model.Held{ID: structs.AllocID{99}, Need: structs.Vector{CPU: 100}, Work: model.HeldWork{Job: lowJob("new", 1, 1)}}
	o.Used = o.Used.Add(newcomer.Need)
	w.Set(0, o)
	pre := &Preemption{taken: map[structs.AllocID]bool{}}
	load := gpuWork("new", "low", 1, structs.GPURequest{Count: 1})
	r := &Contest{runs: runs, unit: 1}
	return &takeover{cs: &Contests{env: &Env{W: w}, pre: pre}, r: r, c: newcomerOf{load}, w: w, evicted: map[*structs.Group]int64{}},
		[]*Place{{Group: load.Job.Groups[0], At: search.Placement{Row: 0, Node: n, Held: newcomer}}}, before, empty
}

// newcomerOf is a workload that takes over.
type newcomerOf struct{ load *Workload }

func (n newcomerOf) Workload() *Workload { return n.load }
func (n newcomerOf) Again() []*Place     { return nil }

// TestTakeoverKeepsWide: of what could give way to a newcomer, wide work stays before narrow work, because its room is more
// than is needed, and work that should run stays before work that should not. What goes is the same in any order.
func TestTakeoverKeepsWide(t *testing.T) {
	narrow := func() *contenderRun { return &contenderRun{units: 1} }
	wide := func() *contenderRun { return &contenderRun{units: 2} }
	chosen := func() *contenderRun { return &contenderRun{units: 1, chosen: true} }
	for name, c := range map[string]struct {
		runs []*contenderRun
		goes int
	}{
		"narrow, wide": {[]*contenderRun{narrow(), wide()}, 0}, "wide, narrow": {[]*contenderRun{wide(), narrow()}, 1},
		"wide, chosen": {[]*contenderRun{wide(), chosen()}, 0}, "chosen, wide": {[]*contenderRun{chosen(), wide()}, 1},
	} {
		take, places, before, empty := taken(t, c.runs...)
		victims, ok := take.settle(places, []int{0}, before, empty)
		if !ok || len(victims[0]) != 1 || victims[0][0].run != c.runs[c.goes] {
			t.Errorf("%s: %v victims, %v; want the job at %d", name, len(victims[0]), ok, c.goes)
		}
	}
}

// TestTakeoverTakes: what a takeover stops is taken, so that no later job of the pass stops it again: a gang with all its
// allocations, of other jobs what is needed.
func TestTakeoverTakes(t *testing.T) {
	for _, gang := range []bool{true, false} {
		run := &contenderRun{units: 2}
		take, places, _, empty := taken(t, run)
		run.parts = !gang
		second := *run.allocs[0]
		second.ID = structs.AllocID{7}
		both := append(run.allocs, &second)
		run.allocs, run.losses, run.holds = both, []int64{1, 1}, []heldUnits{{id: both[0].ID}, {id: second.ID}}
		take.stop(places, map[int][]contenderAlloc{0: empty[0]})
		stops, stay := 1, 1
		if gang {
			stops, stay = 2, 2 // they are no longer looked at
		}
		if len(places[0].Evict) != stops || run.gone != gang || len(run.allocs) != stay || len(run.holds) != stay || take.evicted[places[0].Group] != int64(stops) {
			t.Fatalf("gang %v: %d stops, gone %v, %d allocations and %d places left, %v", gang, len(places[0].Evict), run.gone, len(run.allocs), len(run.holds), take.evicted)
		}
		for i, a := range both {
			if take.cs.pre.taken[a.ID] != (i < stops) {
				t.Errorf("gang %v: allocation %d is taken: %v", gang, i, !(i < stops))
			}
		}
	}
}
