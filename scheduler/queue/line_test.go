package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

const testNow = structs.LogTime(1_000_000 * time.Second)

// load makes a workload "id" of a queue and user that asks for whole GPUs.
func load(id, queue, user string, submit, priority int, gpus int64) contend.Workload {
	g := &structs.Group{Name: "g", Count: 1, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{CPU: 100, MemoryMiB: 100}}}}
	if gpus > 0 {
		g.Tasks[0].Resources.GPU = []structs.GPURequest{{Count: gpus}}
	}
	j := &structs.Job{Namespace: "default", ID: id, Queue: structs.QueuePath(queue), Priority: priority, Groups: []*structs.Group{g}, Submitter: structs.Submitter{Name: user}}
	return contend.Workload{Key: j.Key(), Job: j, Queue: &structs.Workload{Namespace: j.Namespace, JobID: id, Queue: structs.QueuePath(queue), Priority: priority,
		SubmitIndex: structs.Index(submit), SubmitTime: testNow.Add(-time.Hour).Add(time.Duration(submit))}}
}

// drain takes everything from a line; each workload gets what it asks for while total lasts.
func drain(l *Line, ws []contend.Workload, free structs.Amount) (order, placed []string) {
	for i := l.Next(); i >= 0; i = l.Next() {
		order = append(order, ws[i].Key.ID)
		if _, over := ws[i].Asks().Exceeds(free); over == 0 {
			free = free.Sub(ws[i].Asks())
			placed = append(placed, ws[i].Key.ID)
			l.Taken(i)
			continue
		}
		l.Placed(i, structs.Amount{})
	}
	return order, placed
}

var total = structs.Amount{GPUMilli: 16_000, GPUMemoryMiB: 16 * 80_000, CPU: 100_000, MemoryMiB: 1_000_000}

