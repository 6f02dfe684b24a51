package broker

import (
	"slices"
	"strings"

	"github.com/muster-sched/muster/scheduler/unblock"
	"github.com/muster-sched/muster/structs"
)

// Links finds dependencies between jobs. It must read a state no older than the newest delta fed.
type Links interface {
	// DependsOn returns the jobs that a job waits for.
	DependsOn(structs.JobKey) []structs.JobKey
	// ChangedAt returns the index at which a registered job, including its status, last changed; 0 for an unknown job.
	ChangedAt(structs.JobKey) structs.Index
}

// The broker wakes a job that waits for other jobs when one of those changes.
//
// Naive: every status change of any job wakes every job that waits for one. With 10,000 such jobs and 1,000 ends a
// second that is ten million checks a second. Here each job has a list of the jobs that wait for it, kept only while
// they wait.

// follow adds a waiting job to the lists of the jobs that it waits for. If one of those has changed since the state
// that the job was decided on, follow adds nothing and returns true.
func (b *Broker) follow(j *job, since structs.Index) bool {
	if b.env.Links == nil {
		return false
	}
	keys := b.env.Links.DependsOn(j.key)
	for _, k := range keys {
		at := b.env.Links.ChangedAt(k)
		if at == 0 {
			at = b.purged // the purged job may be this one
		}
		if at > since {
			return true
		}
	}
	b.unfollow(j)
	j.waitsFor = keys
	for _, k := range keys {
		b.after[k] = append(b.after[k], j)
	}
	return false
}

func (b *Broker) unfollow(j *job) {
	for _, k := range j.waitsFor {
		l := b.after[k]
		if i := slices.Index(l, j); i >= 0 {
			l[i] = l[len(l)-1]
			l[len(l)-1] = nil
			l = l[:len(l)-1]
		}
		if len(l) == 0 {
			delete(b.after, k)
		} else {
			b.after[k] = l
		}
	}
	j.waitsFor = nil
}

// gotOn wakes the jobs that wait for a job that changed status, was registered or was purged.
func (b *Broker) gotOn(c *structs.Changed[structs.Job], at structs.Index, now structs.LogTime) {
	var key structs.JobKey
	switch {
	case c.After == nil && c.Before == nil:
		return
	case c.After == nil:
		key = c.Before.Key()
		b.purged = max(b.purged, at)
	default:
		key = c.After.Key()
	}
	if c.After != nil && c.Before != nil && c.After.Status == c.Before.Status && c.After.SpecIndex == c.Before.SpecIndex {
		return
	}
	b.wakeAfter(key, now)
}

// saved wakes the jobs that wait for a checkpoint of a job whose tasks have just saved one, and those that preempt
// no work because too much would be lost: now it is less.
func (b *Broker) saved(d *structs.Delta, now structs.LogTime) {
	for i := range d.Allocs {
		if c := &d.Allocs[i]; c.Before != nil && c.After != nil && c.After.Saved.Newer(c.Before.Saved) != c.Before.Saved {
			b.inform(c.After, unblock.Saved, d.Index, now)
		}
	}
	if len(b.after) == 0 {
		return
	}
	for i := range d.Allocs {
		c := &d.Allocs[i]
		if c.After == nil || len(b.after[c.After.JobKey()]) == 0 || !c.After.Checkpointed() || c.Before != nil && c.Before.Checkpointed() {
			continue
		}
		b.wakeAfter(c.After.JobKey(), now)
	}
}

// wakeAfter makes the jobs that wait for a job ready, in order of key.
func (b *Broker) wakeAfter(key structs.JobKey, now structs.LogTime) {
	list := slices.Clone(b.after[key])
	slices.SortFunc(list, func(x, y *job) int {
		if x.key.Namespace != y.key.Namespace {
			return strings.Compare(x.key.Namespace, y.key.Namespace)
		}
		return strings.Compare(x.key.ID, y.key.ID)
	})
	for _, j := range list {
		b.unblockJob(j, now)
	}
	b.Counters.Unblocked += int64(len(list))
}
