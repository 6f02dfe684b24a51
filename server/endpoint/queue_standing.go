package endpoint

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// Standing is how a queue stands: what it and the queues below it hold and want, what it is due, and how even the shares
// of those are who take turns in it. Parts of the cluster and ratios are in millionths. Nothing is decided by it.
type Standing struct {
	Path        structs.QueuePath
	Counted     bool // usage is known
	Held        structs.Amount
	Running     int64 // jobs that hold something
	Waiting     int64 // jobs
	Oldest      time.Duration
	Preemptions int64 // jobs preempted on behalf of its jobs
	Lost        structs.QueueLoss
	Budget      int64 // GPU hours that it may use in a period; 0: no limit
	PeriodUse   int64 // used in the current period, if it has a budget: thousandths of GPUs times seconds
	Part        int64 // of the cluster that it holds: dominant, or by billing units
	Target      int64 // part of the cluster that it is due; 0: it holds and wants nothing
	Jain        int64 // Jain's index, over those who take turns in it, of part by weight; 0: nothing is held
	Users       map[string]*Submitter

	below []structs.QueuePath
}

// Submitter is how a submitter stands in a queue. "" stands for all without a name.
type Submitter struct {
	Waiting int64 // jobs, with those in queues below
	Oldest  time.Duration
	Target  int64 // as that of a queue; 0: nothing of it takes turns in the queue itself

	Preempted int64 // times that a job was preempted, with those in queues below
	Lost      structs.QueueLoss

	held         structs.Amount // by work of the queue itself, without the queues below
	running, own int64          // jobs of the queue itself that hold, and that wait
}

// whole is the whole cluster, and the index of shares that are even.
const whole = 1_000_000

// Standings are how the queues stand, by path. The root is always among them.
type Standings map[structs.QueuePath]*Standing

// Standings returns how the queues stand, from totals that the state keeps: its cost grows with queues, submitters and
// waiting jobs, and not with allocations. Where the state keeps no usage, Counted is false.
func (s *Set) Standings(snap *state.Snapshot) Standings {
	return s.standings(snap, s.env.Decide.QueueTable(snap))
}

func (s *Set) standings(snap *state.Snapshot, table *contend.QueueTable) Standings {
	m, now := Standings{}, max(snap.Time(), s.env.Replica.Now())
	m.at(structs.QueueRoot)
	for _, u := range table.Usage {
		if !u.Path.IsNamespace() {
			m.holds(u)
		}
	}
	for w := range snap.Workloads() {
		if w.Waiting > 0 || !w.BlockedEval.IsZero() {
			j := snap.JobByKey(structs.JobKey{Namespace: w.Namespace, ID: w.JobID})
			m.waits(cmp.Or(w.Queue, structs.QueueDefault), j, waited(w, j, now))
		}
	}
	for p := range snap.Preempted() {
		for path := range p.Queue.Lineage() {
			// A queue that only jobs mentioned is not listed for ever because they lost something.
			if m[path] != nil || p.Total > 0 || path == structs.QueueDefault || snap.QueueByPath(path) != nil {
				x := m.at(path)
				x.Preemptions, x.Lost = x.Preemptions+p.Total, x.Lost.Add(p.Lost)
				for i := range p.Users {
					if path != structs.QueueRoot { // which has no submitters
						u := x.user(p.Users[i].User)
						u.Preempted, u.Lost = u.Preempted+p.Users[i].Preempted, u.Lost.Add(p.Users[i].Lost)
					}
				}
			}
		}
	}
	for _, q := range table.Queues {
		if period := q.BudgetPeriod(); period != "" {
			x := m.at(q.Path)
			x.Budget = q.GPUHoursMax
			if u := table.Use(q.Path, ""); u != nil {
				x.PeriodUse = u.PeriodUse(now, period)
			}
		}
	}
	m[structs.QueueRoot].Target = whole
	m.settle(structs.QueueRoot, table, snap.SchedulerConfig(), now)
	return m
}

// waited returns for how long a job has waited since it could run as far as it is up to its submitter.
func waited(w *structs.Workload, j *structs.Job, now structs.LogTime) time.Duration {
	since := max(w.SubmitTime, w.NotBefore)
	if j != nil {
		since = max(since, j.Begin)
	}
	if w.Held || w.Suspended != 0 || j != nil && len(j.Depends) > 0 && !w.Met {
		return 0
	}
	return max(now.Sub(since), 0)
}

