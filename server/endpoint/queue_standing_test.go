package endpoint

import (
	"fmt"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/structs"
)

// The index of known shares, by its definition and properties in the report (DEC-TR-301).
func TestJain(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []float64
		want   int64
	}{
		{"no one", nil, 0},
		{"all have nothing", []float64{0, 0, 0}, 0},
		{"one alone", []float64{0.3}, 1_000_000},
		{"all equal", []float64{0.2, 0.2, 0.2, 0.2, 0.2}, 1_000_000},
		{"one of four has all", []float64{0, 0.7, 0, 0}, 250_000},
		{"one of three has nothing", []float64{5, 5, 0}, 666_667},
		{"two to one", []float64{2, 1}, 900_000},
		{"the unit does not matter", []float64{2e9, 1e9}, 900_000},
	} {
		if got := jain(c.shares); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// floor is a cluster of 100 GPUs with queues.
type floor struct {
	Standings
	table *contend.QueueTable
}

func newFloor(queues ...*structs.Queue) *floor {
	return &floor{Standings{}, &contend.QueueTable{Queues: queues, Total: structs.Amount{GPUMilli: 100_000}}}
}

func (f *floor) wants(path structs.QueuePath, user string, wait time.Duration) {
	f.waits(path, &structs.Job{Submitter: structs.Submitter{Name: user}}, wait)
}

func (f *floor) settled() Standings {
	f.at(structs.QueueRoot).Target = whole
	f.settle(structs.QueueRoot, f.table, &structs.SchedulerConfig{}, 1)
	return f.Standings
}

// row adds a row of usage. Rows of a queue have what those below it have.
func (f *floor) row(path structs.QueuePath, user string, jobs, gpus int64) {
	f.holds(&structs.QueueUsage{Path: path, User: user, Jobs: jobs, Held: structs.Amount{GPUMilli: 1000 * gpus}})
}

// Two queues of weights 3 and 1, and one that is idle: the idle one is due nothing, and the others share by weight.
func TestTargets(t *testing.T) {
	f := newFloor(&structs.Queue{Path: "a", Weight: 3}, &structs.Queue{Path: "b"}, &structs.Queue{Path: "idle", Weight: 96})
	f.row("root", "", 2, 80)
	f.row("a", "", 1, 60)
	f.row("a", "ann", 1, 60)
	f.row("b", "", 1, 20)
	f.row("b", "bob", 1, 20)
	f.row("idle", "", 0, 0)
	m := f.settled()
	for path, want := range map[structs.QueuePath][3]int64{"root": {800_000, 1_000_000, 1_000_000}, "a": {600_000, 750_000, 1_000_000}, "b": {200_000, 250_000, 1_000_000}, "idle": {}} {
		if x := m[path]; [3]int64{x.Part, x.Target, x.Jain} != want {
			t.Errorf("%s: part, target and index %d, %d, %d; want %d", path, x.Part, x.Target, x.Jain, want)
		}
	}
	if m["idle"].Active() || !m["a"].Active() {
		t.Error("idle is active, or a is not")
	}
}

// Submitters share what their queue is due by their weights, those who only wait included, and the index is of parts by
// weight: 30 by weight 2 and 10 by weight 1, and nothing: (15+10)^2 / (3 * (225+100)).
func TestTargetsOfSubmitters(t *testing.T) {
	f := newFloor(&structs.Queue{Path: "lab", UserWeights: map[string]int64{"ann": 2}}, &structs.Queue{Path: "ops"})
	f.row("root", "", 2, 40)
	f.row("lab", "", 2, 40)
	f.row("lab", "ann", 1, 30)
	f.row("lab", "bob", 1, 10)
	f.wants("lab", "cid", time.Hour)
	f.wants("lab", "ann", time.Minute)
	f.wants("ops", "dan", 2*time.Hour)
	m := f.settled()
	lab := m["lab"]
	if lab.Target != 500_000 || lab.Jain != 641_026 || lab.Waiting != 2 || lab.Oldest != time.Hour || lab.Running != 2 {
		t.Errorf("lab: %+v", lab)
	}
	for name, want := range map[string]int64{"ann": 250_000, "bob": 125_000, "cid": 125_000} {
		if got := lab.Users[name].Target; got != want {
			t.Errorf("%s is due %d, want %d", name, got, want)
		}
	}
	if c := lab.Users["cid"]; c.Waiting != 1 || c.Oldest != time.Hour {
		t.Errorf("cid: %+v", c)
	}
	if root := m["root"]; root.Waiting != 3 || root.Oldest != 2*time.Hour || root.Jain != 500_000 {
		t.Errorf("root: %+v", root)
	}
}

// A queue's own submitters take turns with the queues below it. What a submitter holds below does not count twice.
func TestTargetsOfOwnWork(t *testing.T) {
	f := newFloor(&structs.Queue{Path: "lab"}, &structs.Queue{Path: "lab/nlp", Weight: 3})
	f.row("root", "", 2, 50)
	f.row("lab", "", 2, 50) // 10 itself, 40 below
	f.row("lab", "ann", 2, 50)
	f.row("lab/nlp", "", 1, 40)
	f.row("lab/nlp", "ann", 1, 40)
	m := f.settled()
	if got := m["lab"].Users["ann"].Target; got != 250_000 {
		t.Errorf("ann is due %d of her own work in lab, want 250000", got)
	}
	if got := m["lab/nlp"].Target; got != 750_000 {
		t.Errorf("lab/nlp is due %d, want 750000", got)
	}
	if none := m["lab"].Users[""]; none.Target != 0 || none.running != 0 {
		t.Errorf("work without a name in lab: %+v, want none", none)
	}
	if want := jain([]float64{10, 40. / 3}); m["lab"].Jain != want {
		t.Errorf("index of lab %d, want %d", m["lab"].Jain, want)
	}
}

// Work without a submitter's name takes turns, too.
func TestTargetsWithoutName(t *testing.T) {
	f := newFloor()
	f.row("root", "", 3, 30)
	f.row("default", "", 3, 30)
	f.row("default", "ann", 1, 10)
	m := f.settled()
	if a, none := m["default"].Users["ann"].Target, m["default"].Users[""].Target; a != 500_000 || none != 500_000 {
		t.Errorf("ann is due %d, work without a name %d; want 500000 each", a, none)
	}
	if want := jain([]float64{1, 2}); m["default"].Jain != want {
		t.Errorf("index %d, want %d", m["default"].Jain, want)
	}
}

// With billing weights, parts are of billing units.
func TestPartByBilling(t *testing.T) {
	f := newFloor(&structs.Queue{Path: "root", Billing: &structs.Billing{GPU: 1_000_000}})
	f.table.Models = []structs.GPUCount{{Model: "H100", Count: 100}}
	f.holds(&structs.QueueUsage{Path: "root", Jobs: 1, Held: structs.Amount{GPUMilli: 1000, Billed: 40_000_000}})
	all := f.table.Queues[0].Billing.OfCluster(f.table.Total, f.table.Models)
	if got, want := f.settled()["root"].Part, 40_000_000*1_000_000/all; got != want || got == 10_000 {
		t.Errorf("part %d, want %d", got, want)
	}
}

// Time on hold, before the begin time, and before the end of another job is not a wait.
func TestWaited(t *testing.T) {
	at := func(h int64) structs.LogTime { return structs.LogTime(h * int64(time.Hour)) }
	depends := []structs.Dependency{{}}
	for _, c := range []struct {
		name string
		w    structs.Workload
		j    *structs.Job
		want time.Duration
	}{
		{"since its submission", structs.Workload{SubmitTime: at(1)}, &structs.Job{}, 9 * time.Hour},
		{"job gone", structs.Workload{SubmitTime: at(1)}, nil, 9 * time.Hour},
		{"pause after a requeue", structs.Workload{SubmitTime: at(1), NotBefore: at(8)}, &structs.Job{}, 2 * time.Hour},
		{"begin", structs.Workload{SubmitTime: at(1)}, &structs.Job{Begin: at(7)}, 3 * time.Hour},
		{"begin to come", structs.Workload{SubmitTime: at(1)}, &structs.Job{Begin: at(70)}, 0},
		{"on hold", structs.Workload{SubmitTime: at(1), Held: true}, &structs.Job{}, 0},
		{"suspended", structs.Workload{SubmitTime: at(1), Suspended: at(2)}, &structs.Job{}, 0},
		{"waits for a job", structs.Workload{SubmitTime: at(1)}, &structs.Job{Depends: depends}, 0},
		{"waited for a job", structs.Workload{SubmitTime: at(1), Met: true}, &structs.Job{Depends: depends}, 9 * time.Hour},
	} {
		if got := waited(&c.w, c.j, at(10)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// BenchmarkStandings is what a scrape costs where 2,000 queues of 5 submitters each have 100,000 waiting jobs.
func BenchmarkStandings(b *testing.B) {
	table := &contend.QueueTable{Total: structs.Amount{GPUMilli: 10_000_000}}
	var rows []*structs.QueueUsage
	row := func(path structs.QueuePath, user string) {
		rows = append(rows, &structs.QueueUsage{Path: path, User: user, Jobs: 1, Held: structs.Amount{GPUMilli: 1000}})
	}
	row(structs.QueueRoot, "")
	for i := range 2000 {
		path := structs.QueuePath(fmt.Sprintf("q%04d", i))
		table.Queues = append(table.Queues, &structs.Queue{Path: path})
		row(path, "")
		for u := range 5 {
			row(path, fmt.Sprint("user", u))
		}
	}
	jobs := make([]*structs.Job, 5)
	for u := range jobs {
		jobs[u] = &structs.Job{Submitter: structs.Submitter{Name: fmt.Sprint("user", u)}}
	}
	for b.Loop() {
		f := &floor{Standings{}, table}
		for _, u := range rows {
			f.holds(u)
		}
		for i := range 100_000 {
			f.waits(table.Queues[i%2000].Path, jobs[i%5], time.Second)
		}
		if m := f.settled(); m["q0000"].Waiting != 50 || m["q1999"].Target != whole/2000 {
			b.Fatalf("q0000: %+v, q1999: %+v", m["q0000"], m["q1999"])
		}
	}
}
