package decide

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/structs"
)

// TestSkippingDecidesAsNotSkipping runs a random history twice: blocked jobs are skipped until an event may cure them,
// or every event wakes all of them. Placements must be equal after every event.
func TestSkippingDecidesAsNotSkipping(t *testing.T) {
	events := 6_000
	if s := os.Getenv("MUSTER_CHECKS"); s != "" {
		events, _ = strconv.Atoi(s)
	} else if testing.Short() {
		events = 1_000
	}
	seed := time.Now().UnixNano()
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		seed, _ = strconv.ParseInt(s, 10, 64)
	}
	t.Logf("seed %d (repeat with MUSTER_SEED)", seed)
	checks, blocked, saved, ended := 0, 0, 0, 0
	for round := int64(0); events > 0; round++ {
		lazy, eager := newSteps(false), newSteps(true)
		for i := range 4 {
			node := testNode(i)
			node.Attributes = map[string]string{"rack": fmt.Sprint(i % 2)}
			for _, m := range []*steps{lazy, eager} {
				m.write(t, &structs.NodeRegisterCommand{Node: node})
				m.write(t, &structs.NodeStatusCommand{ID: node.ID, Status: structs.NodeReady})
			}
		}
		r := rand.New(rand.NewSource(seed + round))
		for range 60 {
			events--
			var body structs.CommandBody
			snap := lazy.fsm.Snapshot()
			var livers []*structs.Allocation
			for a := range snap.Allocs() {
				if !a.ClientTerminal() {
					livers = append(livers, a)
				}
			}
			switch k := r.Intn(10); {
			case k < 4:
				id := fmt.Sprint("j", r.Intn(12))
				body = &structs.JobRegisterCommand{Eval: true, Job: testJob(id, 1+r.Intn(3), func(j *structs.Job) {
					j.Priority = 30 + 10*r.Intn(4)
					j.Groups[0].Tasks[0].Resources.MemoryMiB = int64(1000 * (1 + r.Intn(6)))
					switch r.Intn(4) {
					case 0:
						j.Constraints = []structs.Constraint{{LTarget: "${attr.rack}", RTarget: fmt.Sprint(r.Intn(3)), Operand: "="}}
					case 1:
						j.Constraints = []structs.Constraint{{Operand: structs.OperandDistinctHosts}}
					}
				})}
			case k < 8 && len(livers) > 0:
				a := livers[r.Intn(len(livers))]
				st := structs.ClientRunning
				if a.ServerTerminal() || r.Intn(3) == 0 {
					st = structs.ClientComplete
					ended++
				}
				body = &structs.AllocObservedCommand{Updates: []structs.AllocObserved{{ID: a.ID, Client: st, StartedAt: lazy.now}}}
			case k == 8:
				body = &structs.JobDeregisterCommand{Namespace: "default", JobID: fmt.Sprint("j", r.Intn(12)), Purge: r.Intn(3) == 0}
			default:
				el := structs.NodeEligible
				if r.Intn(2) == 0 {
					el = structs.NodeIneligible
				}
				body = &structs.NodeEligibilityCommand{ID: testNode(r.Intn(4)).ID, Eligibility: el}
			}
			// A changed report is one more entry in one of the histories. Without this, IDs derived from indexes, and
			// choices by them, would differ for no reason that matters.
			lazy.index = max(lazy.index, eager.index)
			eager.index = lazy.index
			for _, m := range []*steps{lazy, eager} {
				m.now += 1_000_000
				m.write(t, body)
				m.settle(t)
			}
			a, b := placements(lazy.fsm.Snapshot()), placements(eager.fsm.Snapshot())
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("round %d of seed %d, after %T:\nskipping:     %v\nnot skipping: %v", round, seed, body, a, b)
			}
			checks++
		}
		blocked += lazy.broker.Len().Blocked
		saved += eager.taken - lazy.taken
	}
	t.Logf("%d checks; %d jobs blocked at the end of a round, %d decisions skipped, %d allocations ended", checks, blocked, saved, ended)
	if blocked == 0 || saved == 0 || ended == 0 {
		t.Error("nothing was blocked, skipped or ended: the run proves nothing")
	}
}
