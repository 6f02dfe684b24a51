package sim

import (
	"time"

	"github.com/muster-sched/muster/structs"
)

// Classes are the size classes in which waits are reported, by the GPUs (or units) of a job.
var Classes = []struct {
	Name string
	Max  int64
}{{"1", 1}, {"2-8", 8}, {"16-64", 64}, {"more", 1 << 62}}

// slowdownFloor is the shortest run time that a bounded slowdown uses, in seconds.
const slowdownFloor = 10.0

// Stats collects the metrics of a run. Times are in seconds.
type Stats struct {
	Jobs, Done, Dropped, Left int64 // arrived; ended with their work complete; ended without; in the system at the end
	Wait, JCT, Slowdown       Dist  // of completed jobs: wait until the first start and between preemption and resumption; end - submit; bounded
	First                     Dist  // wait until the first start only
	ClassWait                 [4]Dist
	Preemptions               int64
	Lost                      int64   // allocations lost with their node
	LostWork                  float64 // unit-seconds repeated after preemption or failure
	Resizes                   int64   // gangs that restarted because they continued with more or fewer members
	ResizeLost                float64 // GPU-seconds that they lost, and took to restart
	NodeFailures              int64
	Drained, Moved            int64 // drains that ended; allocations that they stopped
	Deadlines, Missed         int64
	Passes, Decided, Refused  int64 // passes; workloads in them; parts that Verify refused
	FirstRefusal              string
	Deciding                  time.Duration // wall-clock time in passes
	Wall                      time.Duration // wall-clock time in total
	Busy                      Series        // share of the capacity in use
	Waiting                   Series        // jobs
	Split                     Series        // nodes partly in use, as a share of those in use

	e         *Engine
	capacity  float64
	gpus      bool    // capacity counts GPUs, not CPU
	now       float64 // units in use
	area      float64 // unit-seconds in use
	partly    int     // nodes
	used      int
	splitArea float64 // integral of the share of nodes partly in use
	usedTime  float64
	queue     int64
	users     map[string]int // index into sums
	sums      []userSum      // in the order of their first job to end
	firstAt   structs.LogTime
	lastEnd   structs.LogTime
	began     time.Time
}

type userSum struct {
	n   int64
	sum float64
}

func newStats(e *Engine) *Stats {
	s := &Stats{e: e, users: map[string]int{}, capacity: float64(e.cfg.Capacity) / 1000}
	if s.capacity == 0 {
		cpu := int64(0)
		for i := range e.nodes {
			s.capacity += float64(e.nodes[i].gpus)
			cpu += e.nodes[i].node.Resources.CPU
		}
		s.gpus = s.capacity > 0
		if !s.gpus {
			s.capacity = float64(cpu)
		}
	}
	return s
}

func (s *Stats) begin(at time.Time) { s.began = at }

func (s *Stats) end(_ structs.LogTime, at time.Time) { s.Wall = at.Sub(s.began) }

func (s *Stats) arrived(l *Live) {
	if s.Jobs == 0 {
		s.firstAt = l.Submit
	}
	s.Jobs++
}

// advance accounts the state between two moments.
func (s *Stats) advance(from, to structs.LogTime) {
	if s.Jobs == 0 {
		return
	}
	sec := to.Sub(from).Seconds()
	s.area += s.now * sec
	busy := 0.0
	if s.capacity > 0 {
		busy = s.now / s.capacity
	}
	s.Busy.Add(busy, sec)
	s.Waiting.Add(float64(s.queue), sec)
	split := 0.0
	if s.used > 0 {
		split = float64(s.partly) / float64(s.used)
		s.splitArea += split * sec
		s.usedTime += sec
	}
	s.Split.Add(split, sec)
}

func (s *Stats) queued(_ *Live, n int64) { s.queue += n }

// held accounts a run on its node, or (n = -1) removes it. The node's own counters already have the change.
func (s *Stats) held(r *run, n int64) {
	if n > 0 {
		r.idle = s.e.cfg.Notice && r.waits > 0
	}
	if !r.idle {
		s.now += float64(n) * r.units
	}
	node := &s.e.nodes[r.node]
	was, is := node.level, node.filled()
	node.level = is
	s.used += btoi(is > 0) - btoi(was > 0)
	s.partly += btoi(is == 1) - btoi(was == 1)
}

// begins counts a run that waited for the place of another, which had it until now.
func (s *Stats) begins(r *run) {
	if r.idle {
		r.idle = false
		s.now += r.units
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// filled returns 0 for an idle node, 1 for one partly in use, 2 for a full one, by GPUs if it has any.
func (n *nodeState) filled() int8 {
	switch {
	case n.runs == 0:
		return 0
	case n.gpus > 0 && n.free > 0:
		return 1
	}
	return 2
}

func (s *Stats) lost(u *unit, d time.Duration) {
	s.LostWork += d.Seconds() * float64(max(u.live.Size, 1))
}

// left accounts a job that leaves the system.
func (s *Stats) left(l *Live) {
	if l.left > 0 {
		s.Dropped++
		return
	}
	s.Done++
	s.lastEnd = l.End
	wait, jct, run := l.Queued.Seconds(), l.End.Sub(l.Submit).Seconds(), l.Run.Seconds()
	s.Wait.Add(wait)
	s.First.Add(l.Start.Sub(l.Submit).Seconds())
	s.JCT.Add(jct)
	slow := max(1, jct/max(run, slowdownFloor))
	s.Slowdown.Add(slow)
	s.ClassWait[classOf(l.Size)].Add(wait)
	if d := l.Job.Job.Deadline; d != 0 {
		s.Deadlines++
		if l.End > d {
			s.Missed++
		}
	}
	at, known := s.users[l.Job.Job.Submitter.Name]
	if !known {
		at = len(s.sums)
		s.users[l.Job.Job.Submitter.Name] = at
		s.sums = append(s.sums, userSum{})
	}
	s.sums[at].n++
	s.sums[at].sum += slow
}

func classOf(size int64) int {
	for i := range Classes {
		if size <= Classes[i].Max {
			return i
		}
	}
	return len(Classes) - 1
}

// Makespan returns the time from the first submission to the last end, in seconds.
func (s *Stats) Makespan() float64 {
	if s.lastEnd == 0 {
		return 0
	}
	return s.lastEnd.Sub(s.firstAt).Seconds()
}

// Utilisation returns the share of the capacity that was in use over the makespan.
func (s *Stats) Utilisation() float64 {
	if m := s.Makespan(); m > 0 && s.capacity > 0 {
		return s.area / (s.capacity * m)
	}
	return 0
}

// Fragmentation returns the share of the nodes in use that were partly in use, over the time in which any was.
func (s *Stats) Fragmentation() float64 {
	if s.usedTime == 0 {
		return 0
	}
	return s.splitArea / s.usedTime
}

// Jain returns the fairness index of the users' mean bounded slowdowns: 1 when all are equal.
func (s *Stats) Jain() float64 {
	sum, sq := 0.0, 0.0
	for _, u := range s.sums {
		m := u.sum / float64(u.n)
		sum += m
		sq += m * m
	}
	if sq == 0 {
		return 1
	}
	return sum * sum / (float64(len(s.sums)) * sq)
}

// Overhead returns the wall-clock time in passes as a share of virtual time.
func (s *Stats) Overhead() float64 {
	if m := s.Makespan(); m > 0 {
		return s.Deciding.Seconds() / m
	}
	return 0
}