func TestLine(t *testing.T) {
	deadline := func(w contend.Workload, d time.Duration) contend.Workload {
		j := *w.Job
		j.Deadline, j.Runtime.Expected = testNow.Add(d), time.Hour
		w.Job = &j
		return w
	}
	expects := func(w contend.Workload, d time.Duration) contend.Workload {
		j := *w.Job
		j.Runtime.Expected = d
		w.Job = &j
		return w
	}
	model := func(w contend.Workload, name string) contend.Workload {
		w.Job.Groups[0].Tasks[0].Resources.GPU[0].Model = name
		return w
	}
	waited := func(w contend.Workload, d time.Duration) contend.Workload {
		q := *w.Queue
		q.SubmitTime = testNow.Add(-d)
		w.Queue = &q
		return w
	}
	for _, c := range []struct {
		name   string
		order  structs.Order
		queues []*structs.Queue
		usage  []*structs.QueueUsage
		loads  []contend.Workload
		want   string
	}{
		{"without queues: priority, then submission", structs.OrderFCFS, nil, nil,
			[]contend.Workload{load("late", "", "", 9, 50, 1), load("b", "", "", 5, 50, 1), load("a", "", "", 5, 50, 1), load("urgent", "x/y", "", 10, 80, 1), load("low", "", "", 1, 1, 1)},
			"urgent a b late low"},
		{"children merge under an order by key", structs.OrderFCFS, []*structs.Queue{{Path: "a"}, {Path: "b"}}, nil,
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("a2", "a", "", 3, 50, 1), load("b1", "b", "", 2, 50, 1), load("b2", "b", "", 4, 60, 1)},
			"b2 a1 b1 a2"},
		{"fair: the one with less goes first", structs.OrderFair, []*structs.Queue{{Path: "a"}, {Path: "b"}},
			[]*structs.QueueUsage{{Path: "a", Held: structs.Amount{GPUMilli: 1500}, At: testNow}},
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("a2", "a", "", 2, 50, 1), load("b1", "b", "", 3, 50, 1), load("b2", "b", "", 4, 50, 1), load("b3", "b", "", 5, 50, 1)},
			"b1 b2 a1 b3 a2"},
		{"fair: by weight", structs.OrderFair, []*structs.Queue{{Path: "a", Weight: 2}, {Path: "b"}}, nil,
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("a2", "a", "", 2, 50, 1), load("a3", "a", "", 3, 50, 1), load("a4", "a", "", 4, 50, 1), load("b1", "b", "", 5, 50, 1), load("b2", "b", "", 6, 50, 1)},
			"a1 b1 a2 a3 b2 a4"},
		{"fair: what was used lately counts", structs.OrderFair, []*structs.Queue{{Path: "a"}, {Path: "b"}},
			[]*structs.QueueUsage{{Path: "a", Used: structs.Amount{GPUMilli: 4000 * 7 * 86400}, At: testNow.Add(-structs.HalfLifeDefault)}},
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("b1", "b", "", 2, 50, 1), load("b2", "b", "", 3, 50, 1), load("b3", "b", "", 4, 50, 1)},
			"b1 b2 a1 b3"},
		{"fair: seconds of a GPU count", structs.OrderFair, []*structs.Queue{{Path: "a"}, {Path: "b"}},
			[]*structs.QueueUsage{{Path: "a", Used: structs.Amount{GPUMilli: 5 * 1000}, At: testNow}},
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("b1", "b", "", 2, 50, 1)},
			"b1 a1"},
		{"fair: submitters of one queue take turns", structs.OrderFair, nil,
			[]*structs.QueueUsage{{Path: structs.QueueDefault, User: "eve", Held: structs.Amount{GPUMilli: 1000}, At: testNow}},
			[]contend.Workload{load("e1", "", "eve", 1, 90, 1), load("e2", "", "eve", 2, 50, 1), load("m1", "", "mallory", 3, 50, 1), load("m2", "", "mallory", 4, 50, 1)},
			"m1 e1 m2 e2"},
		{"hierarchy: teams share what their organisation has", structs.OrderFair, []*structs.Queue{{Path: "a"}, {Path: "a/x"}, {Path: "a/y"}, {Path: "b"}}, nil,
			[]contend.Workload{load("x1", "a/x", "", 1, 50, 1), load("x2", "a/x", "", 2, 50, 1), load("y1", "a/y", "", 3, 50, 1), load("b1", "b", "", 4, 50, 1), load("b2", "b", "", 5, 50, 1), load("b3", "b", "", 6, 50, 1)},
			"x1 b1 y1 b2 x2 b3"},
		{"weighted-fair: who is behind goes first, and credit counts", structs.OrderWeighted, []*structs.Queue{{Path: "a"}, {Path: "b"}, {Path: "c"}},
			[]*structs.QueueUsage{{Path: "a", Total: structs.Amount{GPUMilli: 1_000_000}, At: testNow}, {Path: "b", Total: structs.Amount{GPUMilli: 10}, Credit: structs.Amount{GPUMilli: 1_500_000}, At: testNow}},
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("b1", "b", "", 2, 50, 1), load("c1", "c", "", 3, 50, 1), load("c2", "c", "", 4, 50, 1), load("c3", "c", "", 5, 50, 1)},
			"c1 c2 a1 c3 b1"},
		{"edf: what can be met first, then what cannot, then the rest", structs.OrderEDF, nil, nil,
			[]contend.Workload{load("none", "", "", 1, 90, 1), deadline(load("soon", "", "", 2, 1, 1), 2*time.Hour), deadline(load("hopeless", "", "", 3, 1, 1), time.Minute), deadline(load("later", "", "", 4, 1, 1), 3*time.Hour)},
			"soon later hopeless none"},
		{"priority, then fair: within a priority submitters take turns", "priority,fair", nil, nil,
			[]contend.Workload{load("e1", "", "eve", 1, 50, 1), load("e2", "", "eve", 2, 50, 1), load("e3", "", "eve", 3, 60, 1), load("m1", "", "mallory", 4, 50, 1), load("m2", "", "mallory", 5, 50, 1), load("m3", "", "mallory", 6, 40, 1)},
			"e3 m1 e1 m2 e2 m3"},
		{"priority, then fair: child queues take turns within a priority", "priority,fair", []*structs.Queue{{Path: "a"}, {Path: "b"}}, nil,
			[]contend.Workload{load("a1", "a", "", 1, 50, 1), load("a2", "a", "", 2, 50, 1), load("b1", "b", "", 3, 50, 1), load("b2", "b", "", 4, 50, 1), load("b3", "b", "", 5, 70, 4)},
			"b3 a1 a2 b1 b2"},
		{"priority, then fair: a wait that does not add up to a point decides nothing", "priority,fair", nil, []*structs.QueueUsage{{Path: structs.QueueDefault, User: "eve", Held: structs.Amount{GPUMilli: 1000}, At: testNow}},
			[]contend.Workload{waited(load("e", "", "eve", 1, 50, 1), 3*time.Minute), waited(load("m", "", "mallory", 2, 50, 1), time.Minute), waited(load("old", "", "eve", 3, 50, 1), 25*time.Minute)},
			"old m e"},
		{"fair, then sjf: the work of one submitter by run time", "fair,sjf", nil, nil,
			[]contend.Workload{expects(load("e1", "", "eve", 1, 90, 1), 3*time.Hour), expects(load("e2", "", "eve", 2, 50, 1), time.Minute), expects(load("m1", "", "mallory", 3, 50, 1), 2*time.Hour), expects(load("m2", "", "mallory", 4, 50, 1), time.Hour)},
			"e2 m2 e1 m1"},
		{"edf, then sjf: what has no deadline by run time", "edf,sjf", nil, nil,
			[]contend.Workload{expects(load("long", "", "", 1, 90, 1), 3*time.Hour), deadline(load("soon", "", "", 2, 1, 1), 2*time.Hour), expects(load("short", "", "", 3, 50, 1), time.Minute)},
			"soon short long"},
		{"sjf: shortest expected run time, unknown last", structs.OrderSJF, nil, nil,
			[]contend.Workload{load("unknown", "", "", 1, 90, 1), expects(load("long", "", "", 2, 50, 1), 3*time.Hour), expects(load("short", "", "", 3, 1, 4), time.Minute)},
			"short long unknown"},
		{"srsf: least remaining GPU-seconds", structs.OrderSRSF, nil, nil,
			[]contend.Workload{load("unknown", "", "", 1, 90, 1), expects(load("wide", "", "", 2, 50, 8), time.Hour), expects(load("long", "", "", 3, 1, 1), 7*time.Hour)},
			"long wide unknown"},
		{"priority: waiting raises it", structs.OrderPriority, nil, nil,
			[]contend.Workload{load("new", "", "", 9, 55, 1), waited(load("old", "", "", 1, 50, 1), 2*time.Hour), waited(load("older", "", "", 2, 1, 1), 3*time.Hour)},
			"old new older"},
		{"priority: waiting raises it up to a ceiling", structs.OrderPriority, []*structs.Queue{{Path: structs.QueueRoot, AgingMax: 3}}, nil,
			[]contend.Workload{load("new", "", "", 9, 55, 1), waited(load("old", "", "", 1, 50, 1), 2*time.Hour), waited(load("older", "", "", 2, 51, 1), 3*time.Hour)},
			"new older old"},
		{"fair: billing units, by the model asked for", structs.OrderFair,
			[]*structs.Queue{{Path: "a"}, {Path: "b"}, {Path: structs.QueueRoot, Billing: &structs.Billing{GPU: 1e6, Models: map[string]int64{"H100": 4e6}}}}, nil,
			[]contend.Workload{model(load("a1", "a", "", 1, 50, 1), "H100"), model(load("a2", "a", "", 2, 50, 1), "H100"),
				load("b1", "b", "", 3, 50, 1), load("b2", "b", "", 4, 50, 1), load("b3", "b", "", 5, 50, 1), load("b4", "b", "", 6, 50, 1), load("b5", "b", "", 7, 50, 1)},
			"a1 b1 b2 b3 b4 a2 b5"},
		{"fair: billed use counts, not the dominant share", structs.OrderFair,
			[]*structs.Queue{{Path: "a"}, {Path: "b"}, {Path: structs.QueueRoot, Billing: &structs.Billing{GPU: 1e6}}},
			[]*structs.QueueUsage{{Path: "a", Held: structs.Amount{CPU: 90_000}, At: testNow}, {Path: "b", Held: structs.Amount{GPUMilli: 1000, Billed: 1000}, At: testNow}},
			[]contend.Workload{load("b1", "b", "", 1, 50, 1), load("a1", "a", "", 2, 50, 1)},
			"a1 b1"},
		{"weighted-fair: billed service counts", structs.OrderWeighted,
			[]*structs.Queue{{Path: "a"}, {Path: "b"}, {Path: structs.QueueRoot, Billing: &structs.Billing{GPU: 1e6}}},
			[]*structs.QueueUsage{{Path: "a", Total: structs.Amount{CPU: 90_000_000}, At: testNow}, {Path: "b", Total: structs.Amount{GPUMilli: 1000_000, Billed: 1000_000}, At: testNow}},
			[]contend.Workload{load("b1", "b", "", 1, 50, 1), load("a1", "a", "", 2, 50, 1)},
			"a1 b1"},
		{"fair: submitters by weight", structs.OrderFair, []*structs.Queue{{Path: structs.QueueRoot, UserWeights: map[string]int64{"ada": 2}}}, nil,
			[]contend.Workload{load("a1", "", "ada", 1, 50, 1), load("a2", "", "ada", 2, 50, 1), load("a3", "", "ada", 3, 50, 1), load("a4", "", "ada", 4, 50, 1), load("b1", "", "bob", 5, 50, 1), load("b2", "", "bob", 6, 50, 1)},
			"a1 b1 a2 a3 b2 a4"},
		{"the bound: whatever the order, the longest wait goes first", structs.OrderFCFS, nil, nil,
			[]contend.Workload{load("urgent", "", "", 9, 90, 1), waited(load("starved", "", "", 1, 1, 1), 25*time.Hour), waited(load("more", "", "", 2, 1, 1), 26*time.Hour)},
			"more starved urgent"},
		{"guarantees before the rest, soft limits after it", structs.OrderFCFS,
			[]*structs.Queue{{Path: "g", Guarantee: &structs.Amount{GPUMilli: 1000}}, {Path: "n"}, {Path: "s", SoftLimit: &structs.Amount{GPUMilli: 1000, GPUMemoryMiB: -1, CPU: -1, MemoryMiB: -1}}}, nil,
			[]contend.Workload{load("s1", "s", "", 1, 50, 1), load("s2", "s", "", 2, 50, 1), load("n1", "n", "", 3, 50, 1), load("n2", "n", "", 4, 50, 1), load("g1", "g", "", 5, 50, 1), load("g2", "g", "", 6, 50, 1)},
			"g1 s1 n1 n2 g2 s2"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			table := &contend.QueueTable{Queues: c.queues, Usage: c.usage, Total: total}
			rng := rand.New(rand.NewPCG(1, 1))
			for range 10 {
				ws := slices.Clone(c.loads)
				rng.Shuffle(len(ws), func(i, k int) { ws[i], ws[k] = ws[k], ws[i] })
				got, _ := drain(NewLine(table, structs.SchedulerConfig{Order: c.order}, ws, testNow, 1), ws, total)
				if strings.Join(got, " ") != c.want {
					t.Fatalf("got %v, want %s", got, c.want)
				}
			}
		})
	}
}

