package contend

import (
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// preemptionOf begins the preemptions of a pass over allocations on one node.
func preemptionOf(t *testing.T, cfg *structs.SchedulerConfig, n *structs.Node, allocs ...*structs.Allocation) *Preemption {
	t.Helper()
	w := search.NewPass(model.NewView(1, []*structs.Node{n}, allocs, nil), model.Overlay{})
	t.Cleanup(w.Release)
	return NewPreemption(&Env{W: w, Now: testNow, Rules: &Rules{Config: cfg}}, nil)
}

// TestEndsIn: how long preempted work takes to end depends on its save, its kill timeout, and who saves before it.
func TestEndsIn(t *testing.T) {
	n := gpuNode(1, 8, 80_000)
	saver := func(id string, took time.Duration) (*structs.Job, *structs.Saved) {
		j := lowJob(id, 4, 1)
		j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: 2 * time.Minute, Storage: "lustre1"}
		return j, &structs.Saved{Time: testNow.Add(-time.Hour), Took: took}
	}
	plain := lowJob("plain", 1, 1)
	plain.Groups[0].Tasks[0].KillTimeout, plain.Groups[0].Tasks[0].ShutdownDelay = 20*time.Second, 3*time.Second
	deaf := lowJob("deaf", 1, 1)
	deaf.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1", Grace: 2 * time.Minute, On: []string{"drain"}}
	slow, _ := saver("slow", 0)
	quick, saved := saver("quick", 10*time.Second)
	for _, c := range []struct {
		name   string
		job    *structs.Job
		saved  *structs.Saved
		ending int // allocations that save before it
		most   int64
		want   time.Duration
	}{
		{"it saves nothing", plain, nil, 0, 0, 23 * time.Second},
		{"it is not asked", deaf, nil, 0, 0, 5 * time.Second},
		{"its whole grace", slow, nil, 0, 0, 2*time.Minute + 5*time.Second},
		{"twice its last save", quick, saved, 0, 0, 25 * time.Second},
		{"the limit has room", slow, nil, 1, 2, 2*time.Minute + 5*time.Second},
		{"the second turn", slow, nil, 3, 2, 2*(2*time.Minute) + saveOverhead + 5*time.Second},
		{"the fourth turn", slow, nil, 3, 1, 3*(2*time.Minute+saveOverhead) + 2*time.Minute + 5*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := running(c.job, 1, 0, n, 0, 1, 2*time.Hour)
			a.Saved = c.saved
			allocs := []*structs.Allocation{a}
			for i := range c.ending {
				x := running(slow, byte(2+i), 1+i, n, 1+i, 1, time.Hour)
				x.Desired = structs.DesiredEvict
				allocs = append(allocs, x)
			}
			cfg := &structs.SchedulerConfig{}
			if c.most > 0 {
				cfg.CheckpointStorage = map[string]int64{"lustre1": c.most}
			}
			if got := preemptionOf(t, cfg, n, allocs...).endsIn(model.HeldOf(a)); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestGangSavesInTime: a gang in which one member saves for all loses its work unless that member saved within the grace of a notice, and no
// less because that member is counted first.
func TestGangSavesInTime(t *testing.T) {
	n := gpuNode(1, 4, 80_000)
	for _, c := range []struct {
		took time.Duration
		want int64
	}{
		{20 * time.Second, 4 * 60},
		{0, 4 * (3600 + 60)},
		{40 * time.Second, 4 * (3600 + 60)}, // of an earlier version, whose grace was longer
	} {
		j := lowJob("gang", 4, 1)
		j.Groups[0].Gang = &structs.Gang{}
		j.Groups[0].Checkpoint = &structs.Checkpoint{Signal: "SIGUSR1"}
		var allocs []*structs.Allocation
		for i := range 4 {
			allocs = append(allocs, running(j, byte(1+i), i, n, i, 1, 10*time.Hour))
		}
		allocs[0].Saved = &structs.Saved{Time: testNow.Add(-time.Hour), Took: c.took}
		_, stops, e := cheapest(t, []*structs.Node{n}, allocs, 4, byPriority)
		if e == nil || len(stops) != 4 {
			t.Fatalf("stops %v", stops)
		}
		if lost, _ := e.Loss(); lost != c.want {
			t.Errorf("saved within %v: %d GPU seconds are lost, want %d", c.took, lost, c.want)
		}
	}
}
