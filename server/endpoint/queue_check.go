package endpoint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/structs"
)

// missingQueue returns a message if a job names a queue that does not exist, with similar names and how to create it;
// otherwise "". Apply refuses such a job, too, if the cluster has queues. This check comes earlier, says more, and also
// covers a cluster without queues.
func missingQueue(snap *state.Snapshot, j *structs.Job) string {
	path := j.Queue
	switch {
	case path == structs.QueueRoot:
		return fmt.Sprintf("Job %q is in queue %q, which has no jobs of its own; name one below it, or none", j.ID, path)
	case path == "" || path == structs.QueueDefault || snap.QueueByPath(path) != nil:
		return ""
	}
	if err := structs.CheckQueuePath(path); err != nil {
		return err.Msg
	}
	var all []string
	for q := range snap.Queues() {
		if q.Path != structs.QueueRoot {
			all = append(all, string(q.Path))
		}
	}
	known := "this cluster has no queues yet"
	if near := nearQueues(path, all); len(near) > 0 {
		known = "near to it: " + strings.Join(near, ", ")
	} else if len(all) > 0 {
		known = fmt.Sprintf("there are %d, see `muster queue list`", len(all))
		if len(all) <= queuesNamed {
			known = "there are " + strings.Join(all, ", ")
		}
	}
	return fmt.Sprintf("Job %q is in nonexistent queue %q (%s). Name another one or none, or have an operator make it with `muster queue apply`", j.ID, path, known)
}

// queuesNamed bounds the queues that an error names.
const queuesNamed = 5

// nearQueues returns queues that a user may have meant by a path: the one with the most similar spelling, those with
// the same last part, and the nearest existing ancestor.
func nearQueues(path structs.QueuePath, all []string) (near []string) {
	add := func(p string) {
		if p != "" && len(near) < queuesNamed && !slices.Contains(near, p) {
			near = append(near, p)
		}
	}
	add(suggest.Nearest(string(path), all))
	for _, p := range all {
		if strings.EqualFold(structs.QueuePath(p).Base(), path.Base()) {
			add(p)
		}
	}
	for p := range path.Ancestors() {
		if slices.Contains(all, string(p)) {
			add(string(p))
			break
		}
	}
	return near
}

// guaranteeWarnings returns a warning for each queue whose children's guarantees exceed what it, or the cluster, can
// give.
func guaranteeWarnings(qs []*structs.Queue, total structs.Amount) []string {
	sums := map[structs.QueuePath]structs.Amount{}
	for _, q := range qs {
		if q.Guarantee != nil && q.Path != structs.QueueRoot {
			p := q.Path.Parent()
			sums[p] = sums[p].Add(*q.Guarantee)
		}
	}
	var out []string
	for _, q := range qs {
		sum, has := sums[q.Path]
		if !has || q.Path == structs.QueueRoot {
			continue
		}
		if q.Guarantee != nil {
			if what, over := sum.Exceeds(*q.Guarantee); over > 0 {
				out = append(out, "the guarantees of the children of queue "+string(q.Path)+" exceed its own in "+what.String())
			}
		}
		if q.Limit != nil {
			if what, over := sum.Exceeds(*q.Limit); over > 0 {
				out = append(out, "the guarantees of the children of queue "+string(q.Path)+" exceed its limit of "+what.String())
			}
		}
	}
	if what, over := sums[structs.QueueRoot].Exceeds(total); over > 0 {
		out = append(out, "the guarantees of all queues together exceed what the ready nodes have of "+what.String())
	}
	slices.Sort(out)
	return out
}
