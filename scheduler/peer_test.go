package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/model"
	"github.com/muster-sched/muster/scheduler/verify"
	"github.com/muster-sched/muster/structs"
)

// TestPeers compares placements with the rules checked one by one, over random clusters: nothing is placed where a
// required rule is broken, of the job or of work that keeps away from it; nothing waits on a cluster with room unless
// every node breaks a rule. A decision on an older view is refused where it would break a rule now, and accepted on its
// own view.
func TestPeers(t *testing.T) {
	counts := map[string]int{}
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var nodes []*structs.Node
		for i := range 3 + rng.IntN(6) {
			n := node(i + 1)
			n.Meta = map[string]string{}
			if rng.IntN(5) > 0 {
				n.Meta["rack"] = fmt.Sprint("r", rng.IntN(3))
			}
			nodes = append(nodes, n)
		}
		levels := []string{"", "node", "rack", "datacenter"}
		place := func(n *structs.Node, level string) string {
			switch level {
			case "", "node":
				return n.ID.String()
			case "datacenter":
				return n.Datacenter
			}
			return n.Meta[level]
		}
		var held []*structs.Allocation
		byID := map[structs.NodeID]*structs.Node{}
		for _, n := range nodes {
			byID[n.ID] = n
		}
		// broken returns the required rule that a node breaks for a job, given what is held.
		broken := func(j *structs.Job, n *structs.Node, held []*structs.Allocation) string {
			for away, ps := range [][]structs.Peer{append(slices.Clone(j.Near), j.Groups[0].Near...), append(slices.Clone(j.Away), j.Groups[0].Away...)} {
				for _, p := range ps {
					if !p.Required {
						continue
					}
					here, any := 0, 0
					for _, a := range held {
						if p.Means(j.Namespace, a.Job) {
							any++
							if at := place(n, p.Level); at != "" && at == place(byID[a.NodeID], p.Level) {
								here++
							}
						}
					}
					if away == 1 && here > 0 {
						return "away"
					}
					if away == 0 && here == 0 && (any > 0 || !p.Means(j.Namespace, j)) {
						return "near"
					}
				}
			}
			for _, a := range held {
				for _, p := range append(slices.Clone(a.Job.Away), a.Job.Groups[0].Away...) {
					if at := place(n, p.Level); p.Required && a.Job.ID != j.ID && p.Means(a.Namespace, j) && at != "" && at == place(byID[a.NodeID], p.Level) {
						return "kept away"
					}
				}
			}
			return ""
		}
		flight := model.Overlay{}
		for k := range 8 {
			j := job(fmt.Sprint("j", k), 1+rng.IntN(3))
			j.Groups[0].Tasks[0].Resources = structs.Resources{CPU: 1, MemoryMiB: 1}
			j.Meta = map[string]string{"tier": fmt.Sprint("t", rng.IntN(3))}
			for range rng.IntN(3) {
				p := structs.Peer{JobID: fmt.Sprint("j", rng.IntN(k+1)), Level: levels[rng.IntN(4)], Required: rng.IntN(3) > 0, Weight: 50}
				if rng.IntN(2) == 0 {
					p.JobID, p.Label = "", []string{"tier", "tier=t0", "tier=t1"}[rng.IntN(3)]
				}
				switch rng.IntN(4) {
				case 0:
					j.Near = append(j.Near, p)
				case 1:
					j.Groups[0].Near = append(j.Groups[0].Near, p)
				case 2:
					j.Away = append(j.Away, p)
				default:
					j.Groups[0].Away = append(j.Groups[0].Away, p)
				}
			}
			v := model.NewView(7, nodes, held, nil)
			in := scheduler.Input{View: v, Pending: []contend.Workload{load(j, k)}}
			plan, rep := scheduler.Schedule(in, binpack)
			again, _ := scheduler.Schedule(in, binpack)
			if string(scheduler.AppendPlan(nil, plan)) != string(scheduler.AppendPlan(nil, again)) {
				t.Fatalf("seed %d: two plans for one input", seed)
			}
			// The same, decided before anything was held, and verified now: in the view, and in flight.
			empty := model.NewView(6, nodes, nil, nil)
			old, _ := scheduler.Schedule(scheduler.Input{View: empty, Pending: in.Pending}, binpack)
			for _, e := range old.Entries {
				if x := verify.Verify(empty, model.Overlay{}, e); len(x.Refused) > 0 {
					t.Fatalf("seed %d: %s is refused on the picture that it was decided on: %+v", seed, j.ID, x.Refused)
				}
				x := verify.Verify(v, model.Overlay{}, e)
				if y := verify.Verify(empty, flight, e); !slices.Equal(x.Accepted, y.Accepted) {
					t.Fatalf("seed %d: %s: %v in the view, %v in flight: %+v, %+v", seed, j.ID, x.Accepted, y.Accepted, x.Refused, y.Refused)
				}
				now := slices.Clone(held)
				for at, part := range e.Parts {
					if len(part.Places) == 0 {
						continue
					}
					if !x.Accepted[at] {
						counts["too late"]++
					}
					for i := range part.Places {
						n := byID[e.Nodes[part.Places[i].Node].ID]
						why := broken(j, n, now)
						if x.Accepted[at] && why != "" {
							t.Fatalf("seed %d: %s on %s is accepted and breaks a rule: %s", seed, j.ID, n.Name, why)
						}
						if x.Accepted[at] {
							now = append(now, &structs.Allocation{NodeID: n.ID, Namespace: "default", JobID: j.ID, Job: j, Group: "g"})
						}
					}
				}
			}
			placed := 0
			for i, e := range plan.Entries {
				flight = flight.Add(uint64(100*k+i), e, nil)
				for _, part := range e.Parts {
					for i := range part.Places {
						pl := &part.Places[i]
						n := byID[e.Nodes[pl.Node].ID]
						if why := broken(j, n, held); why != "" {
							t.Fatalf("seed %d: an allocation of %s on %s breaks a rule: %s", seed, j.ID, n.Name, why)
						}
						placed++
						a := &structs.Allocation{ID: structs.AllocID(id("alloc", len(held)+1)), NodeID: n.ID, Namespace: "default", JobID: j.ID, Job: j, Group: "g",
							Resources: e.Asks[pl.Group], Desired: structs.DesiredRun, Client: structs.ClientRunning, NameIndex: pl.Index}
						held = append(held, a)
					}
				}
			}
			counts["placed"] += placed
			if placed < j.Groups[0].Count {
				counts["waiting"]++
				for _, n := range nodes {
					why := broken(j, n, held)
					if why == "" {
						t.Fatalf("seed %d: %s waits though %s breaks no rule: %s", seed, j.ID, n.Name, groupText(rep.Workloads[0].Groups))
					}
					counts[why]++
				}
				if code := rep.Workloads[0].Groups[0].Code; code != structs.ReasonConstraint {
					t.Fatalf("seed %d: %s waits for %s", seed, j.ID, code)
				}
			}
		}
	}
	t.Log(counts)
	for _, k := range []string{"placed", "waiting", "near", "away", "kept away", "too late"} {
		if counts[k] == 0 {
			t.Errorf("%q never happened", k)
		}
	}
}

