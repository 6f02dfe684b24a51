package decide

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestBestInterval: Daly's estimate is near the interval that loses least by his complete model, and close to Young's where
// checkpoints are short. It is bounded where they take longer than there is between interruptions.
func TestBestInterval(t *testing.T) {
	for _, test := range []struct{ save, between time.Duration }{{5 * time.Minute, 24 * time.Hour}, {30 * time.Second, 2 * time.Hour}, {10 * time.Minute, 90 * time.Minute}} {
		save, rate := test.save.Seconds(), 1/test.between.Seconds()
		best := bestInterval(save, rate)
		run := 1e6
		cost := func(interval float64) float64 { return rework(run, interval, save, rate) + run*save/interval }
		at := cost(best.Seconds())
		for _, x := range []float64{0.5, 0.8, 1.25, 2} {
			if c := cost(best.Seconds() * x); c < at*0.999 {
				t.Errorf("%v every %v: an interval of %.2f x %v costs %.0f s, less than %.0f s", test.save, test.between, x, best, c, at)
			}
		}
		if young := math.Sqrt(2 * save / rate); math.Abs(best.Seconds()-young) > 0.5*young {
			t.Errorf("%v every %v: best is %v, by Young %.0f s", test.save, test.between, best, young)
		}
	}
	if got := bestInterval(300, 1/86400.0); got != 7001*time.Second {
		t.Errorf("5 minutes every day: %v", got)
	}
	if got := bestInterval(10_000, 1/3600.0); got != time.Hour {
		t.Errorf("checkpoints that take longer than there is between failures: %v", got)
	}
	if got := bestInterval(300, 0); got != 0 {
		t.Errorf("without failures: %v", got)
	}
}

