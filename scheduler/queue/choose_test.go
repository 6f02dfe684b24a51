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

// rival is a job of so many GPUs, which has run and has left for so long, and was submitted so long ago.
func rival(id string, units int64, ran, left, age time.Duration, holds bool) contend.Contender {
	w := load(id, "", "", 1, 50, units)
	w.Queue.SubmitTime = testNow.Add(-age)
	return contend.Contender{Load: &w, Holds: holds, Each: units, Count: 1, Ran: ran, Left: left}
}

// ranked gives a contender another priority than 50.
func ranked(v contend.Contender, priority int) contend.Contender {
	v.Load.Queue.Priority = priority
	return v
}

func chosen(t *testing.T, c contend.Chooser, r *contend.Competition) string {
	t.Helper()
	out, _ := c.Choose(r)
	var names []string
	for _, i := range out {
		names = append(names, r.Contenders[i].Load.Key.ID)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func TestIndex(t *testing.T) {
	h := time.Hour
	for _, c := range []struct {
		name   string
		room   []int64
		rivals []contend.Contender
		want   string
	}{
		{"the shorter of two", []int64{8}, []contend.Contender{rival("long", 8, 0, 9*h, h, false), rival("short", 8, 0, h, h, false)}, "short"},
		{"of equals, the one that runs", []int64{8}, []contend.Contender{rival("a", 8, 0, h, 2*h, false), rival("b", 8, h, h, 2*h, true)}, "b"},
		{"who is nearly done stays", []int64{8}, []contend.Contender{rival("long", 8, 9*h, 5*time.Minute, h, true), rival("short", 8, 0, 5*time.Minute, 6*time.Minute, false)}, "long"},
		{"a narrow one does not keep a wide one from running", []int64{8}, []contend.Contender{rival("narrow", 2, 0, 2*h, h, false), rival("wide", 8, 0, h, h, false)}, "wide"},
		{"small ones that together are worth more", []int64{8}, []contend.Contender{rival("a", 4, 0, h, h, false), rival("b", 4, 0, h, h, false), rival("wide", 8, 0, h, h, false)}, "a b"},
		{"who may not be stopped", []int64{8}, []contend.Contender{func() contend.Contender { r := rival("fixed", 8, 0, 9*h, h, true); r.Fixed = true; return r }(), rival("short", 8, 0, h, h, false)}, "fixed"},
		{"the one that is needed to the end goes first", []int64{2}, []contend.Contender{rival("long", 1, 0, 50*h, 60*h, false),
			rival("a", 1, 0, 9*h, 60*h, false), rival("b", 1, 0, 9*h, 60*h, false)}, "a long"},
		{"but not while more like it comes", []int64{2}, []contend.Contender{rival("long", 1, 0, 50*h, 60*h, false),
			rival("a", 1, 0, 20*h, 6*h, false), rival("b", 1, 0, 20*h, 6*h, false), rival("c", 1, 0, 20*h, 6*h, false)}, "a b"},
		{"what came just as long ago as it still runs is no such work", []int64{2}, []contend.Contender{rival("long", 1, 0, 50*h, 60*h, false),
			rival("a", 1, 0, 13*h, 50*h, false), rival("b", 1, 0, 13*h, 50*h, false)}, "a long"},
		{"who has waited for very long goes before shorter work", []int64{1}, []contend.Contender{rival("old", 1, 0, 2*h, 200*h, false),
			rival("a", 1, 0, h, h, false), rival("b", 1, 0, h, h, false), rival("c", 1, 0, 30*h, h, false)}, "old"},
		{"pieces of nodes do not make a whole", []int64{4, 4}, []contend.Contender{func() contend.Contender { r := rival("a", 3, 0, h, h, false); r.Count = 2; return r }(), rival("b", 2, 0, 9*h, h, false)}, "a"},
		{"a higher priority before what is worth more", []int64{1}, []contend.Contender{ranked(rival("critical", 1, h, 5*h, 2*h, true), 90), rival("short", 1, 0, time.Minute, h, false)}, "critical"},
		{"a lower priority gets what is left", []int64{4}, []contend.Contender{ranked(rival("critical", 3, h, 5*h, 2*h, true), 90), rival("wide", 2, 0, time.Minute, h, false), rival("narrow", 1, 0, h, h, false)}, "critical narrow"},
		{"who may not be stopped keeps its room from a higher priority", []int64{4}, []contend.Contender{func() contend.Contender { r := rival("fixed", 2, 0, 9*h, h, true); r.Fixed = true; return r }(),
			ranked(rival("wide", 4, 0, h, h, false), 90), ranked(rival("half", 2, 0, 9*h, h, false), 90)}, "fixed half"},
		{"what needs no GPU competes with nobody", []int64{8}, []contend.Contender{rival("cpu", 0, 0, 90*h, h, false), rival("a", 8, 0, h, h, false)}, "a cpu"},
	} {
		t.Run(c.name, func(t *testing.T) {
			slices.SortStableFunc(c.rivals, func(a, b contend.Contender) int {
				return int(a.Load.Queue.SubmitTime - b.Load.Queue.SubmitTime)
			})
			r := &contend.Competition{Queue: structs.Queue{Order: structs.OrderAdaptive, MaxWait: structs.MaxWaitOff}, Now: testNow, Contenders: c.rivals, Room: c.room}
			if got := chosen(t, Choosers{}, r); got != c.want {
				t.Errorf("%s: chose %q, want %q", c.name, got, c.want)
			}
		})
	}
}

// The set is the one that is worth most: compared with every subset.
func TestBestIsExact(t *testing.T) {
	seed := uint64(7)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		n := 1 + rng.IntN(9)
		room := int64(1 + rng.IntN(16))
		r := &contend.Competition{}
		var worth []int64
		var order []int
		for i := range n {
			r.Contenders = append(r.Contenders, contend.Contender{Each: int64(1 + rng.IntN(9)), Count: 1})
			worth = append(worth, int64(1+rng.IntN(50)))
			order = append(order, i)
		}
		slices.SortFunc(order, func(a, b int) int { // in the order of Choose
			x, y := worth[a]*r.Contenders[b].Units(), worth[b]*r.Contenders[a].Units()
			return int(y - x)
		})
		sum := func(set []int) (units, w int64) {
			for _, i := range set {
				units += r.Contenders[i].Units()
				w += worth[i]
			}
			return units, w
		}
		most := int64(0)
		for mask := range 1 << n {
			var set []int
			for i := range n {
				if mask&(1<<i) != 0 {
					set = append(set, i)
				}
			}
			if u, w := sum(set); u <= room {
				most = max(most, w)
			}
		}
		u, w := sum(best(r, order, worth, room))
		if u > room || w != most {
			t.Fatalf("seed %d: room %d, rivals %v worth %v: %d units worth %d, want %d", seed, room, r.Contenders, worth, u, w, most)
		}
	}
}

// The history of a width decides what its work is worth.
func TestLifetimes(t *testing.T) {
	var l Lifetimes
	worth := func(units int64, ran time.Duration) int64 {
		return l.with([]contend.Contender{rival("x", units, ran, 0, 0, true)})[widthOf(units)][binOf(ran)]
	}
	if a, b := worth(1, 0), worth(1, 50*time.Hour); a <= b {
		t.Errorf("nothing known: new work is worth %d, old work %d; by the rule of thumb old work lasts", a, b)
	}
	for range 50 {
		l.Ended(1, 5*time.Minute)
		l.Ended(8, 30*time.Hour)
	}
	if a, b := worth(1, 0), worth(8, 0); a < 20*b {
		t.Errorf("one GPU's work ends after minutes, and is worth %d; that of 8 after 30 hours, worth %d", a, b)
	}
	if a, b := worth(8, 12*time.Hour), worth(8, 25*time.Hour); a >= b {
		t.Errorf("work of 8 GPUs that ends after 30 hours is worth %d after 12 hours, %d after 25", a, b)
	}
	if n := testing.AllocsPerRun(10, func() { l.Ended(4, time.Hour) }); n > 2 {
		t.Errorf("noting an end allocates %v times", n)
	}
}

// Each published order, by its definition.
func TestGreedy(t *testing.T) {
	h := time.Hour
	set := func(order structs.Order) string {
		rivals := []contend.Contender{rival("thin-long", 1, 0, 4*h, 5*h, false), rival("wide-short", 8, 0, h, 4*h, false), rival("half", 4, 0, 2*h, 3*h, false)}
		for i := range rivals {
			rivals[i].Load.Expect = rivals[i].Left
		}
		return chosen(t, Choosers{}, &contend.Competition{Queue: structs.Queue{Order: order, MaxWait: structs.MaxWaitOff}, Now: testNow, Contenders: rivals, Room: []int64{8}})
	}
	for order, want := range map[structs.Order]string{structs.OrderSRTF: "wide-short", structs.OrderSRSF: "thin-long half", structs.OrderMLFQ: "thin-long half"} {
		w := strings.Fields(want)
		slices.Sort(w)
		if got := set(order); got != strings.Join(w, " ") {
			t.Errorf("%s chose %q, want %q", order, got, want)
		}
	}
}

// A list of 2D-LAS: work that sinks goes behind work that waits there, and work without a GPU behind work with one.
func TestLAS2D(t *testing.T) {
	var l LAS2D
	a, b := rival("a", 8, 400*time.Second, 0, 2*time.Hour, true), rival("b", 8, 0, 0, time.Hour, false)
	race := func() *contend.Competition {
		return &contend.Competition{Now: testNow, Contenders: []contend.Contender{a, b}, Room: []int64{8}}
	}
	var got []string
	step := func() {
		out, wake := l.Choose(race())
		got = append(got, fmt.Sprint(out, wake.Sub(testNow)))
	}
	step() // 3,200 of 3,250 GPU-seconds: a stays, and sinks on the next whole second of its run time
	a.Ran = 407 * time.Second
	step()
	a.Holds, b.Holds, b.Ran = false, true, 407*time.Second
	step() // both have sunk: a is before b, which came later
	if want := "[[0] 7s [1] 6m47s [0] 8m13s]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLAS2DSinksAtItsLimit: work that has attained exactly what a level allows is in the next one.
func TestLAS2DSinksAtItsLimit(t *testing.T) {
	var l LAS2D
	a, b := rival("a", 10, 325*time.Second, 0, 2*time.Hour, true), rival("b", 10, 0, 0, time.Hour, false) // 3,250 GPU-seconds
	if got := chosen(t, &l, &contend.Competition{Now: testNow, Contenders: []contend.Contender{a, b}, Room: []int64{10}}); got != "b" {
		t.Errorf("%q runs, want b", got)
	}
}

// TestLifted: late work counts as of the highest priority that waits, and what has that priority is not lifted.
func TestLifted(t *testing.T) {
	bound := waitBound{after: time.Hour, lifts: true}
	for _, c := range []struct {
		priority int
		age      time.Duration
		want     bool
	}{{50, 2 * time.Hour, true}, {50, time.Hour, false}, {90, 2 * time.Hour, false}} {
		v := ranked(rival("a", 1, 0, 0, c.age, false), c.priority)
		if got := bound.lifted(v.Load, testNow, 90); got != c.want {
			t.Errorf("priority %d after %v: %t", c.priority, c.age, got)
		}
	}
}

// TestOverdue: of the contenders that have waited beyond the bound, the longest wait comes first. Where the bound only lifts
// their priority, those of the highest are left out.
func TestOverdue(t *testing.T) {
	contenders := []contend.Contender{ranked(rival("top", 1, 0, 0, 4*time.Hour, false), 90), ranked(rival("low", 1, 0, 0, 2*time.Hour, false), 50),
		ranked(rival("mid", 1, 0, 0, 3*time.Hour, false), 70), ranked(rival("new", 1, 0, 0, time.Minute, false), 50)}
	for _, c := range []struct {
		order structs.Order
		set   bool // max_wait is configured
		want  string
	}{{structs.OrderAdaptive, false, "mid low"}, {structs.OrderAdaptive, true, "top mid low"}, {structs.OrderFCFS, false, "top mid low"}} {
		r := &contend.Competition{Queue: structs.Queue{Order: c.order, MaxWait: time.Hour}, BoundSet: c.set, Now: testNow, Contenders: contenders}
		var got []string
		for _, i := range overdue(r) {
			got = append(got, contenders[i].Load.Key.ID)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("order %s, max_wait configured %t: %v are overdue, want %s", c.order, c.set, got, c.want)
		}
	}
}