// randomPeers gives some jobs rules about other jobs, data and cost.
func (w *world) randomPeers(j *structs.Job, g *structs.Group) {
	if w.pick(6) == 0 {
		j.Meta = map[string]string{"tier": "cache"}
	}
	if w.pick(6) == 0 {
		p := structs.Peer{Level: []string{"", "rack", "datacenter"}[w.pick(3)], Required: w.pick(2) == 0, Weight: 50}
		if p.JobID = j.ID; w.pick(2) == 0 {
			p.JobID, p.Label = "", "tier=cache"
		}
		if w.pick(2) == 0 {
			g.Near = []structs.Peer{p}
		} else {
			j.Away = []structs.Peer{p}
		}
	}
	if w.pick(8) == 0 {
		j.Datasets, j.Weights = []string{"imagenet"}, structs.ScoreWeights{Cost: int64(w.pick(50)), Locality: structs.WeightOff + int64(w.pick(20))}
	}
}

// TestGrowthNearGrowth: of two gangs that may grow, the first one's growth must not be placed near what the plan places
// only after it.
func TestGrowthNearGrowth(t *testing.T) {
	small := node(1)
	small.Resources.CPU = 1000
	cache := job("cache", 1)
	cache.Meta = map[string]string{"tier": "cache"}
	held := &structs.Allocation{ID: structs.AllocID{1}, Namespace: "default", JobID: "cache", Job: cache, Group: "g", NodeID: small.ID, Resources: structs.GroupVector(cache.Groups[0]),
		Desired: structs.DesiredRun, Client: structs.ClientRunning}
	near, other := job("a", 2), job("b", 2)
	near.Groups[0].Gang, other.Groups[0].Gang = &structs.Gang{Min: 1}, &structs.Gang{Min: 1}
	near.Near = []structs.Peer{{Label: "tier=cache", Required: true}}
	other.Meta = cache.Meta
	v := model.NewView(7, []*structs.Node{small, node(2)}, []*structs.Allocation{held}, nil)
	plan, _ := scheduler.Schedule(scheduler.Input{View: v, Pending: []contend.Workload{load(near, 1), load(other, 2)}}, binpack)
	placed, flight := 0, model.Overlay{}
	for i, e := range plan.Entries {
		if x := verify.Verify(v, flight, e); !x.All() {
			t.Errorf("%s: %+v", e.JobID, x.Refused)
		}
		flight = flight.Add(uint64(i+1), e, nil)
		for _, p := range e.Parts {
			placed += len(p.Places)
		}
	}
	if placed < 3 {
		t.Errorf("%d placed, want 3 or more", placed)
	}
}
