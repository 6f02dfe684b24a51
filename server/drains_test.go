package server

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/structs"
)

// drainRounds is how many random drains TestRandomDrains makes; MUSTER_ROUNDS replaces it.
const drainRounds = 500

// drainsOfWorld is how many of them are made in one cluster.
const drainsOfWorld = 50

// roundsOf returns the number of rounds of a random test, and the first seed: MUSTER_ROUNDS and MUSTER_SEED, or those given. It
// prints the seed.
func roundsOf(t *testing.T, rounds int) (int, uint64) {
	t.Helper()
	first := uint64(time.Now().UnixNano())
	if s := os.Getenv("MUSTER_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("MUSTER_ROUNDS=%q: want a positive number", s)
		}
		rounds = n
	}
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("MUSTER_SEED=%q: want a number", s)
		}
		first = n
	}
	t.Logf("%d rounds, MUSTER_SEED=%d", rounds, first)
	return rounds, first
}

// TestRandomDrains (I7): nodes of a cluster that is nearly full are drained, one to three at once, with random deadlines and
// with tasks that take a random time to stop, while what has ended is collected. Each drain ends by its deadline, plus that
// time and 2 s, with nothing left on its node. No work is lost by a collection, and in the end everything runs again.
func TestRandomDrains(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	rounds, first := roundsOf(t, drainRounds)
	if testing.Short() {
		rounds = min(rounds, drainsOfWorld)
	}
	collected, forced, latest := 0, 0, time.Duration(0)
	for done := 0; done < rounds && !t.Failed(); done += drainsOfWorld {
		seed := first + uint64(done)
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 17))
			s := testServer(t, func(c *Config) {
				c.Collect = duty.CollectLimits{Interval: 2 * time.Second, EvalAge: 5 * time.Second, JobAge: 5 * time.Second}
			})
			const nodes = 6
			f := newFleet(t, one(s), nodes)
			f.kill = time.Duration(r.IntN(30_000)) * time.Millisecond
			counts := map[string]int{"web": 20 + r.IntN(10), "api": 8, "long": 8, "sys": 1}
			for _, id := range []string{"web", "api", "long", "sys"} {
				n := counts[id]
				register(t, s, passJob(id, n, func(j *structs.Job) {
					j.Groups[0].Tasks[0].Resources.CPU = 490 // 8 fill a node, with one of the system job
					j.Groups[0].Migrate = &structs.Migrate{MaxParallel: 1 + r.IntN(4)}
					j.Groups[0].Reschedule.Delay = 5 * time.Second
					switch id {
					case "long":
						j.Type = structs.JobBatch
					case "sys":
						j.Type, j.Groups[0].Tasks[0].Resources.CPU, j.Groups[0].Migrate = structs.JobSystem, 50, nil
					}
				}))
			}
			counts["sys"] = nodes
			all := func() bool {
				for id, n := range counts {
					if running(s, id) != n {
						return false
					}
				}
				return true
			}
			at := func(what string, d time.Duration, ok func() bool) {
				t.Helper()
				for end := time.Now().Add(d); !ok(); time.Sleep(100 * time.Millisecond) {
					if time.Now().After(end) {
						have := map[string]int{}
						for id := range counts {
							have[id] = running(s, id)
						}
						t.Fatalf("MUSTER_SEED=%d: %s: of %v run %v after %s", seed, what, counts, have, d)
					}
				}
			}
			at("first start", time.Minute, all)
			alive, kept := map[structs.AllocID]bool{}, 0
			// look checks that what ran at the last look is still known.
			look := func() {
				snap := s.Published().Snapshot
				for id := range alive {
					if snap.AllocByID(id) == nil {
						t.Fatalf("MUSTER_SEED=%d: allocation %s was collected while it ran", seed, id.Short())
					}
				}
				clear(alive)
				known := 0
				for a := range snap.Allocs() {
					known++
					if !a.ClientTerminal() {
						alive[a.ID] = true
					}
				}
				collected += max(0, kept-known)
				kept = known
			}
			for n := 0; n < drainsOfWorld; {
				batch := min(1+r.IntN(3), drainsOfWorld-n)
				n += batch
				ends := map[structs.NodeID]time.Time{}
				for _, i := range r.Perm(nodes)[:batch] {
					d := time.Duration(5_000+r.IntN(55_000)) * time.Millisecond
					startDrain(t, s, f.nodes[i].ID, &structs.DrainStrategy{Deadline: d})
					ends[f.nodes[i].ID] = time.Now().Add(d)
				}
				for len(ends) > 0 {
					time.Sleep(100 * time.Millisecond)
					look()
					for id, deadline := range ends {
						switch over := time.Since(deadline); {
						case s.Published().Snapshot.NodeByID(id).Drain == nil:
							if left := holdsOn(s, id); len(left) > 0 {
								t.Fatalf("MUSTER_SEED=%d: a drain is complete with %d allocations that have not ended", seed, len(left))
							}
							if over > 0 {
								forced++
								latest = max(latest, over-f.kill)
							}
							delete(ends, id)
							mustApply(t, s, &structs.NodeEligibilityCommand{ID: id, Eligibility: structs.NodeEligible})
						case over > f.kill+2*time.Second:
							t.Fatalf("MUSTER_SEED=%d: a drain goes on %s after its deadline, tasks take %s to stop: %+v", seed, over, f.kill, holdsOn(s, id))
						}
					}
				}
				if over := overcommitted(s); over != "" {
					t.Fatalf("MUSTER_SEED=%d: %s", seed, over)
				}
			}
			at(fmt.Sprintf("%v again", counts), 5*time.Minute, all)
		})
	}
	t.Logf("%d of %d drains reached their deadline, the last of them ended %s after the time that tasks take to stop; %d allocations were collected", forced, rounds, latest, collected)
	if forced == 0 || collected == 0 {
		t.Errorf("%d drains reached their deadline and %d allocations were collected: the run proves nothing", forced, collected)
	}
}
