package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/histories"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/policy"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/sim"
	"github.com/muster-sched/muster/structs"
)

// TestCombinations runs random histories of internal/histories on servers, through their HTTP API, a minute of the history in a
// second: every order with every backfill and preemption rule, with drains, rolling updates and storages that limit saves (operations). Every fifth history has three servers, whose
// leader stops in the middle. MUSTER_COMBINATIONS sets how many histories, MUSTER_COMBINATIONS_SEED the first; alone, it
// repeats one.
func TestCombinations(t *testing.T) {
	t.Parallel() // it takes long, and shares nothing with other tests
	n, first := uint64(servedDefault), uint64(1)
	if testing.Short() {
		n = 3
	}
	for name, to := range map[string]*uint64{"MUSTER_COMBINATIONS": &n, "MUSTER_COMBINATIONS_SEED": &first} {
		if s := os.Getenv(name); s != "" {
			v, err := strconv.ParseUint(s, 10, 64)
			if err != nil || v == 0 {
				t.Fatalf("%s=%q: want a positive number", name, s)
			}
			*to = v
		}
	}
	if os.Getenv("MUSTER_COMBINATIONS_SEED") != "" && os.Getenv("MUSTER_COMBINATIONS") == "" {
		n = 1
	}
	counts, cover := map[string]int{}, newServedCoverage()
	seeds := []uint64{}
	for i := range n {
		seeds = append(seeds, first+i*historyStep)
	}
	if n == servedDefault {
		seeds = append(seeds, costlySeed)
	}
	for _, seed := range seeds {
		if t.Failed() {
			break
		}
		synctest.Test(t, func(t *testing.T) {
			r := newServedHistory(t, seed)
			r.replayHistory()
			for k, v := range r.judge.Counts {
				counts[k] += v
			}
			cover.add(r.h.Is)
			if t.Failed() {
				t.Errorf("MUSTER_COMBINATIONS_SEED=%d: %v", seed, r.h.Is)
			}
		})
	}
	var text []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		text = append(text, fmt.Sprintf("%s %d", k, counts[k]))
	}
	t.Logf("%d histories from seed %d; %s", len(seeds), first, strings.Join(text, ", "))
	if !t.Failed() {
		cover.check(t, n)
	}
	for _, k := range append(mustOccur, "late, and reserved for", "stops by updates during drains") {
		if counts[k] == 0 && (n >= 100 || n >= servedDefault && slices.Contains(mustOccur, k)) {
			t.Errorf("nothing was counted under %q: that check has no case", k)
		}
	}
}

// servedDefault is how many histories run by default.
const servedDefault = 12

// costlySeed is of a history in which a preemption that loses more than it gains would be chosen if nothing weighed that.
const costlySeed = 1 + 41*historyStep

// historyStep is between the seeds of histories: those that follow each other have the same preemption rule.
const historyStep = 89

// historyScale is how much faster a history is on servers.
const historyScale = 60

// yielding are options of every other history, which preempts by priority or order: at a sixtieth of its time, work that is equal
// hardly ever gains from a preemption what stopping and starting cost.
var yielding = map[string]string{"preemptible": "all", "priorities": "spread", "limits of preemption": "default", "saves": "no", "arrivals": "dense"}

// mustOccur are the counts without which the default number of histories proves too little. Few jobs wait for max_wait and are
// reserved for: only 100 histories must have one.
var mustOccur = []string{"gains", "limits of models reached", "looked for room", "passes by lottery after a change of leaders", "places in a draw that holds", "shrunk", "told PRIORITY", "told QUOTA", "told RESERVATION", "twins",
	"drains ended", "moved work placed again", "moved work that says why it waits", "updates done", "updates stopped", "updates taken back", "stops by updates", "periodic saves", "periodic saves that waited", "saves of work that ends"}

// servedHistory is a history on servers.
type servedHistory struct {
	t     *testing.T
	h     *histories.History
	judge *histories.Judge
	s     func() *Server // the leader
	stop  func()         // stops the leader; nil: there is only one server
	api   *nomadlike.Server
	root  string            // management token
	users map[string]string // tokens by name
	fleet *fleet
	begin time.Time
	rng   *rand.Rand
	down  map[structs.NodeID]time.Time // nodes that failed, and when they come back
	ops   *operations

	limited *state.Snapshot // whose limits were checked last

	mu     sync.Mutex
	passes []servedPass // that are not checked yet
}

// servedPass is what a pass decides about, and the state when it begins.
type servedPass struct {
	in   scheduler.Input
	snap *state.Snapshot
}

