package broker

import (
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/structs"
)

// ops returns the number of operations of the model test: MUSTER_CHECKS, or a million.
func ops(t *testing.T) int {
	if s := os.Getenv("MUSTER_CHECKS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("MUSTER_CHECKS=%q is not a number", s)
		}
		return n
	}
	if testing.Short() {
		return 50_000
	}
	return 1_000_000
}

// oracle is a naive broker: it keeps every fact and every event, and looks at all of them.
type oracle struct {
	limits   Limits
	index    structs.Index
	evals    map[structs.EvalID]*structs.Evaluation
	works    map[structs.JobKey]*structs.Workload // as the broker should have them
	state    map[structs.JobKey]*structs.Workload // replicated
	flights  map[structs.JobKey]*oflight
	seen     map[structs.JobKey]stamp
	dropped  uint64
	forced   map[structs.JobKey]bool // retry even without an event
	tries    map[structs.JobKey]int
	notUntil map[structs.JobKey]structs.LogTime
	specs    map[structs.JobKey]bool
	due      map[structs.EvalID]bool // its time has come
	events   []oevent
	busy     map[structs.PoolName]uint64
}

type oflight struct {
	took   structs.EvalID
	at     structs.Index
	done   bool
	nacked bool
}

type oevent struct {
	pool structs.PoolName
	what unblock.EventSet
	at   stamp
}