// TestOrdersOfQueues: the configurable orders are the implemented ones, and each has its own name.
func TestOrdersOfQueues(t *testing.T) {
	if got := Names(); !slices.Equal(got, structs.QueueOrders) {
		t.Errorf("policies %v, a queue may name %v", got, structs.QueueOrders)
	}
	for name, o := range Builtin {
		if o.Name() != name {
			t.Errorf("the policy %q says that its name is %q", name, o.Name())
		}
	}
}

// TestListsOfOrders: what a list may name, and the terms of a place in line.
func TestListsOfOrders(t *testing.T) {
	for list, want := range map[structs.Order]string{
		"priority,fair": "", "fair,priority": "", "edf,priority,fair": "", "edf,mlfq": "", "priority,lottery": "",
		"priority,quick": `order "quick" is not known`, "fcfs,fcfs": "twice", "adaptive,fair": "stands alone", "lottery,fair": "only be the last",
		"fair,weighted-fair": "different shares", "edf,mlfq,sjf": "too long", "fair,": `order "" is not known`,
	} {
		t.Run(fmt.Sprint(list), func(t *testing.T) {
			q := structs.Queue{Path: "q", Order: list}
			switch err := q.Check(); {
			case want == "" && err != nil:
				t.Errorf("%s: %v", list, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: %v, want %s", list, err, want)
			case want == "" && Named(list).Name() != list:
				t.Errorf("%s is taken for %s", list, Named(list).Name())
			}
		})
	}
	ws := []contend.Workload{load("a", "", "eve", 1, 50, 1)}
	var names []string
	for _, x := range NewLine(nil, structs.SchedulerConfig{Order: "priority,fair"}, ws, testNow, 1).Terms(0) {
		names = append(names, x.Name)
	}
	if got := strings.Join(names, "|"); got != "share of default|share of eve|priority|aging|waited_seconds" {
		t.Errorf("terms %s", got)
	}
}

// TestUnknownOrder: an order of a newer version is reported, not silently replaced by the default.
func TestUnknownOrder(t *testing.T) {
	ws := []contend.Workload{load("a", "", "", 1, 50, 1)}
	l := NewLine(&contend.QueueTable{Total: total}, structs.SchedulerConfig{Order: "newer"}, ws, testNow, 1)
	terms := l.Terms(0)
	if len(terms) < 2 || terms[0].Name != `order "newer" is unknown to this version, so by adaptive` {
		t.Errorf("terms %+v", terms)
	}
}

// TestTaken: turns are computed before anything is placed, as if each workload got what it asks for.
func TestTaken(t *testing.T) {
	ws := []contend.Workload{load("e1", "", "eve", 1, 50, 1), load("e2", "", "eve", 2, 50, 1), load("e3", "", "eve", 3, 50, 1), load("m1", "", "mallory", 4, 50, 1), load("m2", "", "mallory", 5, 50, 1)}
	for _, order := range []structs.Order{structs.OrderFair, structs.OrderWeighted} {
		l := NewLine(&contend.QueueTable{Total: total}, structs.SchedulerConfig{Order: order}, ws, testNow, 1)
		var got []string
		for i := l.Next(); i >= 0; i = l.Next() {
			got = append(got, ws[i].Key.ID)
			l.Taken(i)
		}
		if want := "e1 m1 e2 m2 e3"; strings.Join(got, " ") != want {
			t.Errorf("%s: got %v, want %s", order, got, want)
		}
	}
}

// TestLineGivesEachOnce: with random trees, orders and results, each workload comes once, and in the same order for the
// same input.
func TestLineGivesEachOnce(t *testing.T) {
	paths := []string{"default", "a", "a/x", "a/x/p", "a/y", "b", "b/z", "nowhere/at/all"}
	names := Names()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		table := &contend.QueueTable{Total: total}
		for _, p := range []string{"a", "a/x", "a/x/p", "a/y", "b", "b/z", "default", "root"} {
			q := &structs.Queue{Path: structs.QueuePath(p), Order: names[rng.IntN(len(names))], Weight: rng.Int64N(4)}
			if rng.IntN(3) == 0 {
				q.Guarantee = &structs.Amount{GPUMilli: rng.Int64N(4000)}
			}
			if rng.IntN(3) == 0 {
				q.SoftLimit = &structs.Amount{GPUMilli: rng.Int64N(4000), GPUMemoryMiB: -1, CPU: -1, MemoryMiB: -1}
			}
			table.Queues = append(table.Queues, q)
			if rng.IntN(2) == 0 {
				table.Usage = append(table.Usage, &structs.QueueUsage{Path: structs.QueuePath(p), Held: structs.Amount{GPUMilli: rng.Int64N(8000)}, At: testNow})
			}
		}
		var ws []contend.Workload
		for i := range rng.IntN(60) {
			ws = append(ws, load(fmt.Sprint("j", i), paths[rng.IntN(len(paths))], fmt.Sprint("u", rng.IntN(3)), rng.IntN(20), rng.IntN(4), rng.Int64N(3)))
		}
		free := structs.Amount{GPUMilli: rng.Int64N(20_000), GPUMemoryMiB: 1 << 30, CPU: 1 << 30, MemoryMiB: 1 << 30}
		got, _ := drain(NewLine(table, structs.SchedulerConfig{}, ws, testNow, seed), ws, free)
		again, _ := drain(NewLine(table, structs.SchedulerConfig{}, ws, testNow, seed), ws, free)
		if !slices.Equal(got, again) {
			t.Fatalf("seed %d: %v, and then %v", seed, got, again)
		}
		slices.Sort(got)
		if len(slices.Compact(got)) != len(ws) {
			t.Fatalf("seed %d: %d of %d workloads came", seed, len(slices.Compact(got)), len(ws))
		}
	}
}

