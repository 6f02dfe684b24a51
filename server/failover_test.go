package server

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// queueText returns everything about queues in one state, as text: the order of waiting jobs with predicted run times,
// what queues hold and have used, reservations, and the decision log.
func queueText(by *decide.Service, pub *replica.Published) (order, usage, reserved, decisions string) {
	snap := pub.Snapshot
	var ws []*structs.Workload
	for w := range snap.Workloads() {
		ws = append(ws, w)
	}
	at := by.Order(pub, ws, snap.Time())
	var b strings.Builder
	for _, i := range at {
		w := ws[i]
		fmt.Fprintf(&b, "%s@%d waits %d attained %d preempted %d %s; ", w.JobID, w.SubmitIndex, w.Waiting, w.Attained, w.Preempted, w.Reason)
	}
	order = b.String()
	b.Reset()
	for u := range snap.QueueUses() {
		fmt.Fprintf(&b, "%+v; ", *u)
	}
	usage = b.String()
	b.Reset()
	for r := range snap.Reservations() {
		fmt.Fprintf(&b, "%+v; ", *r)
	}
	reserved = b.String()
	b.Reset()
	for d := range snap.Decisions(0) {
		fmt.Fprintf(&b, "%+v; ", d)
	}
	return order, usage, reserved, b.String()
}

// doublyPlaced names a place of a job that two live allocations fill, or a GPU that two allocations hold whole.
func doublyPlaced(snap *state.Snapshot) string {
	places, gpus := map[string]structs.AllocID{}, map[string]structs.AllocID{}
	for a := range snap.Allocs() {
		if !structs.Holds(a) {
			continue
		}
		if !a.ServerTerminal() {
			k := fmt.Sprint(a.JobKey(), a.Group, a.NameIndex)
			if o, twice := places[k]; twice {
				return fmt.Sprintf("%s is filled by %s and %s", k, o.Short(), a.ID.Short())
			}
			places[k] = a.ID
		}
		for i := range a.Grants {
			g := &a.Grants[i]
			if !g.IsGPU() || len(a.WaitsOn) > 0 { // it does not have the place yet that it waits for
				continue
			}
			if o, twice := gpus[g.Instance]; twice {
				return fmt.Sprintf("GPU %s is held by %s and %s", g.Instance, o.Short(), a.ID.Short())
			}
			gpus[g.Instance] = a.ID
		}
	}
	return ""
}

