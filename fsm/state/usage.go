package state

import "github.com/muster-sched/muster/structs"

// JobCounts are the counters that determine the status of a job. They are derived from the allocations and evaluations.
type JobCounts struct {
	Allocs    int // all that are stored
	Holding   int // not client-terminal
	Started   int // the agent reported more than pending
	Evals     int // all that are stored
	OpenEvals int // pending or blocked; one that waits for a wall-clock limit does not keep an ended job alive
}

// Usage is what the allocations of one namespace or queue hold (structs.Holds), in integers (D6, D7).
type Usage struct {
	Kind      string // UsageNamespace or UsageQueue
	Name      string
	Allocs    int64
	Resources structs.Vector
	Devices   int64 // devices granted, shared ones counted each time

	GPUs         int64 // of Devices: whole GPUs
	GPUShares    int64 // of Devices: shares of GPUs
	GPUMemoryMiB int64 // of those shares; a grant of a whole GPU does not record its size
	GPUCompute   int64 // of those shares, percent
}

// The kinds of Usage.
const (
	UsageNamespace = "namespace"
	UsageQueue     = "queue"
)

type usageKey struct{ kind, name string }

func lessUsage(a, b usageKey) bool {
	if a.kind != b.kind {
		return a.kind < b.kind
	}
	return a.name < b.name
}

// Counts returns the counters of a job; zero for a job without allocations and evaluations.
func (s *Store) Counts(k structs.JobKey) JobCounts {
	if c := s.counts[k]; c != nil {
		return *c
	}
	return JobCounts{}
}

func (s *Store) jobCounts(k structs.JobKey) *JobCounts {
	c := s.counts[k]
	if c == nil {
		c = &JobCounts{}
		s.counts[k] = c
	}
	return c
}

func (s *Store) countAlloc(a *structs.Allocation, n int) {
	if a == nil {
		return
	}
	k := a.JobKey()
	c := s.jobCounts(k)
	c.Allocs += n
	if hasStarted(a) {
		c.Started += n
	}
	if structs.Holds(a) {
		c.Holding += n
		s.hold(usageKey{UsageNamespace, a.Namespace}, a, int64(n))
		s.hold(usageKey{UsageQueue, string(queueOf(a))}, a, int64(n))
	}
	if *c == (JobCounts{}) {
		delete(s.counts, k)
	}
}

// recount replaces an allocation in the counters.
func (s *Store) recount(before, after *structs.Allocation) {
	if before == nil || after == nil || !holdsAs(before, after) {
		s.countAlloc(before, -1)
		s.countAlloc(after, 1)
		return
	}
	if was, is := hasStarted(before), hasStarted(after); is != was {
		n := -1
		if is {
			n = 1
		}
		s.jobCounts(after.JobKey()).Started += n
	}
}

// holdsAs reports whether two states of one allocation hold the same for the same job, namespace and queue. Grants are equal if
// they are the same list: rows share it.
func holdsAs(a, b *structs.Allocation) bool {
	return structs.Holds(a) && structs.Holds(b) && a.JobID == b.JobID && a.Namespace == b.Namespace && queueOf(a) == queueOf(b) &&
		a.Resources == b.Resources && len(a.Grants) == len(b.Grants) && (len(a.Grants) == 0 || &a.Grants[0] == &b.Grants[0])
}

// hasStarted reports whether the agent has reported more than that the allocation is pending.
func hasStarted(a *structs.Allocation) bool {
	return a.Client != structs.ClientPending && a.Client != ""
}

// queueOf returns the queue that an allocation is charged to: that of the job version it was placed for.
func queueOf(a *structs.Allocation) structs.QueuePath {
	if a.Job == nil {
		return ""
	}
	return a.Job.Queue
}

func (s *Store) hold(k usageKey, a *structs.Allocation, n int64) {
	u := s.held[k]
	if u == nil {
		u = &Usage{Kind: k.kind, Name: k.name}
		s.held[k] = u
	}
	u.Allocs += n
	r := a.Resources
	u.Resources = u.Resources.Add(structs.Vector{CPU: n * r.CPU, Cores: n * r.Cores, MemoryMiB: n * r.MemoryMiB, DiskMiB: n * r.DiskMiB})
	u.Devices += n * int64(len(a.Grants))
	for i := range a.Grants {
		switch g := &a.Grants[i]; {
		case !g.IsGPU():
		case g.MemoryMiB == 0:
			u.GPUs += n
		default:
			u.GPUShares += n
			u.GPUMemoryMiB += n * g.MemoryMiB
			u.GPUCompute += n * g.Compute
		}
	}
	s.moved[k] = true
}

func (s *Store) countEval(e *structs.Evaluation, n int) {
	if e == nil {
		return
	}
	k := e.JobKey()
	c := s.jobCounts(k)
	c.Evals += n
	if !e.Terminal() && e.Trigger != structs.TriggerMaxRun {
		c.OpenEvals += n
	}
	if *c == (JobCounts{}) {
		delete(s.counts, k)
	}
}

// flushUsage writes the counters that this batch changed, one row each.
func (s *Store) flushUsage() {
	if len(s.moved) == 0 {
		return
	}
	for k := range s.moved { // one write per key; their order has no effect
		now := *s.held[k]
		old := Usages.Get(s, k)
		switch {
		case now == (Usage{Kind: k.kind, Name: k.name}):
			delete(s.held, k)
			Usages.Delete(s, k)
		case old == nil || *old != now:
			Usages.Put(s, &now)
		}
	}
	clear(s.moved)
	Usages.in(s).commitEntry(&s.delta)
}

// Recount computes every counter from the rows: Usage and Counts must always equal the result.
func (s *Snapshot) Recount() (usage map[string]Usage, counts map[structs.JobKey]JobCounts) {
	scratch := &Store{derived: derived{counts: map[structs.JobKey]*JobCounts{}, held: map[usageKey]*Usage{}, moved: map[usageKey]bool{}}}
	for a := range s.Allocs() {
		scratch.countAlloc(a, 1)
	}
	for e := range s.Evals() {
		scratch.countEval(e, 1)
	}
	usage, counts = map[string]Usage{}, map[structs.JobKey]JobCounts{}
	for k, u := range scratch.held {
		usage[k.kind+" "+k.name] = *u
	}
	for k, c := range scratch.counts {
		counts[k] = *c
	}
	return usage, counts
}

// AllCounts returns the counters of every job that has any.
func (s *Store) AllCounts() map[structs.JobKey]JobCounts {
	out := make(map[structs.JobKey]JobCounts, len(s.counts))
	for k, c := range s.counts {
		out[k] = *c
	}
	return out
}