// TestRiskOf: what is lost grows with the members of what runs as one and shrinks with checkpoints; a preemption that lets
// the work save costs less; what was not measured has no risk.
func TestRiskOf(t *testing.T) {
	measured := structs.JobRisk{AllocTime: 10_000 * time.Hour, Lost: 10, JobTime: 1000 * time.Hour, Preempted: 10} // one in 1,000 h, one in 100 h
	job := func(change func(j *structs.Job, g *structs.Group)) *structs.Job {
		g := &structs.Group{Name: "train", Count: 8, Gang: &structs.Gang{}, Tasks: []*structs.Task{{Name: "t", Resources: structs.Resources{GPU: []structs.GPURequest{{Count: 8}}}}}}
		j := &structs.Job{Type: structs.JobBatch, Groups: []*structs.Group{g}}
		change(j, g)
		j.Join()
		return j
	}
	of := func(change func(j *structs.Job, g *structs.Group)) structs.GroupRisk {
		t.Helper()
		r := measured
		if riskOf(&r, job(change), 100*time.Hour, nil, 0); len(r.Groups) != 1 {
			t.Fatalf("%d groups", len(r.Groups))
		}
		return r.Groups[0]
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.02*want {
			t.Errorf("%s: %g, want %g", what, got, want)
		}
	}
	plain := of(func(*structs.Job, *structs.Group) {})
	near("losses of 8 nodes in 100 h", float64(plain.NodeLosses), 0.8e6)
	near("preemptions of a job that may not be preempted", float64(plain.Preemptions+1), 1)
	near("GPU seconds without checkpoints", float64(plain.LostGPUSeconds), 64*(125*math.Expm1(0.8)-100)*3600)
	saves := of(func(j *structs.Job, g *structs.Group) {
		g.Checkpoint = &structs.Checkpoint{Interval: time.Hour, Cost: 2 * time.Minute, Signal: "SIGUSR1"}
	})
	near("with one an hour: half an hour and a minute of 64 GPUs, 0.8 times, and 1 preemption that costs 2 minutes", float64(saves.LostGPUSeconds), 64*(0.8*(1830+60)+120))
	near("preemptions in 100 h", float64(saves.Preemptions), 1e6)
	lost := of(func(j *structs.Job, g *structs.Group) { j.Preemptible = true })
	near("preemptions that lose everything", float64(lost.LostGPUSeconds), 64*(100/1.8*math.Expm1(1.8)-100)*3600)
	alone := of(func(j *structs.Job, g *structs.Group) { g.Gang = nil })
	near("allocations that are lost alone", float64(alone.LostGPUSeconds), 64*(1000*math.Expm1(0.1)-100)*3600)
	near("their losses", float64(alone.NodeLosses), 0.8e6)
	joint := of(func(j *structs.Job, g *structs.Group) {
		j.AllAtOnce, j.Groups = true, append(j.Groups, &structs.Group{Name: "ps", Count: 2, Tasks: []*structs.Task{{Name: "t"}}})
	})
	near("with two allocations of another group of an all_at_once job", float64(joint.NodeLosses), 1e6)
	past := func(id byte, lost int64) *structs.Node {
		n := &structs.Node{ID: structs.NodeID{id}, Name: fmt.Sprint("n", id), Status: structs.NodeReady}
		for i := range lost {
			n.Periods = append(n.Periods, structs.ReadyPeriod{From: structs.LogTime(i + 1), To: structs.LogTime(i + 1), Lost: true})
		}
		return n
	}
	on := func(change func(j *structs.Job, g *structs.Group), nodes ...*structs.Node) structs.GroupRisk {
		t.Helper()
		r := measured
		riskOf(&r, job(change), 100*time.Hour, Spots{"train": nodes}, structs.LogTime(500*time.Hour))
		return r.Groups[0]
	}
	same := func(*structs.Job, *structs.Group) {}
	good, bad := past(1, 0), past(2, 2)
	// Of a node that was never lost in 500 h a loss is expected in 1,500 h, of one that was lost twice in 500 h.
	near("8 members on one node", float64(on(same, good, good, good, good, good, good, good, good).NodeLosses), 1e6*100/1500)
	near("7 on one node, 1 on a bad one", float64(on(same, good, good, good, good, good, good, good, bad).NodeLosses), 1e6*(100/1500.0+100/500.0))
	near("2 with a place, 6 without", float64(on(same, good, bad).NodeLosses), 1e6*(100/1500.0+100/500.0+6*100/1000.0))
	near("8 alone, 4 of them on a bad node", float64(on(func(j *structs.Job, g *structs.Group) { g.Gang = nil }, good, bad, bad, good, good, bad, bad, good).NodeLosses), 1e6*(4*100/1500.0+4*100/500.0))
	if a, b := on(same, good, good), on(same, good, bad); a.LostGPUSeconds >= b.LostGPUSeconds || a.Worst == nil || a.Worst.Node != good.ID || b.Worst == nil || b.Worst.Name != "n2" || b.Worst.Lost != 2 || b.Worst.Expected != 500*time.Hour || b.Worst.Typical != 1000*time.Hour {
		t.Errorf("on good nodes %d GPU seconds are lost (%+v), with a bad one %d (%+v)", a.LostGPUSeconds, a.Worst, b.LostGPUSeconds, b.Worst)
	}
	bad.GPUFaults = []structs.LogTime{5}
	if b := on(same, bad); b.Worst.Lost != 2 || b.Worst.Faults != 1 || b.Worst.Expected != 375*time.Hour {
		t.Errorf("with a fault of a GPU: %+v", b.Worst)
	}
	// A node that had a fault has a mean time also where no node was ever lost; one that had none has not.
	if a, b := nodeRisk(bad, &structs.JobRisk{}, 500*structs.LogTime(time.Hour)), nodeRisk(good, &structs.JobRisk{}, 500*structs.LogTime(time.Hour)); a.Expected != (500+720)*time.Hour/4 || b.Expected != 0 {
		t.Errorf("of a cluster without losses: %+v, %+v", a, b)
	}
	often := measured
	often.Lost = 1e9
	if riskOf(&often, job(func(*structs.Job, *structs.Group) {}), 100*time.Hour, nil, 0); often.Groups[0].LostGPUSeconds != 64*100*3600*lostMost {
		t.Errorf("work that hardly ever ends: %d", often.Groups[0].LostGPUSeconds)
	}
	for name, r := range map[string]structs.JobRisk{"nothing ran": {}, "no run time": measured} {
		run := time.Duration(0)
		if name == "nothing ran" {
			run = time.Hour
		}
		if riskOf(&r, job(func(*structs.Job, *structs.Group) {}), run, nil, 0); len(r.Groups) > 0 {
			t.Errorf("%s: %+v", name, r.Groups)
		}
	}
}
