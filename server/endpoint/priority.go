package endpoint

import (
	"cmp"
	"fmt"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// Priorities are a server's settings of priorities, for all jobs. The leader's count.
type Priorities struct {
	Max     int // 0: structs.JobPriorityMax
	Default int // of a job without one, unless its queue or namespace has another; 0: structs.JobPriorityDefault
}

// priorityLimit is the highest priority that something allows.
type priorityLimit struct {
	most int
	who  string // allows no more
	name string // of who; "" for the servers
}

// priorityLimits returns what limits the priority of a job: the servers, its namespace (or nil), and the nearest queue with a
// limit for its submitter or for all, the job's own or one above it.
func (s *Set) priorityLimits(snap *state.Snapshot, j *structs.Job, n *structs.Namespace) []priorityLimit {
	out := make([]priorityLimit, 0, 3)
	for at := range j.QueueName().Lineage() {
		q := snap.QueueByPath(at)
		if q == nil {
			continue
		}
		user := j.Submitter.Name
		if most := q.PriorityMaxOf(user); most > 0 {
			who := "queue"
			if q.UserPriorityMax[user] > 0 {
				who = fmt.Sprintf("user %q in queue", user)
			}
			out = append(out, priorityLimit{int(most), who, string(at)})
			break
		}
	}
	if n != nil && n.MaxPriority > 0 {
		out = append(out, priorityLimit{n.MaxPriority, "namespace", n.Name})
	}
	if most := s.env.Priorities.Max; most > 0 {
		out = append(out, priorityLimit{most, "the servers (job_max_priority)", ""})
	}
	return out
}

// refusePriority returns the refusals of a priority of a job, whose namespace is n (or nil).
func (s *Set) refusePriority(snap *state.Snapshot, j *structs.Job, n *structs.Namespace, p int) (out []*structs.Error) {
	for _, l := range s.priorityLimits(snap, j, n) {
		switch {
		case p <= l.most:
		case l.name == "":
			out = append(out, structs.Errorf(structs.CodeInvalid, "Job priority %d is above the limit of %s, which is %d", p, l.who, l.most))
		default:
			out = append(out, structs.Errorf(structs.CodeInvalid, "Job priority %d is above the limit of %s %q, which is %d", p, l.who, l.name, l.most))
		}
	}
	return out
}

// defaultPriority returns the priority of a job without one: the default of the nearest queue that has one for its submitter
// or for all, else that of its namespace, else the servers'. It never exceeds what the job is allowed, so that no job is refused for a priority
// that its file does not have.
func (s *Set) defaultPriority(snap *state.Snapshot, j *structs.Job, n *structs.Namespace) int {
	p := 0
	for at := range j.QueueName().Lineage() {
		if q := snap.QueueByPath(at); q != nil {
			if p = int(q.PriorityDefaultOf(j.Submitter.Name)); p > 0 {
				break
			}
		}
	}
	if n != nil {
		p = cmp.Or(p, n.DefaultPriority)
	}
	p = cmp.Or(p, s.env.Priorities.Default, structs.JobPriorityDefault)
	for _, l := range s.priorityLimits(snap, j, n) {
		p = min(p, l.most)
	}
	return p
}
