//go:build e2e

package queue

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/muster-sched/muster/e2e/harness"
	"github.com/muster-sched/muster/nomadlike"
)

// history returns the allocations of a job, oldest first.
func history(f *harness.Fleet, w harness.Work) (as []harness.Alloc) {
	f.T.Helper()
	if err := f.API.Call("GET", "/v1/job/"+w.ID+"/allocations?all=true", nil, &as); err != nil {
		f.T.Fatal(err)
	}
	return as
}

// TestScavengerWaits: under the default preemption rule a short job of low priority waits for a long one of high
// priority; a short job of the same high priority does not.
func TestScavengerWaits(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "1xH100"})
	f.Must("queue", "apply", f.File("root.hcl", "queue \"root\" {\n  preempt_min_runtime = \"1s\"\n}\n"))
	vip := harness.Work{ID: "vip", Settings: "priority = \"critical\"\n  preemptible = true\n  runtime = { expected = \"5h\" }", GPUs: "count = 1"}
	scav := harness.Work{ID: "scav", Settings: "priority = \"scavenger\"\n  preemptible = true\n  runtime = { expected = \"1m\" }", GPUs: "count = 1"}
	peer := harness.Work{ID: "peer", Settings: "priority = \"critical\"\n  runtime = { expected = \"1m\" }", GPUs: "count = 1"}
	f.Run(vip)
	f.Running(vip, 1)
	f.Run(scav)
	waits(f, scav, "RESOURCES")
	f.Run(peer) // it competes with scav for the place of vip, which both may take after preempt_min_runtime
	f.Running(peer, 1)
	harness.Eventually(t, 20*time.Second, "vip makes room for its peer", func() (bool, string) {
		as := history(f, vip)
		return len(as) == 1 && as[0].DesiredStatus == "evict" && as[0].ClientStatus == "complete", fmt.Sprintf("%+v", as)
	})
	if out := f.Must("alloc", "status", history(f, vip)[0].ID); strings.Count(out, "preempted by job peer, which goes before it in queue default: ") < 2 || !strings.Contains(out, " GPU seconds are lost, worth less than the ") {
		t.Errorf("the description and the event do not say by whom and for what it was preempted:\n%s", out)
	}
	if as := history(f, scav); len(as) > 0 {
		t.Errorf("the scavenger was placed: %+v", as)
	}
	f.Stop(peer)
	f.Running(vip, 1)
	if as := history(f, scav); len(as) > 0 {
		t.Errorf("the scavenger was placed before the critical job: %+v", as)
	}
}

// TestSharesOfPreemptibleWork: queues take turns by share with work that may be preempted, and jobs start in the order that
// `muster queue` shows.
func TestSharesOfPreemptibleWork(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "1xH100"})
	f.Must("queue", "apply", f.File("queues.hcl", "queue \"root\" {\n  order = \"fair\"\n}\nqueue \"a\" {\n}\nqueue \"b\" {\n  weight = 10\n}\n"))
	work := func(id, queue, script string) harness.Work {
		return harness.Work{ID: id, Settings: "preemptible = true\n  queue = \"" + queue + "\"", GPUs: "count = 1", Script: script}
	}
	gate := f.File("gate", "")
	// It runs for some seconds, which count.
	heavy1 := work("heavy1", "a", "sleep 4; while [ -e "+gate+" ]; do sleep 0.1; done")
	f.Run(heavy1)
	f.Running(heavy1, 1)
	all := []harness.Work{heavy1}
	for i := 2; i <= 4; i++ {
		all = append(all, work(fmt.Sprint("heavy", i), "a", "sleep 0.5"))
		f.Run(all[len(all)-1])
	}
	all = append(all, work("light", "b", "sleep 0.5"))
	f.Run(all[len(all)-1])
	var shown []string
	harness.Eventually(t, 20*time.Second, "four jobs wait", func() (bool, string) {
		var list []nomadlike.QueueItem
		raw := f.Must("queue", "-json")
		if err := json.Unmarshal([]byte(raw), &list); err != nil {
			return false, err.Error()
		}
		shown = nil
		for _, it := range list {
			shown = append(shown, it.JobID)
		}
		return len(shown) == 4, raw
	})
	if want := []string{"light", "heavy2", "heavy3", "heavy4"}; !slices.Equal(shown, want) {
		t.Errorf("muster queue shows %v, want %v", shown, want)
	}
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	starts := map[string]int64{}
	harness.Eventually(t, 60*time.Second, "all have run", func() (bool, string) {
		var as []struct {
			JobID, ClientStatus string
			CreateTime          int64
		}
		if err := f.API.Call("GET", "/v1/allocations", nil, &as); err != nil {
			return false, err.Error()
		}
		ended := 0
		for _, a := range as {
			starts[a.JobID] = a.CreateTime
			if a.ClientStatus == "complete" {
				ended++
			}
		}
		return ended == len(all) && len(as) == len(all), fmt.Sprintf("%+v", as)
	})
	slices.SortFunc(shown, func(a, b string) int { return cmp.Compare(starts[a], starts[b]) })
	if want := []string{"light", "heavy2", "heavy3", "heavy4"}; !slices.Equal(shown, want) {
		t.Errorf("jobs started in the order %v, want %v", shown, want)
	}
}