func (o *oracle) pending(k structs.JobKey, now structs.LogTime) []*structs.Evaluation {
	var es []*structs.Evaluation
	for _, e := range o.evals {
		if e.JobKey() == k && e.Status == structs.EvalPending && (e.WaitUntil <= now || o.due[e.ID]) {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, func(a, b *structs.Evaluation) int {
		if evalLess(a, b) {
			return -1
		}
		return 1
	})
	return es
}

func (o *oracle) blocked(k structs.JobKey) *structs.Evaluation {
	for _, e := range o.evals {
		if e.JobKey() == k && e.Status == structs.EvalBlocked {
			return e
		}
	}
	return nil
}

func (o *oracle) open(k structs.JobKey) bool {
	for _, e := range o.evals {
		if e.JobKey() == k {
			return true
		}
	}
	return o.flights[k] != nil || o.specs[k]
}

func (o *oracle) ready(k structs.JobKey, now structs.LogTime) bool {
	if o.flights[k] != nil || o.notUntil[k] > now {
		return false
	}
	if o.specs[k] || len(o.pending(k, now)) > 0 {
		return true
	}
	e := o.blocked(k)
	if e == nil {
		return false
	}
	if o.forced[k] || e.WaitUntil > 0 && e.WaitUntil <= now && !o.due[e.ID] {
		return true
	}
	for _, ev := range o.events {
		if seen := o.seen[k]; (ev.at.index > max(e.SnapshotIndex, seen.index) || ev.at.dropped > seen.dropped) && mayHelp(e.FailedGroups, ev.what) &&
			(ev.pool == o.works[k].Domain || o.works[k].Domain == DomainAll || ev.pool == DomainAll && o.works[k].Domain == DomainAll) {
			return true
		}
	}
	return false
}

// mayHelp repeats the rule of package unblock, for reports with one refusal, as this model makes them.
func mayHelp(groups []*structs.GroupReport, what unblock.EventSet) bool {
	if len(groups) == 0 || groups[0].Refusals[0].CuredBy == structs.EventNone {
		return what&^(unblock.AllocPlaced|unblock.Saved) != 0
	}
	helps := map[structs.EventKind]unblock.EventSet{
		structs.EventAllocStopped: unblock.AllocStopped, structs.EventNodeJoined: 0, structs.EventNodeEligible: 0, structs.EventJobChanged: 0, structs.EventConfigChanged: 0,
		structs.EventDeviceHealthy: unblock.DeviceHealthy | unblock.AllocStopped, structs.EventDriverHealthy: unblock.DriverHealthy, structs.EventTime: unblock.Time,
		structs.EventQueueUsage: unblock.QueueUsage, structs.EventJobEnded: unblock.JobEnded, structs.EventAllocPlaced: unblock.AllocPlaced | unblock.AllocStopped,
	}
	always := unblock.NodeJoined | unblock.NodeEligible | unblock.JobChanged | unblock.ConfigChanged
	return what&(helps[groups[0].Refusals[0].CuredBy]|always) != 0
}

// want returns what a pass of a domain must contain.
func (o *oracle) want(domain structs.PoolName, now structs.LogTime) []structs.JobKey {
	var ws []*structs.Workload
	span := false
	for k, w := range o.works {
		if o.ready(k, now) {
			span = span || w.Domain == DomainAll
			if domain == DomainAll || w.Domain == domain {
				ws = append(ws, w)
			}
		}
	}
	switch {
	case domain == DomainAll && (!span || len(o.busy) > 0):
		return nil
	case domain != DomainAll && (span || o.busy[domain] != 0 || o.busy[DomainAll] != 0):
		return nil
	}
	slices.SortFunc(ws, queue.Compare)
	var keys []structs.JobKey
	for _, w := range ws {
		keys = append(keys, structs.JobKey{Namespace: w.Namespace, ID: w.JobID})
	}
	return keys[:min(len(keys), o.limits.Items)]
}

func (o *oracle) land(k structs.JobKey, now structs.LogTime) {
	f := o.flights[k]
	delete(o.flights, k)
	delete(o.specs, k)
	stays := slices.ContainsFunc(o.pending(k, now), func(e *structs.Evaluation) bool { return e.ID == f.took })
	switch {
	case f.nacked:
	case !f.took.IsZero() && stays:
		o.refused(k, now)
	default:
		o.tries[k] = 0
	}
	o.tidy(k)
}

func (o *oracle) refused(k structs.JobKey, now structs.LogTime) {
	o.tries[k]++
	if n := o.tries[k] - o.limits.FreeTries; n > 0 {
		o.notUntil[k] = now.Add(min(o.limits.BackoffMin<<(n-1), o.limits.BackoffMax))
	}
}

// tidy forgets a job as the broker does, when nothing about it is open.
func (o *oracle) tidy(k structs.JobKey) {
	if !o.open(k) {
		delete(o.works, k)
		delete(o.seen, k)
		delete(o.tries, k)
		delete(o.notUntil, k)
		delete(o.forced, k)
	}
}

func TestBrokerAgainstOracle(t *testing.T) {
	seed := time.Now().UnixNano()
	if s := os.Getenv("MUSTER_SEED"); s != "" {
		seed, _ = strconv.ParseInt(s, 10, 64)
	}
	t.Logf("seed %d (repeat with MUSTER_SEED)", seed)
	total := ops(t)
	sum := Counters{}
	for round := 0; total > 0; round++ {
		n := min(total, 2_000) // use a fresh broker now and then, because its beginning has the corner cases
		c := modelRound(t, rand.New(rand.NewSource(seed+int64(round))), n)
		if t.Failed() {
			t.Fatalf("round %d of seed %d", round, seed)
		}
		addCounters(&sum, c)
		total -= n
	}
	t.Logf("what happened: %+v", sum)
	for name, v := range map[string]int64{"passes": sum.Passes, "coalesced": sum.Coalesced, "cured": sum.Unblocked,
		"raced": sum.Raced, "delayed": sum.Delayed, "refused": sum.Refused, "backoffs": sum.Backoffs,
		"speculated": sum.Speculated, "whole passes": sum.WholePass, "skipped": sum.Skipped} {
		t.Run(name, func(t *testing.T) {
			if v == 0 {
				t.Errorf("no %s happened: the run proves nothing about them", name)
			}
		})
	}
}

func addCounters(a *Counters, b Counters) {
	a.Passes += b.Passes
	a.Taken += b.Taken
	a.Coalesced += b.Coalesced
	a.Skipped += b.Skipped
	a.Unblocked += b.Unblocked
	a.Raced += b.Raced
	a.Delayed += b.Delayed
	a.Refused += b.Refused
	a.Backoffs += b.Backoffs
	a.Speculated += b.Speculated
	a.WholePass += b.WholePass
}

// model drives a broker and the oracle with the same operations.
type model struct {
	*testing.T
	r      *rand.Rand
	b      *Broker
	o      *oracle
	now    structs.LogTime
	nextID uint64
	jobs   []structs.JobKey
	nodes  []*structs.Node
	pools  []structs.PoolName
	passes []Pass
}

func modelRound(t *testing.T, r *rand.Rand, n int) Counters {
	limits := Limits{Items: 4, Evals: 3, FreeTries: 2, BackoffMin: 10, BackoffMax: 50}
	o := &oracle{limits: limits, evals: map[structs.EvalID]*structs.Evaluation{}, works: map[structs.JobKey]*structs.Workload{},
		state: map[structs.JobKey]*structs.Workload{}, flights: map[structs.JobKey]*oflight{}, seen: map[structs.JobKey]stamp{},
		forced: map[structs.JobKey]bool{}, tries: map[structs.JobKey]int{}, notUntil: map[structs.JobKey]structs.LogTime{},
		specs: map[structs.JobKey]bool{}, due: map[structs.EvalID]bool{}, busy: map[structs.PoolName]uint64{}}
	m := &model{T: t, r: r, o: o, now: 1, pools: []structs.PoolName{"a", "b", DomainAll}}
	m.b = New(limits, Env{Lookup: func(k structs.JobKey) *structs.Workload { return o.state[k] }})
	for i := range 8 {
		m.jobs = append(m.jobs, structs.JobKey{Namespace: "default", ID: fmt.Sprint("j", i)})
	}
	for i := range 3 {
		m.nodes = append(m.nodes, &structs.Node{ID: structs.NodeID{byte(i + 1)}, Pool: m.pools[i%2], Status: structs.NodeReady, Eligibility: structs.NodeEligible})
	}
	m.b.Load(Image{Nodes: m.nodes}, m.now)
	for i := 0; i < n && !t.Failed(); i++ {
		m.step()
	}
	return m.b.Counters
}

func (m *model) evalID() structs.EvalID {
	m.nextID++
	return structs.DeriveID[structs.EvalID](structs.Seed{}, "e", "", m.nextID)
}

func (m *model) step() {
	switch k := m.r.Intn(20); {
	case k < 10:
		m.feed()
	case k < 13:
		m.take()
	case k < 15:
		m.endPass()
	case k < 18:
		m.answer()
	case k < 19:
		m.now += structs.LogTime(m.r.Intn(20))
		m.expire()
	default:
		m.speculate()
	}
	l := m.b.Len()
	if want := len(m.o.flights); l.Flight != want {
		m.Fatalf("%d jobs in flight, want %d", l.Flight, want)
	}
	if len(m.b.jobs) > len(m.jobs) {
		m.Fatalf("%d entries for %d jobs", len(m.b.jobs), len(m.jobs))
	}
}

// expire records that a time which has come stays come, even if no pass was taken.
func (m *model) expire() {
	m.b.expire(m.now)
	for id, e := range m.o.evals {
		if e.WaitUntil > 0 && e.WaitUntil <= m.now && !m.o.due[id] {
			if e.Status == structs.EvalBlocked {
				m.o.forced[e.JobKey()] = true
			}
			m.o.due[id] = true
		}
	}
	for k, at := range m.o.notUntil {
		if at <= m.now {
			delete(m.o.notUntil, k)
		}
	}
}

func (m *model) job() structs.JobKey { return m.jobs[m.r.Intn(len(m.jobs))] }

// feed makes one batch of the log: evaluations created and answered, nodes and allocations changed, queue entries
// moved.
func (m *model) feed() {
	m.expire()
	m.o.index++
	d := &structs.Delta{Index: m.o.index}
	for range 1 + m.r.Intn(3) {
		key := m.job()
		switch m.r.Intn(8) {
		case 0: // the queue entry appears, moves, or goes
			old := m.o.state[key]
			if old != nil && m.r.Intn(4) == 0 {
				delete(m.o.state, key)
				d.Workloads = append(d.Workloads, structs.Changed[structs.Workload]{Before: old})
				break
			}
			w := &structs.Workload{Namespace: key.Namespace, JobID: key.ID, Domain: m.pools[m.r.Intn(len(m.pools)-m.r.Intn(2))],
				SubmitIndex: structs.Index(m.r.Intn(5)), Priority: m.r.Intn(3)}
			m.o.state[key] = w
			d.Workloads = append(d.Workloads, structs.Changed[structs.Workload]{Before: old, After: w})
		case 1, 2: // a new evaluation
			e := &structs.Evaluation{ID: m.evalID(), Namespace: key.Namespace, JobID: key.ID, Status: structs.EvalPending,
				CreateIndex: m.o.index, Priority: m.r.Intn(3)}
			if m.r.Intn(4) == 0 {
				e.WaitUntil = m.now + structs.LogTime(1+m.r.Intn(30))
			}
			d.Evals = append(d.Evals, structs.Changed[structs.Evaluation]{After: e})
		case 3, 4: // something becomes free
			n := m.nodes[m.r.Intn(len(m.nodes))]
			a := &structs.Allocation{NodeID: n.ID, Client: structs.ClientRunning}
			b := *a
			b.Client = structs.ClientComplete
			d.Allocs = append(d.Allocs, structs.Changed[structs.Allocation]{Before: a, After: &b})
		case 5: // a node comes back
			i := m.r.Intn(len(m.nodes))
			was := *m.nodes[i]
			was.Status = structs.NodeDown
			d.Nodes = append(d.Nodes, structs.Changed[structs.Node]{Before: &was, After: m.nodes[i]})
		default: // an evaluation is answered; sometimes what it wanted blocks
			m.answerEval(d, key)
		}
	}
	m.mirror(d)
	m.b.Feed(d, m.now)
	for k, f := range m.o.flights {
		if f.done && f.at <= m.o.index {
			m.o.land(k, m.now)
		}
	}
	m.expire()
}

func (m *model) answerEval(d *structs.Delta, key structs.JobKey) {
	es := m.o.pending(key, m.now)
	old := m.o.blocked(key)
	if slices.ContainsFunc(d.Evals, func(c structs.Changed[structs.Evaluation]) bool { return c.After != nil && c.After.JobKey() == key }) {
		return // at most one change of an evaluation in a batch, as in a log entry
	}
	for _, e := range es {
		c := *e
		c.Status = []structs.EvalStatus{structs.EvalComplete, structs.EvalCanceled, structs.EvalFailed}[m.r.Intn(3)]
		d.Evals = append(d.Evals, structs.Changed[structs.Evaluation]{Before: e, After: &c})
	}
	switch {
	case old != nil && m.r.Intn(2) == 0:
		c := *old
		c.Status = structs.EvalComplete
		d.Evals = append(d.Evals, structs.Changed[structs.Evaluation]{Before: old, After: &c})
	case old == nil && m.r.Intn(2) == 0:
		e := &structs.Evaluation{ID: m.evalID(), Namespace: key.Namespace, JobID: key.ID, Status: structs.EvalBlocked,
			CreateIndex: m.o.index, SnapshotIndex: m.o.index - min(m.o.index, structs.Index(1+m.r.Intn(4)))}
		e.FailedGroups = []*structs.GroupReport{{Group: "g", Wanted: 1, Code: structs.ReasonResources, Refusals: []structs.Refusal{{
			CuredBy: []structs.EventKind{structs.EventAllocStopped, structs.EventDriverHealthy, structs.EventTime}[m.r.Intn(3)]}}}}
		if m.r.Intn(5) == 0 {
			e.WaitUntil = m.now + structs.LogTime(1+m.r.Intn(30))
		}
		d.Evals = append(d.Evals, structs.Changed[structs.Evaluation]{After: e})
	}
}

// mirror gives a batch to the oracle, in the order in which Feed handles it.
func (m *model) mirror(d *structs.Delta) {
	for _, c := range d.Workloads {
		w := c.After
		if w == nil {
			w = c.Before
		}
		key := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		if cur := m.o.works[key]; cur != nil {
			if cur.Domain != w.Domain && m.o.blocked(key) != nil {
				m.o.forced[key] = true
			}
			m.o.works[key] = w
		}
		if c.Before != nil && c.After != nil && c.Before.Priority != c.After.Priority {
			pools := []structs.PoolName{w.Domain, DomainAll}
			if w.Domain == DomainAll {
				pools = append(m.pools, structs.NodePoolDefault)
			}
			for _, pool := range pools {
				m.event(pool, unblock.Any)
			}
		}
	}
	for _, c := range d.Nodes {
		m.event(c.After.Pool, unblock.Any)
	}
	for _, c := range d.Allocs {
		m.event(m.nodes[c.Before.NodeID[0]-1].Pool, unblock.AllocStopped)
	}
	for _, c := range d.Evals {
		e := c.After
		key := e.JobKey()
		if e.Terminal() {
			delete(m.o.evals, e.ID)
			delete(m.o.due, e.ID)
			if c.Before != nil && c.Before.Status == structs.EvalBlocked {
				delete(m.o.forced, key)
			}
			m.o.tidy(key)
			continue
		}
		if m.o.works[key] == nil {
			m.o.works[key] = m.o.state[key]
			if m.o.works[key] == nil {
				m.o.works[key] = &structs.Workload{Namespace: key.Namespace, JobID: key.ID, Domain: structs.NodePoolDefault,
					SubmitIndex: e.CreateIndex, Priority: e.Priority}
			}
		}
		if e.Status == structs.EvalBlocked {
			delete(m.o.forced, key)
		}
		m.o.evals[e.ID] = e
	}
}

func (m *model) event(pool structs.PoolName, what unblock.EventSet) {
	m.o.events = append(m.o.events, oevent{pool, what, logged(m.o.index)})
}

func (m *model) take() {
	m.expire()
	name := append(m.pools, structs.NodePoolDefault)[m.r.Intn(len(m.pools)+1)]
	want := m.o.want(name, m.now)
	p, ok := m.b.TakePass(name, m.now)
	var got []structs.JobKey
	for _, it := range p.Items {
		got = append(got, it.Key)
	}
	if ok != (len(want) > 0) || !slices.Equal(got, want) {
		m.Errorf("pass of %q at %d: %v, want %v", name, m.o.index, got, want)
		return
	}
	if !ok {
		return
	}
	m.passes = append(m.passes, p)
	m.o.busy[name] = p.ID
	for i := range p.Items {
		it := &p.Items[i]
		es := m.o.pending(it.Key, m.now)
		es = es[max(0, len(es)-m.o.limits.Evals):]
		if len(es) > 0 {
			delete(m.o.specs, it.Key)
		}
		if !slices.Equal(it.Evals, es) || it.Blocked != m.o.blocked(it.Key) || (it.Spec != nil) != m.o.specs[it.Key] {
			m.Errorf("item %v: %d evaluations, want %d", it.Key, len(it.Evals), len(es))
		}
		f := &oflight{}
		if n := len(es); n > 0 {
			f.took = es[n-1].ID
		}
		m.o.flights[it.Key] = f
		m.o.seen[it.Key] = stamp{m.o.index, m.o.dropped}
		delete(m.o.forced, it.Key)
	}
}

func (m *model) endPass() {
	if len(m.passes) == 0 {
		return
	}
	i := m.r.Intn(len(m.passes))
	m.b.EndPass(m.passes[i].ID)
	delete(m.o.busy, m.passes[i].Domain)
	m.passes = slices.Delete(m.passes, i, i+1)
}

// answer answers one job in flight in a random way.
func (m *model) answer() {
	m.expire()
	var keys []structs.JobKey
	for _, k := range m.jobs {
		if f := m.o.flights[k]; f != nil && !f.done {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return
	}
	k := keys[m.r.Intn(len(keys))]
	f := m.o.flights[k]
	at := structs.Index(0)
	if m.r.Intn(2) == 0 {
		at = m.o.index + structs.Index(m.r.Intn(3))
	}
	switch m.r.Intn(4) {
	case 0:
		m.b.Nack(k, at, m.now)
		f.nacked = true
		m.o.forced[k] = m.o.blocked(k) != nil
		m.o.refused(k, m.now)
	case 1:
		m.b.Defer(k, m.now)
		f.took = structs.EvalID{}
		m.o.forced[k] = m.o.blocked(k) != nil
		at = 0
	default:
		m.b.Done(k, at, m.now)
	}
	f.done, f.at = true, at
	if at <= m.o.index {
		m.o.land(k, m.now)
	}
	if m.r.Intn(8) == 0 {
		m.b.Freed("a", m.now)
		m.o.dropped++
		m.o.events = append(m.o.events, oevent{"a", unblock.AllocStopped, stamp{dropped: m.o.dropped}})
	}
}

func (m *model) speculate() {
	k := m.job()
	w := &structs.Workload{Namespace: k.Namespace, JobID: k.ID, Domain: m.pools[m.r.Intn(2)], SubmitIndex: m.o.index + 1, Priority: 1}
	want := !m.o.open(k)
	if got := m.b.Speculate(w, Speculation{}, m.now); got != want {
		m.Errorf("speculation about %v: %v, want %v", k, got, want)
		return
	}
	if want {
		m.o.specs[k] = true
		m.o.works[k] = w
	}
}