// note keeps a pass until it is checked.
func (r *servedHistory) note(s func() *Server) func(scheduler.Input) {
	return func(in scheduler.Input) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.passes = append(r.passes, servedPass{in, s().Published().Snapshot})
	}
}

func faster[T ~int64](d T) T {
	if d < T(time.Second) || time.Duration(d) == structs.MaxWaitOff { // unknown, or nothing at all
		return d
	}
	return d / historyScale
}

// at returns the time of an instant of the history.
func (r *servedHistory) at(t structs.LogTime) structs.LogTime {
	return structs.LogTimeOf(r.begin.Add(t.Sub(histories.Begin) / historyScale))
}

// servedWith returns the fixed values of a history.
func servedWith(seed uint64) map[string]string {
	nth := seed / historyStep
	block := nth / 9
	with := histories.Operated(nth + 7*block*block) // so that 200 histories have every pair with another option
	if seed%2 == 0 {
		maps.Copy(with, yielding)
		with["preempt"] = []string{structs.PreemptPriority, structs.PreemptOrder}[seed/2%2]
	}
	if seed%15 == 0 { // one whose leader stops, too
		with["order"] = string(structs.OrderLottery)
	}
	return with
}

// servedCoverage counts histories by values and pairs of values of histories.Operations, and by pairs with values of other options.
type servedCoverage struct{ pairs, others map[string]int }

func newServedCoverage() servedCoverage {
	c := servedCoverage{map[string]int{}, map[string]int{}}
	for i, a := range histories.Operations {
		for _, v := range a.Values {
			for _, b := range histories.Operations[:i] {
				for _, w := range b.Values {
					c.pairs[b.Name+"="+w+" "+a.Name+"="+v] = 0
				}
			}
			for _, b := range histories.Options {
				for _, w := range b.Values {
					c.others[b.Name+"="+w+" "+a.Name+"="+v] = 0
				}
			}
		}
	}
	return c
}

func (c servedCoverage) add(is map[string]string) {
	for i, a := range histories.Operations {
		for _, b := range histories.Operations[:i] {
			c.pairs[b.Name+"="+is[b.Name]+" "+a.Name+"="+is[a.Name]]++
		}
		for _, b := range histories.Options {
			c.others[b.Name+"="+is[b.Name]+" "+a.Name+"="+is[a.Name]]++
		}
	}
}

// check fails for a pair of operations that no history had, and with 200 histories for a pair with another option, too.
func (c servedCoverage) check(t *testing.T, n uint64) {
	t.Helper()
	for _, x := range []struct {
		what string
		of   map[string]int
		from uint64 // histories
	}{{"pairs of operations", c.pairs, servedDefault}, {"pairs of an operation and another option", c.others, 200}} {
		least, missing := int(n), 0
		for _, pair := range slices.Sorted(maps.Keys(x.of)) {
			if least = min(least, x.of[pair]); x.of[pair] == 0 {
				if missing++; n >= x.from {
					t.Errorf("no history has %s", pair)
				}
			}
		}
		t.Logf("%d %s, each in at least %d histories; %d are missing", len(x.of), x.what, least, missing)
	}
}

func newServedHistory(t *testing.T, seed uint64) *servedHistory {
	r := &servedHistory{t: t, h: histories.New(seed, servedWith(seed)), users: map[string]string{}, down: map[structs.NodeID]time.Time{}, rng: rand.New(rand.NewPCG(seed, 15))}
	if seed%5 == 0 {
		var c *cluster
		c = newCluster(t, 3, func(i int, cfg *Config) {
			cfg.ACL, cfg.Testing.Decide.BeforeSchedule = true, r.note(func() *Server { return c.servers[i] })
		})
		var at atomic.Int64 // the fleet reads it, too
		at.Store(int64(c.leader()))
		r.s = func() *Server { return c.servers[at.Load()] }
		r.stop = func() {
			was := int(at.Load())
			c.stops[was]()
			at.Store(int64(c.leader(was)))
		}
	} else {
		var s *Server
		s = testServer(t, func(c *Config) {
			c.ACL, c.Testing.Decide.BeforeSchedule = true, r.note(func() *Server { return s })
		})
		r.s = one(s)
	}
	r.handler()
	r.fleet = newFleet(t, r.s, 0)
	r.root = r.call("PUT", "/v1/acl/bootstrap", "", nil)["SecretID"].(string)
	for _, name := range []string{"ann", "bob", "cat"} {
		r.users[name] = r.call("PUT", "/v1/acl/token", r.root, map[string]any{"Name": name, "Type": "management"})["SecretID"].(string)
	}
	for _, q := range r.h.Queues {
		q.MaxWait, q.Aging, q.PreemptMinRuntime, q.PreemptAfter, q.BackfillWindow, q.HalfLife = faster(q.MaxWait), faster(q.Aging), faster(q.PreemptMinRuntime), faster(q.PreemptAfter), faster(q.BackfillWindow), faster(q.HalfLife)
		if q.Path == structs.QueueRoot { // defaults, as fast
			d := histories.Defaults()
			q.MaxWait, q.Aging, q.PreemptMinRuntime = orFaster(q.MaxWait, d.MaxWait), orFaster(q.Aging, d.Aging), orFaster(q.PreemptMinRuntime, d.PreemptMinRuntime)
		}
		q.GPUMinutesMax /= historyScale
		r.call("PUT", "/v1/queues", r.root, wire.QueueFromStructs(q))
	}
	r.call("PUT", "/v1/operator/scheduler/configuration", r.root, map[string]any{"SchedulerAlgorithm": r.h.Is["placement"]})
	r.judge = histories.NewJudge(r.h.Queues, &r.h.Scheduler, func(format string, args ...any) { r.failf(format, args...) })
	r.nodes()
	r.begin = time.Now()
	for _, x := range r.h.Reserved {
		if x.Start, x.End = r.at(x.Start), r.at(x.End); x.First {
			x.Nodes = []structs.NodeID{r.fleet.nodes[0].ID}
		}
		r.call("PUT", "/v1/reservations", r.root, wire.ReservationFromStructs(x.Reservation))
	}
	r.ops = newOperations(r)
	return r
}

