package contend

import (
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/search"
	"github.com/muster-sched/muster/structs"
)

// byGPUs is an order of all queues: who holds the fewest GPUs goes first.
type byGPUs struct{ Chooser }

func (byGPUs) Sharing(*structs.Queue, *QueueTable, structs.LogTime) Sharing { return byGPUs{} }

func (byGPUs) Share(_ int64, held structs.Amount, _ *structs.QueueUsage) int64 { return held.GPUMilli }

func (byGPUs) GoesAfter(_, _ *Workload) bool { return false }

func (byGPUs) Text(share int64) string { return strconv.FormatInt(share, 10) }

// TestClaimLeavesAsMuch: by shares, one decision takes from a user only what leaves that user no less than the one who gets it.
// What it takes from each counts together, and what it takes from others does not.
func TestClaimLeavesAsMuch(t *testing.T) {
	n := gpuNode(1, 8, 80_000)
	var allocs []*structs.Allocation
	of := map[string][]*model.Held{}
	for i, user := range []string{"bob", "bob", "bob", "bob", "cat", "cat", "cat", "cat"} {
		j := lowJob("j"+strconv.Itoa(i), 1, 1)
		j.Queue, j.Priority, j.Submitter.Name = "q", 50, user
		a := running(j, byte(i+1), 0, n, i, 1, time.Hour)
		allocs, of[user] = append(allocs, a), append(of[user], model.HeldOf(a))
	}
	held := func(user string, gpus int64) *structs.QueueUsage {
		return &structs.QueueUsage{Path: "q", User: user, Held: structs.Amount{GPUMilli: 1000 * gpus}}
	}
	w := search.NewPass(model.NewView(1, []*structs.Node{n}, allocs, nil), model.Overlay{})
	t.Cleanup(w.Release)
	load := gpuWork("new", "q", 1, structs.GPURequest{Count: 2})
	load.Job.Priority = 50
	env := Env{W: w, Now: testNow, Chooser: byGPUs{}, Rules: &Rules{Config: &structs.SchedulerConfig{},
		Queues: &QueueTable{Queues: []*structs.Queue{{Path: "q", Preempt: structs.PreemptOrder}}, Usage: []*structs.QueueUsage{held("bob", 4), held("cat", 4)}}}}
	for i := range allocs {
		env.Running = append(env.Running, Workload{Key: allocs[i].JobKey(), Job: allocs[i].Job, Allocs: allocs[i : i+1]})
	}
	var p *Preemptor
	for _, x := range NewPreemption(&env, nil).For(load) {
		if x.Rule.Name == preemptShares {
			p = x
		}
	}
	if p == nil {
		t.Fatal("a user without a GPU may take none of those of others")
	}
	p.SetClaim(load.Job.Groups[0], 1, structs.Amount{}) // two GPUs
	for name, c := range map[string]struct {
		others []*model.Held
		want   bool
	}{
		"one of bob's four":               {nil, true},
		"two of them":                     {of["bob"][1:2], true},
		"three of them":                   {of["bob"][1:3], false},
		"two of them, and three of cat's": {append(of["bob"][1:2:2], of["cat"][:3]...), true},
	} {
		var vs []Victim
		for _, h := range c.others {
			vs = append(vs, p.victim(h))
		}
		if got := p.mayClaim(of["bob"][0], vs); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestSavingIsNoShare: what a user holds by work that was preempted, and saves its state, counts for no share: no more is taken
// from the user because of it.
func TestSavingIsNoShare(t *testing.T) {
	n := gpuNode(1, 4, 80_000)
	for _, saving := range []bool{false, true} {
		env := Env{Now: testNow, Chooser: byGPUs{}, Rules: &Rules{Config: &structs.SchedulerConfig{}, Queues: &QueueTable{Queues: []*structs.Queue{{Path: "q", Preempt: structs.PreemptOrder}},
			Usage: []*structs.QueueUsage{{Path: "q", User: "bob", Held: structs.Amount{GPUMilli: 4000}}}}}}
		var allocs []*structs.Allocation
		for i := range 4 {
			j := lowJob("j"+strconv.Itoa(i), 1, 1)
			j.Queue, j.Priority, j.Submitter.Name = "q", 50, "bob"
			a := running(j, byte(i+1), 0, n, i, 1, time.Hour)
			if saving && i < 2 {
				a.Desired = structs.DesiredEvict
			}
			allocs = append(allocs, a)
			env.Running = append(env.Running, Workload{Key: a.JobKey(), Job: j, Allocs: []*structs.Allocation{a}})
		}
		env.W = search.NewPass(model.NewView(1, []*structs.Node{n}, allocs, nil), model.Overlay{})
		t.Cleanup(env.W.Release)
		load := gpuWork("new", "q", 1, structs.GPURequest{Count: 2})
		load.Job.Priority = 50
		may := false
		for _, p := range NewPreemption(&env, nil).For(load) {
			if p.Rule.Name == preemptShares {
				p.SetClaim(load.Job.Groups[0], 1, structs.Amount{}) // two GPUs
				may = p.mayClaim(model.HeldOf(allocs[3]), []Victim{p.victim(model.HeldOf(allocs[2]))})
			}
		}
		if may == saving {
			t.Errorf("two of bob's four GPUs are being saved: %t; the other two may be taken: %t", saving, may)
		}
	}
}
