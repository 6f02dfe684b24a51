package decide

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// lostMost limits expected losses, as a multiple of the run time: work that is interrupted so often hardly ever ends.
const lostMost = 1000

// endedSums sums up the accounting records of a state. Records are only added as the newest and dropped as the oldest ones, so
// the sums of the state before are changed by those.
//
// Naive: add up all of them for each plan. That takes as long as the pass of a plan.
type endedSums struct {
	mu    sync.Mutex
	seen  []*structs.AcctRecord // counted, oldest first
	all   endedSum
	queue map[structs.QueuePath]map[int]*endedSum // by priority
}

// endedSum is what was measured of jobs that have ended; see structs.JobRisk.
type endedSum struct {
	allocTime, jobTime time.Duration
	lost, preempted    int64
}

func (x *endedSum) add(r *structs.AcctRecord, sign int64) {
	x.allocTime += r.AllocTime * time.Duration(sign)
	x.jobTime += r.Ran() * time.Duration(sign)
	x.lost, x.preempted = x.lost+r.Lost*sign, x.preempted+r.Preemptions*sign
}

// of returns what was measured that concerns a job.
func (s *endedSums) of(snap *state.Snapshot, j *structs.Job) *structs.JobRisk {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance(snap)
	out := &structs.JobRisk{AllocTime: s.all.allocTime, Lost: s.all.lost}
	for priority, sum := range s.queue[j.QueueName()] { // in any order
		if priority <= j.Priority {
			out.JobTime, out.Preempted = out.JobTime+sum.jobTime, out.Preempted+sum.preempted
		}
	}
	return out
}

// advance changes the sums to those of a state, which may also be older or another one.
func (s *endedSums) advance(snap *state.Snapshot) {
	var fresh []*structs.AcctRecord
	known := false
	for r := range snap.AcctBack() {
		if known = len(s.seen) > 0 && s.seen[len(s.seen)-1] == r; known {
			break
		}
		fresh = append(fresh, r)
	}
	if gone := len(s.seen) + len(fresh) - snap.AcctCount(); known && gone >= 0 && gone < len(s.seen) {
		for _, r := range s.seen[:gone] {
			s.count(r, -1)
		}
		s.seen = s.seen[gone:]
	} else {
		s.seen, s.all, s.queue = nil, endedSum{}, map[structs.QueuePath]map[int]*endedSum{}
	}
	for _, r := range slices.Backward(fresh) {
		s.count(r, 1)
		s.seen = append(s.seen, r)
	}
}

func (s *endedSums) count(r *structs.AcctRecord, sign int64) {
	s.all.add(r, sign)
	q := s.queue[r.Queue]
	if q == nil {
		q = map[int]*endedSum{}
		s.queue[r.Queue] = q
	}
	if q[r.Priority] == nil {
		q[r.Priority] = &endedSum{}
	}
	q[r.Priority].add(r, sign)
}

// Spots lists the nodes on which a job runs or would run, by group, one for each allocation.
type Spots map[structs.GroupName][]*structs.Node

// SpotsOf returns where a job would run after the changes of a plan.
func SpotsOf(snap *state.Snapshot, k structs.JobKey, entries []*structs.PlanEntry) Spots {
	out, stops := Spots{}, map[structs.AllocID]bool{}
	for _, e := range entries {
		for _, part := range e.Parts {
			for i := range part.Places {
				if n := snap.NodeByID(e.Nodes[part.Places[i].Node].ID); n != nil {
					g := e.Groups[part.Places[i].Group]
					out[g] = append(out[g], n)
				}
			}
			for _, st := range part.Stops {
				stops[st.ID] = true
			}
		}
	}
	for _, a := range snap.AllocsByJob(k) {
		if n := snap.NodeByID(a.NodeID); n != nil && !a.Terminal() && !stops[a.ID] {
			out[a.Group] = append(out[a.Group], n)
		}
	}
	return out
}

// NodeRisk returns what is known of the reliability of a node.
func (s *Service) NodeRisk(snap *state.Snapshot, n *structs.Node, now structs.LogTime) *structs.NodeRisk {
	return nodeRisk(n, s.ended.of(snap, &structs.Job{}), now)
}

func nodeRisk(n *structs.Node, measured *structs.JobRisk, now structs.LogTime) *structs.NodeRisk {
	out := &structs.NodeRisk{Node: n.ID, Name: n.Name, Typical: measured.MeanTimeToLoss()}
	out.Ready, out.Lost, out.Faults = n.Past(now)
	typical, losses := out.Typical, out.Lost+out.Faults
	if losses > 0 {
		typical = cmp.Or(typical, structs.ReadyPeriodsAge) // as placement does
	}
	out.Expected = structs.MeanTimeToLoss(out.Ready, losses, typical)
	return out
}

// RiskOf returns the risk of a job that is expected to run for a time; nil if no allocation ran in the last 30 days, that
// time is unknown, or the job has no GPUs. What was measured counts as constant rates: of losses by node, where the
// job has a place, else of the cluster, each allocation on its own node.
func (s *Service) RiskOf(snap *state.Snapshot, j *structs.Job, run time.Duration, at Spots, now structs.LogTime) *structs.JobRisk {
	out := s.ended.of(snap, j)
	if riskOf(out, j, run, at, now); len(out.Groups) == 0 {
		return nil
	}
	return out
}