// TestLeaderDiesInAPass: leaders die at random instants while queues with limits, fair shares, reservations and
// preemption are decided. The next leader sees what the dead one had written: the order of the queue, usage,
// reservations and the decision log are the same at every index on every server, the log only grows, nothing is placed
// twice, and in the end everything has run. MUSTER_SEED repeats one run, MUSTER_ROUNDS sets the number of rounds.
func TestLeaderDiesInAPass(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	rounds, first := 2, uint64(time.Now().UnixNano())
	if v, err := strconv.Atoi(os.Getenv("MUSTER_ROUNDS")); err == nil {
		rounds = v
	}
	if v, err := strconv.ParseUint(os.Getenv("MUSTER_SEED"), 10, 64); err == nil {
		rounds, first = 1, v
	}
	var sums struct{ kills, midPass, midCommit, compared, decisions, preempted, reserved int }
	for round := range rounds {
		seed := first + uint64(round)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 7))
				// Passes take a while, so that instants fall into them.
				slow, delays := &sync.Mutex{}, rand.New(rand.NewPCG(seed, 8))
				passing := 0
				delay := func(scheduler.Input) {
					slow.Lock()
					passing++
					d := time.Duration(delays.IntN(30)) * time.Millisecond
					slow.Unlock()
					time.Sleep(d)
					slow.Lock()
					passing--
					slow.Unlock()
				}
				c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.Testing.Decide.BeforeSchedule = delay })
				cut := -1
				var mu sync.Mutex
				f := newFleet(t, func() *Server {
					mu.Lock()
					defer mu.Unlock()
					return c.lead(&cut)()
				}, 0)
				s := c.servers[c.leader()]
				f.set(func() {
					f.keeps = true
					for _, n := range traceNodes(t, "3x4") {
						n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", n.Name, 0)
						mustApply(t, s, &structs.NodeRegisterCommand{Node: n})
						mustApply(t, s, &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
						f.nodes = append(f.nodes, n)
					}
				})
				mustApply(t, s, &structs.QueueUpsertCommand{Queues: []*structs.Queue{
					{Path: "a", Order: structs.OrderFair, Weight: 2, Backfill: structs.BackfillEASY},
					{Path: "b", Order: structs.OrderPriority, Backfill: structs.BackfillConservative, Limit: &structs.Amount{GPUMilli: 8000, GPUMemoryMiB: -1, CPU: -1, MemoryMiB: -1}},
					{Path: "c"}}})
				kept := map[structs.Index]string{} // decision log and usage by index, as first seen
				n := 0
				for kill := range 4 {
					for range 4 + r.IntN(5) {
						n++
						j := (&traceJob{id: fmt.Sprint("j", n), run: time.Duration(20+r.IntN(240)) * time.Second, gpus: 1 << r.IntN(3), expected: true}).job()
						j.Queue, j.Preemptible, j.Priority = []structs.QueuePath{"a", "b", "c"}[r.IntN(3)], r.IntN(2) == 0, 40+r.IntN(20)
						f.set(func() { f.runs[j.ID] = j.Runtime.Expected })
						for { // a client tries again until a server answers
							l := c.lead(&cut)()
							if l != nil {
								if _, err := callErr(l, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: j}); err == nil {
									break
								}
							}
							time.Sleep(50 * time.Millisecond)
						}
						time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
					}
					time.Sleep(time.Duration(r.IntN(30_000)) * time.Millisecond)
					old := c.leader()
					// One more job, so that something is being decided, and then the end at some instant.
					n++
					last := (&traceJob{id: fmt.Sprint("j", n), run: 30 * time.Second, gpus: 1, expected: true}).job()
					f.set(func() { f.runs[last.ID] = last.Runtime.Expected })
					p := c.servers[old].decide.ProposeJob(replica.LaneUser, structs.Command{Body: &structs.JobRegisterCommand{Job: last, Eval: true}})
					time.Sleep(time.Duration(r.IntN(40_000)) * time.Microsecond)
					slow.Lock()
					if passing > 0 {
						sums.midPass++
					}
					slow.Unlock()
					if c.servers[old].decide.Metrics().InFlight > 0 {
						sums.midCommit++
					}
					var rest []string
					for i := range c.servers {
						if i != old {
							rest = append(rest, hostName(i))
						}
					}
					mu.Lock()
					cut = old
					mu.Unlock()
					c.net.Partition([]string{hostName(old)}, rest)
					sums.kills++
					next := c.leader(old)
					l := c.servers[next]
					// The next leader has everything of the common history that the dead one had applied.
					pub := c.servers[old].Published()
					before := pub.Snapshot
					fresh := newLeader(l, before)
					is, _, _, _ := queueText(fresh, pub)
					// The dead leader has learned up to what its passes were fed. Only at that state can the two be
					// compared.
					was := is
					if fresh.PredictionErrors().N == c.servers[old].decide.PredictionErrors().N {
						was, _, _, _ = queueText(c.servers[old].decide, pub)
						sums.compared++
					}
					if was != is {
						t.Errorf("the dead leader had the order\n%s\nfrom its state the next one has\n%s", was, is)
					}
					for range 3 {
						checkHistory(t, c, kept, before)
						time.Sleep(time.Second)
					}
					if why := doublyPlaced(l.Published().Snapshot); why != "" {
						t.Error(why)
					}
					if over := overcommitted(l); over != "" {
						t.Error(over)
					}
					c.net.Heal()
					mu.Lock()
					cut = -1
					mu.Unlock()
					if _, err := p.Wait(t.Context()); err != nil { // the outcome was unknown or a refusal: the client asks again
						for l := c.lead(&cut)(); ; l = c.lead(&cut)() {
							if l != nil {
								if _, err := callErr(l, methods.JobRegister, rpc.Header{}, &methods.JobRegisterRequest{Job: last}); err == nil {
									break
								}
							}
							time.Sleep(50 * time.Millisecond)
						}
					}
					c.converge()
					sameQueues(t, c, fmt.Sprint("after kill ", kill+1))
				}
				end := time.Now().Add(6 * time.Hour)
				for left := n; left > 0; time.Sleep(time.Minute) {
					left = 0
					snap := c.servers[c.leader()].Published().Snapshot
					for i := range n {
						if j := snap.JobByKey(structs.JobKey{Namespace: "default", ID: fmt.Sprint("j", i+1)}); j != nil && j.Status != structs.JobDead {
							left++
						}
					}
					if why := doublyPlaced(snap); why != "" {
						t.Fatal(why)
					}
					for range snap.Reservations() {
						sums.reserved++
					}
					if time.Now().After(end) {
						t.Fatalf("%d of %d jobs have not run in 6 hours", left, n)
					}
				}
				c.converge()
				sameQueues(t, c, "at the end")
				snap := c.servers[c.leader()].Published().Snapshot
				for d := range snap.Decisions(0) {
					sums.decisions++
					if d.Kind == structs.DecidedPreempt {
						sums.preempted++
					}
				}
				for u := range snap.QueueUses() {
					if u.Held != (structs.Amount{}) || u.Jobs != 0 {
						t.Errorf("everything has ended, and %s holds %+v", u.Path, u.Held)
					}
				}
			})
		})
	}
	t.Logf("seeds from %d: %+v", first, sums)
	if rounds > 4 && (sums.midPass == 0 || sums.midCommit == 0 || sums.preempted == 0 || sums.reserved == 0) {
		t.Errorf("something never happened: %+v", sums)
	}
}

