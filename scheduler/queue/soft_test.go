package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// of puts a workload into a namespace.
func of(namespace string, w contend.Workload) contend.Workload {
	w.Job.Namespace, w.Queue.Namespace = namespace, namespace
	w.Key = w.Job.Key()
	return w
}

// softly is a tenant with a soft limit of GPUs.
func softly(namespace, quota string, gpus int64) contend.Tenant {
	soft := structs.Unlimited
	soft.GPUMilli = 1000 * gpus
	return contend.Tenant{Namespace: namespace, Quota: quota, Hard: structs.Unlimited, Soft: &soft}
}

// TestQuotaSoft: work that would take the namespaces of a quota beyond its soft limit comes after all other work, under
// every order, in one queue and in several. What asks for nothing that is limited keeps its turn.
func TestQuotaSoft(t *testing.T) {
	for _, order := range structs.QueueOrders {
		for _, far := range []string{"default", "away"} { // the queue of the other namespace's work
			ws := []contend.Workload{of("ml", load("a1", "default", "ann", 1, 90, 1)), of("ml", load("a2", "default", "ann", 2, 90, 1)), of("ml", load("a3", "default", "ann", 3, 90, 1)),
				of("twin", load("b1", "default", "bob", 4, 90, 1)), of("other", load("c1", far, "cid", 5, 10, 1)), of("other", load("c2", far, "cid", 6, 10, 1)),
				of("ml", load("cpu", "default", "ann", 7, 90, 0))}
			table := &contend.QueueTable{Total: total, Queues: []*structs.Queue{{Path: "away"}, {Path: "default"}}, Tenants: []contend.Tenant{softly("ml", "q", 2), softly("twin", "q", 2)},
				Usage: []*structs.QueueUsage{{Path: structs.UseNamespace("ml"), Held: structs.Amount{GPUMilli: 1000}}}}
			served, _ := drain(NewLine(table, structs.SchedulerConfig{Order: order}, slices.Clone(ws), testNow, 1), ws, total)
			if len(served) != len(ws) {
				t.Fatalf("order %s: %v", order, served)
			}
			at := func(id string) int { return slices.Index(served, id) }
			within := 0 // of the quota's work before the last one of others
			for _, id := range []string{"a1", "a2", "a3", "b1"} {
				if at(id) < max(at("c1"), at("c2"), at("cpu")) {
					within++
				}
			}
			if within > 1 || order != structs.OrderLottery && within == 0 {
				t.Errorf("order %s, other work in queue %s: %v: one GPU is left below the soft limit", order, far, served)
			}
		}
	}
}

// TestQuotaSoftLine: a line with soft limits gives every workload once, and gives none that is beyond
// its limit while another one is not.
func TestQuotaSoftLine(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		spaces, queues := []string{"ml", "twin", "other"}, []string{"default", "a", "a/b"}
		var ws []contend.Workload
		for i := range 30 {
			ws = append(ws, of(spaces[rng.IntN(3)], load(fmt.Sprint("j", i), queues[rng.IntN(3)], []string{"ann", "bob"}[rng.IntN(2)], i, rng.IntN(100)+1, rng.Int64N(3))))
		}
		table := &contend.QueueTable{Total: total, Queues: []*structs.Queue{{Path: "a"}, {Path: "a/b"}, {Path: "default"}}, Tenants: []contend.Tenant{softly("ml", "q", 4), softly("twin", "q", 4)}}
		l := NewLine(table, structs.SchedulerConfig{Order: structs.QueueOrders[rng.IntN(len(structs.QueueOrders))]}, ws, testNow, seed)
		var held structs.Amount
		given, left := map[int]bool{}, len(ws)
		over := func(i int) bool {
			_, by := structs.Breaks(held, ws[i].Asks(), *table.Tenants[0].Soft)
			return ws[i].Key.Namespace != "other" && by > 0
		}
		for i := l.Next(); i >= 0; i = l.Next() {
			if given[i] {
				t.Fatalf("seed %d: workload %d is given twice", seed, i)
			}
			given[i], left = true, left-1
			if over(i) {
				for k := range ws {
					if !given[k] && !over(k) {
						t.Fatalf("seed %d: %s is beyond the soft limit and goes before %s", seed, ws[i].Key.ID, ws[k].Key.ID)
					}
				}
			}
			use := structs.Amount{}
			if rng.IntN(3) > 0 {
				use = ws[i].Asks()
			} else if rng.IntN(2) > 0 {
				l.Blocked(i)
			}
			if ws[i].Key.Namespace != "other" {
				held = held.Add(use)
			}
			l.Placed(i, use)
		}
		if left != 0 {
			t.Fatalf("seed %d: %d workloads are never given", seed, left)
		}
	}
}

// TestSoftModelsToTheLimit: a soft limit of a model lets work take all of it, and no more.
func TestSoftModelsToTheLimit(t *testing.T) {
	table := &contend.QueueTable{Models: []structs.GPUCount{{Model: "NVIDIA H100 80GB", Count: 4}}}
	w := load("a", "default", "ann", 1, 50, 1)
	w.Job.Groups[0].Tasks[0].Resources.GPU = []structs.GPURequest{{Count: 1, Model: "H100"}}
	s := newSoftModels(table, []structs.ModelAmount{{Model: "H100", Milli: 2000}}, []structs.ModelAmount{{Model: "NVIDIA H100 80GB", Milli: 1000}})
	if s.overBound(&w) {
		t.Error("work that takes the last GPU below the limit is beyond it")
	}
	if s.placed(&w, structs.Amount{GPUMilli: 1000}); !s.overBound(&w) {
		t.Error("work that takes one GPU more is not beyond the limit")
	}
}