// losing returns the rate, per second, at which any of the nodes is lost on which count allocations are, of which at has
// those with a place, and the node that is expected to be lost first. shared: the loss of a node is one loss for all of its allocations.
func losing(at []*structs.Node, count int, shared bool, measured *structs.JobRisk, now structs.LogTime) (rate float64, worst *structs.NodeRisk) {
	typical := measured.MeanTimeToLoss()
	if typical == 0 {
		return 0, nil
	}
	at = at[:min(len(at), count)]
	rate = float64(count-len(at)) / typical.Seconds()
	seen := map[structs.NodeID]*structs.NodeRisk{}
	for _, n := range at {
		r := seen[n.ID]
		if r != nil && shared {
			continue
		}
		if r == nil {
			r = nodeRisk(n, measured, now)
			seen[n.ID] = r
		}
		rate += 1 / r.Expected.Seconds()
		if worst == nil || cmp.Or(cmp.Compare(r.Expected, worst.Expected), slices.Compare(r.Node[:], worst.Node[:])) < 0 {
			worst = r
		}
	}
	return rate, worst
}

// riskOf adds the groups of a job to what was measured.
func riskOf(out *structs.JobRisk, j *structs.Job, run time.Duration, at Spots, now structs.LogTime) {
	if out.AllocTime <= 0 || run <= 0 {
		return
	}
	preempted := 0.0
	if j.MayPreempt() && out.JobTime > 0 {
		preempted = float64(out.Preempted) / out.JobTime.Seconds()
	}
	for _, g := range j.Groups {
		count := g.Count
		if j.Array != nil {
			count = j.Array.Count
		}
		gpus := structs.GroupAmount(g).Times(int64(count)).GPUMilli
		if gpus == 0 {
			continue
		}
		together, spots := 0, []*structs.Node(nil) // allocations whose loss interrupts one of the group
		for _, o := range j.Groups {
			if j.Together(g.Name, o.Name) {
				together, spots = together+o.Count, append(spots, at[o.Name]...)
			}
		}
		r := structs.GroupRisk{Group: g.Name, Run: run}
		t, rate := run.Seconds(), 0.0
		if together > 0 {
			rate, r.Worst = losing(spots, together, true, out, now)
		} else { // each allocation is interrupted alone
			rate, r.Worst = losing(at[g.Name], count, false, out, now)
		}
		losses := rate * t
		if together == 0 {
			rate /= float64(max(count, 1)) // of one of them
		}
		r.NodeLosses, r.Preemptions = millionths(losses), millionths(preempted*t)
		save, saved := 0.0, 0.0 // seconds that a checkpoint takes; that are lost by preemptions for which the state is saved
		if c := g.Checkpoint; c != nil {
			save = (cmp.Or(c.Cost, 2*c.GraceOrDefault()) / 2).Seconds() // Cost has the load, too
			r.Interval = c.Interval
			if c.Notified() && c.Heeds(structs.CausePreempt) {
				saved = preempted * t * 2 * save
			} else {
				rate += preempted
			}
			r.Best = bestInterval(save, rate)
		} else {
			rate += preempted
		}
		lost := min(rework(t, r.Interval.Seconds(), save, rate)+saved, lostMost*t)
		r.LostGPUSeconds = int64(math.Round(lost * float64(gpus) / 1000))
		out.Groups = append(out.Groups, r)
	}
}

func millionths(x float64) int64 { return int64(min(math.Round(x*1e6), math.MaxInt64/2)) }

// rework returns the time that work is expected to lose by interruptions at a rate (per second), if a checkpoint that
// takes save seconds to write, and to load, follows each interval of work; interval 0: there are none. It is the complete
// model of Daly (A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
// Systems 22, 2006, section 3), M e^(R/M) (e^((interval+save)/M) - 1) run/interval, without the work itself and the time
// for writing checkpoints.
func rework(run, interval, save, rate float64) float64 {
	if rate <= 0 {
		return 0
	}
	load := save
	if interval <= 0 || interval >= run {
		interval, save, load = run, 0, 0
	}
	all := math.Exp(load*rate) * math.Expm1((interval+save)*rate) / rate * run / interval
	return max(0, all-run*(1+save/interval))
}

// bestInterval returns the interval of work between checkpoints with the least loss at a rate of interruptions: Daly's
// estimate of higher order (2006, section 4), whose first term is that of Young (A first order approximation to the optimum
// checkpoint interval, Communications of the ACM 17, 1974). 0: there are no interruptions.
func bestInterval(save, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	between := 1 / rate
	best := between
	if x := save * rate / 2; x < 1 {
		best = math.Sqrt(2*save*between)*(1+math.Sqrt(x)/3+x/9) - save
	}
	if best > math.MaxInt64/float64(time.Second)/2 {
		return 0
	}
	return time.Duration(best * float64(time.Second)).Round(time.Second)
}
