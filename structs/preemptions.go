package structs

import (
	"cmp"
	"slices"
	"time"
)

// Preemptions are the preemptions on behalf of one queue, for its rate limit and history, and what its jobs lost.
type Preemptions struct {
	Queue       QueuePath
	Recent      []LogTime  // of the last hour, oldest first, one per evicted job; at most PreemptionsKept
	Total       int64      // jobs evicted in total
	Lost        QueueLoss  `since:"2"` // by the queue's own jobs
	Users       []UserLoss `since:"2"` // by submitter of its jobs, sorted; of at most UserLossesMax
	ModifyIndex Index
}

// UserLoss is what the jobs of one submitter in one queue suffered.
type UserLoss struct {
	User      string
	Preempted int64 // times that a job was preempted, on whose behalf ever
	Lost      QueueLoss
}

// UserLossesMax limits Preemptions.Users. Later submitters are counted only with their queue.
const UserLossesMax = 10_000

// Count adds to what the jobs of a submitter suffered. "" stands for jobs without a submitter and has no entry.
func (p *Preemptions) Count(n UserLoss) {
	i, found := slices.BinarySearchFunc(p.Users, n.User, func(u UserLoss, name string) int { return cmp.Compare(u.User, name) })
	switch {
	case found:
		p.Users = slices.Clone(p.Users)
		n.Preempted, n.Lost = n.Preempted+p.Users[i].Preempted, n.Lost.Add(p.Users[i].Lost)
		p.Users[i] = n
	case n.User != "" && len(p.Users) < UserLossesMax:
		p.Users = slices.Insert(slices.Clone(p.Users), i, n)
	}
}

// QueueLoss is the GPU time, in GPU-seconds, that batch jobs of a queue lost: what they did since their newest checkpoints,
// or since they started, when they were ended by a cause.
type QueueLoss struct {
	Preempt int64 // they were preempted
	Node    int64 // their node, or that of another member of their gang, was lost
	Drain   int64 // they had to leave their node: a drain or a taint
}

// Add returns the sum of two losses.
func (l QueueLoss) Add(o QueueLoss) QueueLoss {
	return QueueLoss{l.Preempt + o.Preempt, l.Node + o.Node, l.Drain + o.Drain}
}

// Total returns what was lost by all causes.
func (l QueueLoss) Total() int64 { return l.Preempt + l.Node + l.Drain }

// PreemptionsKept limits Preemptions.Recent.
const PreemptionsKept = 1000

// Within counts the preemptions of the hour before now.
func (p *Preemptions) Within(now LogTime) int64 {
	n := int64(0)
	for _, t := range p.Recent {
		if t > now.Add(-time.Hour) {
			n++
		}
	}
	return n
}