// checkHistory compares the history on live servers with what was seen of it before: rows of the decision log never
// change or disappear.
func checkHistory(t *testing.T, c *cluster, kept map[structs.Index]string, dead *state.Snapshot) {
	t.Helper()
	for i, s := range c.servers {
		if !s.IsLeader() {
			continue
		}
		rows := map[structs.Index][]string{}
		newest := structs.Index(0)
		for d := range s.Published().Snapshot.Decisions(0) {
			rows[d.Index] = append(rows[d.Index], fmt.Sprintf("%+v", d))
			newest = max(newest, d.Index)
		}
		for at, rs := range rows {
			text := strings.Join(rs, "; ")
			if old, seen := kept[at]; seen && old != text {
				t.Errorf("server %d has other decisions at index %d than were seen before:\n%s\n%s", i, at, text, old)
			}
			kept[at] = text
		}
	}
	leader := c.servers[c.leader()].Published().Snapshot
	if leader.Index() < dead.Index() {
		return // not there yet
	}
	have := map[uint64]string{}
	for d := range leader.Decisions(0) {
		have[d.Seq] = fmt.Sprintf("%+v", d)
	}
	for d := range dead.Decisions(0) {
		if have[d.Seq] != fmt.Sprintf("%+v", d) {
			t.Errorf("the dead leader had decided %+v, the next one says %s", d, have[d.Seq])
		}
	}
}

// newLeader returns the deciding service of a server that becomes the leader at a state.
func newLeader(s *Server, snap *state.Snapshot) *decide.Service {
	d := decide.New(decide.Environment{Region: s.cfg.Region, Replica: s.replica, Logger: s.log})
	d.Learn(snap)
	return d
}

// sameQueues compares the queues on all servers.
func sameQueues(t *testing.T, c *cluster, when string) {
	t.Helper()
	var first []string
	for i, s := range c.servers {
		pub := s.Published()
		order, usage, reserved, decisions := queueText(newLeader(s, pub.Snapshot), pub)
		got := []string{order, usage, reserved, decisions}
		if i == 0 {
			first = got
			continue
		}
		if !slices.Equal(got, first) {
			for k, what := range []string{"order", "usage", "reservations", "decision log"} {
				if got[k] != first[k] {
					t.Errorf("%s: server %d has another %s than server 0:\n%s\n%s", when, i, what, got[k], first[k])
				}
			}
		}
	}
}