func orFaster(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return faster(byDefault)
	}
	return d
}

// failf reports a violation, the first of which ends the history.
func (r *servedHistory) failf(format string, args ...any) {
	r.t.Helper()
	if !r.t.Failed() {
		r.t.Errorf("after %v: %s", time.Since(r.begin), fmt.Sprintf(format, args...))
	}
}

// handler makes the HTTP API of the leader.
func (r *servedHistory) handler() {
	s := r.s()
	r.api = nomadlike.New(nomadlike.Config{Backend: s.Caller(rpc.Peer{}), Log: hclog.NewNullLogger(), Region: structs.RegionDefault, Enter: s.EnterUser})
}

// call sends a request and returns its answer. A list is under "".
func (r *servedHistory) call(method, path, token string, body any) map[string]any {
	r.t.Helper()
	var b bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			r.t.Fatal(err)
		}
	}
	req := httptest.NewRequestWithContext(r.t.Context(), method, path, &b)
	req.Host = "localhost"
	req.Header.Set("X-Nomad-Token", token)
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, req)
	if w.Code != http.StatusOK {
		r.t.Fatalf("%s %s: %d: %s", method, path, w.Code, w.Body)
	}
	out := map[string]any{}
	if raw := bytes.TrimSpace(w.Body.Bytes()); len(raw) > 0 && raw[0] == '[' {
		var list []any
		if err := json.Unmarshal(raw, &list); err != nil {
			r.t.Fatal(err)
		}
		out[""] = list
	} else if len(raw) > 0 && raw[0] == '{' {
		if err := json.Unmarshal(raw, &out); err != nil {
			r.t.Fatal(err)
		}
	}
	return out
}