// TestReclaimByShares: running work of a user who has everything gives way to waiting work of another one until both have
// half, and no further. The allocation and the decision log name who takes the place, with shares, loss and gain.
func TestReclaimByShares(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "4xH100", ACL: true})
	f.Must("queue", "apply", f.File("root.hcl", "queue \"root\" {\n  order = \"fair\"\n  preempt_min_runtime = \"1s\"\n}\n"))
	work := func(id string) harness.Work {
		return harness.Work{ID: id, Settings: "preemptible = true\n  runtime = { expected = \"5h\" }", GPUs: "count = 1"}
	}
	ann, bob := f.As("ann"), f.As("bob")
	var anns, bobs []harness.Work
	for i := range 4 {
		anns = append(anns, work(fmt.Sprint("ann", i)))
		ann.Run(anns[i])
		f.Running(anns[i], 1)
	}
	for i := range 3 {
		bobs = append(bobs, work(fmt.Sprint("bob", i)))
		bob.Run(bobs[i])
	}
	running := func(ws []harness.Work) (n int, evicted []harness.Alloc) {
		for _, w := range ws {
			for _, a := range history(f, w) {
				if a.ClientStatus == "running" {
					n++
				}
				if a.DesiredStatus == "evict" {
					evicted = append(evicted, a)
				}
			}
		}
		return n, evicted
	}
	even := func() (bool, string) {
		n, _ := running(bobs)
		m, gone := running(anns)
		return n == 2 && m == 2 && len(gone) == 2, fmt.Sprintf("bob runs %d, ann %d: %+v", n, m, gone)
	}
	harness.Eventually(t, 60*time.Second, "both have two GPUs", even)
	_, gone := running(anns)
	for _, a := range gone {
		out := f.Must("alloc", "status", a.ID)
		if !strings.Contains(out, " of user bob, with a smaller share in queue default (") || !strings.Contains(out, "; user ann keeps ") || !strings.Contains(out, " GPU seconds are lost, worth less than the ") {
			t.Errorf("the allocation is not told why it was preempted:\n%s", out)
		}
	}
	if out := f.Must("operator", "decisions", "-json"); strings.Count(out, "with a smaller share in queue default") < 2 {
		t.Errorf("the decision log does not say why:\n%s", out)
	}
	waits(f, bobs[2], "RESOURCES")
	waits(f, anns[slices.IndexFunc(anns, func(w harness.Work) bool { as := history(f, w); return as[len(as)-1].DesiredStatus == "evict" })], "RESOURCES")
	last := work("bob3")
	bob.Run(last) // all that waits is decided once more
	waits(f, last, "RESOURCES")
	if ok, what := even(); !ok {
		t.Error(what)
	}
}

// TestLateRun: a run that outlives its prediction by seconds does not let others pass the job that waits for its GPU,
// though its limit is hours away. Ten rounds.
func TestLateRun(t *testing.T) {
	f := harness.StartFleet(t, harness.FleetNode{Name: "one", GPUs: "2xH100"})
	f.Must("queue", "apply", f.File("root.hcl", "queue \"root\" {\n  order = \"fcfs\"\n  backfill = \"conservative\"\n}\n"))
	n := 0
	submit := func(gpus int, script string) harness.Work {
		n++ // the servers learn run times by name without digits
		w := harness.Work{ID: fmt.Sprint("train-", n), Settings: `runtime = { limit = "1h" }`, GPUs: fmt.Sprint("count = ", gpus), Script: script}
		f.Run(w)
		return w
	}
	ended := func(ws ...harness.Work) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, "the jobs have run", func() (bool, string) {
			for _, w := range ws {
				if as := history(f, w); len(as) != 1 || as[0].ClientStatus != "complete" {
					return false, fmt.Sprintf("%s: %+v", w.ID, as)
				}
			}
			return true, ""
		})
	}
	const short = "sleep 0.3"
	ended(submit(1, short), submit(1, short), submit(1, short), submit(1, short))
	for round := range 10 {
		gate := f.File(fmt.Sprint("gate", round), "")
		late := submit(1, "while [ -e "+gate+" ]; do sleep 0.05; done")
		f.Running(late, 1)
		wide := submit(2, short)
		waits(f, wide, "RESOURCES")
		harness.Eventually(t, 20*time.Second, "the first job outlives its prediction", func() (bool, string) {
			ran := time.Since(time.Unix(0, created(f, late)))
			return ran > 1500*time.Millisecond, ran.String()
		})
		next := submit(1, short)
		harness.Eventually(t, 20*time.Second, "the next job waits", func() (bool, string) {
			out, err := f.Muster("job", "why", next.ID)
			return err == nil && strings.Contains(out, "is pending") && strings.Contains(out, "[reason: RESERVATION]") || len(history(f, next)) > 0, fmt.Sprint(err, out)
		})
		if as := history(f, next); len(as) > 0 {
			t.Fatalf("round %d: the next job passed the wide one: %+v", round, as)
		}
		if err := os.Remove(gate); err != nil {
			t.Fatal(err)
		}
		ended(late, wide, next)
		if a, b := created(f, wide), created(f, next); a > b {
			t.Fatalf("round %d: the next job was placed %v before the wide one", round, time.Duration(a-b))
		}
	}
}

// created returns when the only allocation of a job was placed.
func created(f *harness.Fleet, w harness.Work) int64 {
	f.T.Helper()
	var as []struct{ CreateTime int64 }
	if err := f.API.Call("GET", "/v1/job/"+w.ID+"/allocations?all=true", nil, &as); err != nil || len(as) != 1 {
		f.T.Fatalf("%s: %v, %+v", w.ID, err, as)
	}
	return as[0].CreateTime
}
