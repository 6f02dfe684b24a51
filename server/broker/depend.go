package broker

import (
	"slices"
	"strings"

	"github.com/muster-sched/muster/structs"
)

// Links tells which jobs wait for which. It must read a state no older than the newest delta fed.
type Links interface {
	// DependsOn gives the jobs that a job waits for; none when it waits for nobody.
	DependsOn(structs.JobKey) []structs.JobKey
	// ChangedAt is when a registered job changed last (its status included); 0 for one that is not there.
	ChangedAt(structs.JobKey) structs.Index
}

// The broker wakes a job that waits for others when one of those changes.
//
// Naive: every status change of any job wakes every job that waits for one. With 10,000 such jobs and 1,000 ends a second
// that is ten million looks. Here each job has a list of those that wait for it, kept only while they wait.

// follow enters a waiting job into the lists of the jobs that it waits for. It reports true, and enters nothing, when one
// of them has changed since the state that it was decided on.
func (b *Broker) follow(j *job, since structs.Index) bool {
	if b.env.Links == nil {
		return false
	}
	keys := b.env.Links.DependsOn(j.key)
	for _, k := range keys {
		at := b.env.Links.ChangedAt(k)
		if at == 0 {
			at = b.purged // it may be this one that went
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

// gotOn wakes those that wait for a job whose status changed, or that came or went.
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

// saved wakes those that wait for a job whose tasks have saved their state.
func (b *Broker) saved(d *structs.Delta, now structs.LogTime) {
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

// wakeAfter makes ready whoever waits for a job, by key.
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