// nodes registers the nodes.
func (r *servedHistory) nodes() {
	var kinds []sim.Machine
	for _, n := range r.h.Nodes {
		m, err := sim.ParseNodes(fmt.Sprintf("1x%d", n.GPUs))
		if err != nil {
			r.t.Fatal(err)
		}
		m[0].Model = n.Model
		kinds = append(kinds, m...)
	}
	r.fleet.set(func() {
		r.fleet.keeps = r.h.Is["saves"] != "no"
		for i, n := range sim.BuildNodes(kinds) {
			n.Meta = r.h.Nodes[i].Meta
			n.Drivers["exec"] = n.Drivers[sim.Driver]
			if len(r.h.Services) > 0 {
				n.Resources.CPU, n.Resources.Cores = n.Resources.CPU+histories.ServiceRoom, n.Resources.Cores+histories.ServiceRoom/n.Resources.MHzPerCore
				n.Resources.MemoryMiB += histories.ServiceRoom
			}
			n.SecretID = structs.DeriveID[structs.SecretID](structs.Seed{2}, "secret", n.Name, 0)
			mustApply(r.t, r.s(), &structs.NodeRegisterCommand{Node: n})
			mustApply(r.t, r.s(), &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
			r.fleet.nodes = append(r.fleet.nodes, n)
		}
	})
}

// submit submits a job as its user.
func (r *servedHistory) submit(j *histories.Job) {
	r.t.Helper()
	c := *j.Job
	c.Region, c.Namespace, c.Name = structs.RegionDefault, structs.NamespaceDefault, c.ID
	if c.Deadline != 0 {
		c.Deadline = r.at(c.Deadline)
	}
	c.Runtime.Expected, c.Runtime.Limit = faster(c.Runtime.Expected), faster(c.Runtime.Limit)
	for _, g := range c.Groups {
		g.Tasks[0].Driver = "exec"
		if g.Checkpoint != nil {
			g.Checkpoint.Cost, g.Checkpoint.Grace, g.Checkpoint.Interval = faster(g.Checkpoint.Cost), faster(g.Checkpoint.Grace), faster(g.Checkpoint.Interval)
		}
	}
	r.fleet.set(func() { r.fleet.runs[c.ID] = max(j.Run/historyScale, time.Millisecond) })
	w := wire.JobFromStructs(&c)
	for _, g := range w.TaskGroups { // what is left out has its default
		g.RestartPolicy, g.ReschedulePolicy, g.EphemeralDisk = nil, nil, nil
		g.Tasks[0].RestartPolicy, g.Tasks[0].LogConfig = nil, nil
		g.Tasks[0].Config = map[string]any{"command": "/bin/true"}
	}
	r.call("PUT", "/v1/jobs", r.users[c.Submitter.Name], map[string]any{"Job": w})
}

// replayHistory submits the jobs at their times and checks: no node is over-committed, no limit or cap is exceeded, preemptions follow
// the rules and leave guarantees, equal work starts in the order shown, every job that waits is shown once, every job ends in
// bounded time, and at rest nothing happens.
func (r *servedHistory) replayHistory() {
	work, last := time.Duration(0), time.Duration(0)
	for _, j := range r.h.Jobs {
		last = max(last, j.At/historyScale)
		work += max(j.Run, time.Minute) * time.Duration(j.Groups[0].Count) / historyScale
	}
	next := r.h.Jobs
	end := last + 4*work + 48*time.Hour/historyScale
	fails := r.h.Is["failures"] == "some"
	for tick := 0; ; tick++ {
		since := time.Since(r.begin)
		for len(next) > 0 && next[0].At/historyScale <= since {
			r.submit(next[0])
			next = next[1:]
		}
		time.Sleep(50 * time.Millisecond)
		r.pass()
		r.ops.step()
		if r.t.Failed() {
			return
		}
		if tick%20 != 19 {
			continue
		}
		r.state()
		if r.ops.savers != nil {
			r.ops.savers.step()
		}
		if r.stop != nil && len(next) < len(r.h.Jobs)/2 {
			r.stop()
			r.stop = nil
			r.handler()
			r.judge.Counts["leaders stopped"]++
			r.ops.uneasy = time.Now()
		}
		if fails && r.rng.IntN(240*len(r.h.Nodes)) == 0 {
			r.fail()
		}
		r.repair()
		if len(next) == 0 && len(r.down) == 0 && len(r.waiting()) == 0 && r.ops.idle() {
			break
		}
		if since > end {
			for _, id := range r.waiting() {
				why, _ := json.Marshal(r.call("GET", "/v1/job/"+id+"/why", r.root, nil))
				r.failf("job %s of %d is not served: %s", id, len(r.waiting()), why)
			}
			return
		}
	}
	r.ops.close()
	r.atRest()
}

// waiting lists the jobs that have not ended.
func (r *servedHistory) waiting() (out []string) {
	snap := r.s().Published().Snapshot
	for _, j := range r.h.Jobs {
		job := snap.JobByKey(structs.JobKey{Namespace: structs.NamespaceDefault, ID: j.ID})
		if job == nil || job.Status != structs.JobDead {
			out = append(out, j.ID)
		}
	}
	return out
}

// fail lets a node fail.
func (r *servedHistory) fail() {
	n := r.fleet.nodes[r.rng.IntN(len(r.fleet.nodes))]
	if r.down[n.ID].IsZero() && r.ops.away[n.ID] == nil {
		r.judge.Counts["nodes failed"]++
		r.down[n.ID] = time.Now().Add(30 * time.Second)
		r.fleet.set(func() { r.fleet.dead[n.ID] = true })
	}
}

// repair lets the nodes come back whose time it is.
func (r *servedHistory) repair() {
	for _, n := range r.fleet.nodes {
		if at := r.down[n.ID]; !at.IsZero() && !time.Now().Before(at) {
			delete(r.down, n.ID)
			mustApply(r.t, r.s(), &structs.NodeStatusCommand{ID: n.ID, Status: structs.NodeReady})
			r.fleet.set(func() { r.fleet.dead[n.ID] = false })
		}
	}
}

// pass checks the passes since the last call, each decided again from its input.
func (r *servedHistory) pass() {
	r.limits()
	r.mu.Lock()
	passes := r.passes
	r.passes = nil
	r.mu.Unlock()
	for i := range passes {
		p := &passes[i]
		in := &p.in
		direct := *in
		direct.Line = queue.NewLine(in.Queues, in.Config, in.Pending, in.Now, in.Seed)
		r.judge.See(in)
		r.judge.Drawn(in)
		plan, rep := scheduler.Schedule(direct, policy.For(in.View.Pool(structs.NodePoolDefault), in.Config))
		if r.judge.Preempted(in, &plan) == 0 {
			r.judge.InOrder(in, &plan, &rep)
			after := histories.NewAfter(in, &plan)
			r.judge.Explained(after, in, &rep, r.waits(p.snap, &plan))
			if r.h.Reserves() {
				r.judge.Late(after, in, &rep)
			}
		}
		r.judge.Counts["passes"]++
		if r.judge.Counts["leaders stopped"] > 0 && r.h.Is["order"] == string(structs.OrderLottery) {
			r.judge.Counts["passes by lottery after a change of leaders"]++
		}
	}
}

// waits returns the queue in which a job waits after a plan, "" if it does not wait.
func (r *servedHistory) waits(snap *state.Snapshot, plan *scheduler.Plan) func(structs.JobKey) structs.QueuePath {
	return func(k structs.JobKey) structs.QueuePath {
		w := snap.Workload(k)
		for _, pe := range plan.Entries {
			if pe.Workload != nil && pe.Namespace == k.Namespace && pe.JobID == k.ID {
				w = pe.Workload
			}
		}
		if w == nil || w.Waiting == 0 {
			return ""
		}
		return w.Queue
	}
}

// limits checks the limits and caps of queues.
func (r *servedHistory) limits() {
	if snap := r.s().Published().Snapshot; snap != r.limited { // the same state holds the same
		r.limited = snap
		uses := histories.Uses{}
		for j := range snap.Jobs("", "") {
			uses.Add(j, r.settled(snap, snap.AllocsByJob(j.Key())))
		}
		r.judge.Limits(uses)
	}
	r.judge.Drained = len(r.ops.away) > 0
}

// settled leaves out allocations that end because a drain moved them, and whose replacements hold resources: a limit that is used
// up must not hold up a drain (structs.Moves).
func (r *servedHistory) settled(snap *state.Snapshot, allocs []*structs.Allocation) (out []*structs.Allocation) {
	for _, a := range allocs {
		next := snap.AllocByID(a.Lineage().Next)
		if a.Transition.Migrate && a.ServerTerminal() && !a.ClientTerminal() && next != nil && structs.Holds(next) {
			r.judge.Counts["counted with what replaces it"]++
			continue
		}
		out = append(out, a)
	}
	return out
}

// state checks what is held, and what is shown.
func (r *servedHistory) state() {
	if over := overcommitted(r.s()); over != "" {
		r.failf("%s", over)
	}
	r.limits()
	shown := map[string]int{}
	for _, x := range r.call("GET", "/v1/queue", r.root, nil)[""].([]any) {
		shown[x.(map[string]any)["JobID"].(string)]++
	}
	for id, n := range shown {
		if n != 1 {
			r.failf("job %s is shown %d times in the queue", id, n)
		}
	}
	r.ops.placedAgain(shown)
	r.judge.Counts["states"]++
}

// atRest checks that nothing happens once all jobs have ended.
func (r *servedHistory) atRest() {
	time.Sleep(30 * time.Second)
	s := r.s()
	index := s.Published().Index
	late := 0 // evaluations whose time comes: an allocation might have reached its limit
	for e := range s.Published().Snapshot.Evals() {
		if !e.Terminal() && e.WaitUntil > s.replica.Now() {
			late++
		}
	}
	time.Sleep(time.Minute)
	if n := int(s.Published().Index - index); n > 10+late {
		r.failf("%d entries of the log in a minute in which nothing happens", n)
	}
	if n := openEvals(s); n != 0 {
		r.failf("%d evaluations are open at rest", n)
	}
	if n, most := int(index), 200*(len(r.h.Jobs)+3*len(r.h.Services))+2*r.judge.Counts["periodic saves"]; n > most {
		r.failf("%d entries of the log for %d jobs, more than %d", n, len(r.h.Jobs), most)
	}
	if waiting := r.call("GET", "/v1/queue", r.root, nil)[""].([]any); len(waiting) > 0 {
		r.failf("%d jobs are shown as waiting, and all have ended", len(waiting))
	}
}