// at returns a queue, which is made with those above it if it is new.
func (m Standings) at(path structs.QueuePath) *Standing {
	if m[path] == nil {
		m[path] = &Standing{Path: path, Users: map[string]*Submitter{}}
		if path != structs.QueueRoot {
			up := m.at(path.Parent())
			up.below = append(up.below, path)
		}
	}
	return m[path]
}

// user returns a submitter in a queue, who is made if new.
func (x *Standing) user(name string) *Submitter {
	if x.Users[name] == nil {
		x.Users[name] = &Submitter{}
	}
	return x.Users[name]
}

// holds adds a row of usage. Rows are of a whole subtree: what work of the queue itself holds is what remains without the
// rows below, and what remains without the submitters is that of work without a name.
func (m Standings) holds(u *structs.QueueUsage) {
	m.at(structs.QueueRoot).Counted = true
	x := m.at(u.Path)
	move := func(y *Standing, name string, sign int64) {
		if y.Path != structs.QueueRoot { // which has no rows of submitters, and no jobs
			s := y.user(name)
			s.held, s.running = s.held.Add(u.Held.Times(sign)), s.running+sign*u.Jobs
		}
	}
	move(x, u.User, 1)
	if u.User != "" {
		move(x, "", -1)
	} else {
		x.Held, x.Running = u.Held, u.Jobs
	}
	if x.Path == structs.QueueRoot {
		return
	}
	up := m.at(x.Path.Parent())
	move(up, u.User, -1)
	if u.User != "" {
		move(up, "", 1)
	}
}

// waits adds a job that waits.
func (m Standings) waits(in structs.QueuePath, j *structs.Job, wait time.Duration) {
	name := ""
	if j != nil {
		name = j.Submitter.Name
	}
	for path := range in.Lineage() {
		x := m.at(path)
		x.Waiting++
		x.Oldest = max(x.Oldest, wait)
		if path == structs.QueueRoot {
			break
		}
		s := x.user(name)
		s.Waiting++
		s.Oldest = max(s.Oldest, wait)
		if path == in {
			s.own++
		}
	}
}

// Active reports whether the queue, or one below it, holds or wants something.
func (x *Standing) Active() bool { return x.Running+x.Waiting > 0 }

// settle computes what those are due who take turns in a queue, its submitters and the queues right below it, and how
// even their shares are; then it continues with the queues below.
func (m Standings) settle(path structs.QueuePath, table *contend.QueueTable, cfg *structs.SchedulerConfig, now structs.LogTime) {
	x := m[path]
	x.Counted = m[structs.QueueRoot].Counted
	scene := queue.Scene{Now: now, Queue: table.Settings(path, cfg), Total: table.Total}
	scene.Total.Billed = scene.Queue.Billing.OfCluster(table.Total, table.Models)
	x.Part = scene.Share(x.Held) / 1000
	var turns []turn
	for _, p := range x.below {
		if y := m[p]; y.Active() {
			turns = append(turns, turn{queueWeight(table, p), y.Held, &y.Target})
		}
	}
	for name, s := range x.Users {
		if s.running+s.own > 0 {
			turns = append(turns, turn{scene.Queue.UserWeight(name), s.held, &s.Target})
		}
	}
	var all int64
	shares := make([]float64, len(turns))
	for i, t := range turns {
		all += t.weight
		shares[i] = float64(scene.Share(t.held)) / float64(t.weight)
	}
	x.Jain = jain(shares)
	for _, t := range turns {
		*t.target = max(x.Target*t.weight/all, 1)
	}
	for _, p := range x.below {
		m.settle(p, table, cfg, now)
	}
}

// turn is a queue or submitter that takes turns.
type turn struct {
	weight int64
	held   structs.Amount
	target *int64
}

func queueWeight(table *contend.QueueTable, path structs.QueuePath) int64 {
	if q := table.Queue(path); q != nil {
		return max(q.Weight, 1)
	}
	return 1
}

// jain returns Jain's fairness index of shares (Jain, Chiu and Hawe, DEC-TR-301, 1984) in millionths: the square of their
// sum by n times the sum of their squares. It is 1 if all are equal, 1/n if one of n has everything, and 0 stands for no
// index, where all are 0.
func jain(shares []float64) int64 {
	slices.Sort(shares) // the sums do not depend on the order in which they were found
	var sum, squares float64
	for _, x := range shares {
		sum, squares = sum+x, squares+x*x
	}
	if squares == 0 {
		return 0
	}
	return int64(math.Round(whole * sum * sum / (float64(len(shares)) * squares)))
}