// TestLotteryOdds: queues win the first draw by their weights, and workloads by their priority.
func TestLotteryOdds(t *testing.T) {
	table := &contend.QueueTable{Queues: []*structs.Queue{{Path: "a", Weight: 3}, {Path: "b"}}, Total: total}
	ws := []contend.Workload{load("a1", "a", "", 1, 20, 1), load("a2", "a", "", 2, 80, 1), load("b1", "b", "", 3, 50, 1)}
	wins := map[string]int{}
	const draws = 20_000
	for seed := range uint64(draws) {
		l := NewLine(table, structs.SchedulerConfig{Order: structs.OrderLottery}, ws, testNow, seed)
		wins[ws[l.Next()].Key.ID]++
	}
	for id, want := range map[string]float64{"a1": .15, "a2": .6, "b1": .25} {
		if got := float64(wins[id]) / draws; got < want-.015 || got > want+.015 {
			t.Errorf("%s won %.3f of the draws, want %.2f", id, got, want)
		}
	}
}

func BenchmarkLine(b *testing.B) {
	for _, order := range []structs.Order{structs.OrderFCFS, structs.OrderFair} {
		b.Run(string(order), func(b *testing.B) {
			table := &contend.QueueTable{Total: total}
			var ws []contend.Workload
			for i := range 10_000 {
				ws = append(ws, load(fmt.Sprint("j", i), fmt.Sprintf("q%d/r%d", i%20, i%100), fmt.Sprint("u", i%500), i, i%10, 1))
			}
			for b.Loop() {
				drain(NewLine(table, structs.SchedulerConfig{Order: order}, ws, testNow, 1), ws, total)
			}
		})
	}
}
