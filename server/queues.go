package server

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/scheduler/contend"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// totals keeps what the cluster has, which only nodes change.
type totals struct {
	mu  sync.Mutex
	at  structs.Index
	sum structs.Amount
	gpu []structs.GPUCount // of sum, by model
	has bool
}

// of is what the ready nodes of a state have. Reserved cores count with their clock, overcommit by its ratio.
func (t *totals) of(snap *state.Snapshot) structs.Amount {
	sum, _ := t.models(snap)
	return sum
}

// models is of, and the GPUs by model.
func (t *totals) models(snap *state.Snapshot) (structs.Amount, []structs.GPUCount) {
	at := snap.TableIndex(state.Nodes)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.has && t.at == at {
		return t.sum, t.gpu
	}
	t.at, t.has, t.sum = at, true, structs.Amount{}
	models := map[string]int64{}
	for n := range snap.Nodes() {
		if n.Status != structs.NodeReady {
			continue
		}
		t.sum.CPU += n.Resources.CPU
		t.sum.MemoryMiB += n.Resources.MemoryMiB
		for _, g := range n.Resources.Devices {
			if g.Type != "gpu" {
				continue
			}
			models[g.Name] += int64(len(g.Instances))
			for i := range g.Instances {
				t.sum.GPUMilli += 1000
				t.sum.GPUMemoryMiB += g.Instances[i].MemoryMiB
			}
		}
	}
	t.gpu = nil
	for _, m := range slices.Sorted(maps.Keys(models)) {
		t.gpu = append(t.gpu, structs.GPUCount{Model: m, Count: models[m]})
	}
	return t.sum, t.gpu
}

// queueTable is the queues as a decision sees them.
func (s *Server) queueTable(snap *state.Snapshot) *contend.QueueTable {
	total, models := s.decide.totals.models(snap)
	t := &contend.QueueTable{Total: total, Models: models, Turnover: s.decide.predictor.turnover()}
	for q := range snap.Queues() {
		t.Queues = append(t.Queues, q)
	}
	for u := range snap.QueueUses() {
		t.Usage = append(t.Usage, u)
	}
	for n := range snap.Namespaces() {
		if n.Quota == "" {
			continue
		}
		if spec := snap.Quota(n.Quota); spec != nil {
			if l := spec.Limit(s.cfg.Region); l != nil {
				t.Tenants = append(t.Tenants, contend.Tenant{Namespace: n.Name, Quota: spec.Name, Hard: l.Hard, Soft: l.Soft})
			}
		}
	}
	return t
}

// lineOf puts workloads in line as a pass would, without placing anything: the order in which people see them.
func (s *Server) lineOf(snap *state.Snapshot, ws []*structs.Workload, now structs.LogTime) (order []int, line *queue.Line) {
	return s.lineBy(&s.decide.predictor, snap, ws, now)
}

// lineBy is lineOf with run times as predicted by f.
func (s *Server) lineBy(f *predictor, snap *state.Snapshot, ws []*structs.Workload, now structs.LogTime) (order []int, line *queue.Line) {
	line = s.lineUp(f, snap, ws, now)
	for i := line.Next(); i >= 0; i = line.Next() {
		order = append(order, i)
		line.Taken(i)
	}
	return order, line
}

// lineUp is the line of workloads before anybody is taken out of it.
func (s *Server) lineUp(f *predictor, snap *state.Snapshot, ws []*structs.Workload, now structs.LogTime) *queue.Line {
	pending := make([]contend.Workload, len(ws))
	for i, w := range ws {
		k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		pending[i] = contend.Workload{Key: k, Job: snap.JobByKey(k), Queue: w, Allocs: snap.AllocsByJob(k)}
		f.tell(&pending[i])
	}
	table := s.queueTable(snap)
	table.Turnover = f.turnover()
	return queue.NewLine(table, *snap.SchedulerConfig(), pending, now, uint64(snap.Index()))
}

// missingQueue says that a job names a queue which does not exist, which ones come near, and how it is made; "" when the
// job names none or its queue is there. Apply refuses such a job, too, where any queue exists: this is the earlier and
// longer answer, and the one about a cluster without queues.
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

// queuesNamed is how many queues an error names.
const queuesNamed = 5

// nearQueues lists queues that somebody may have meant by a path: the one spelled most like it, those with the same last
// part, and the nearest ancestor that exists.
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

// choice is which of more ready workloads than a pass can take it takes.
func (p *decider) choice(ready []*structs.Workload, n int, now structs.LogTime) []int {
	order, _ := p.s.lineOf(p.pub.Snapshot, ready, now)
	return order[:min(n, len(order))]
}

// waitingByQueue counts the jobs that wait by queue, ancestors included.
func waitingByQueue(ws []*structs.Workload) map[structs.QueuePath]int64 {
	out := map[structs.QueuePath]int64{}
	for _, w := range ws {
		for _, r := range structs.UseRowsOf(w.Namespace, cmp.Or(w.Queue, structs.QueueDefault), "") {
			out[r.Path]++
		}
	}
	return out
}

// guaranteeWarnings says where the guarantees of children exceed what their parent, or the cluster, can give.
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

// nobodyPasses reports whether there is a queue whose blocked jobs hold back those behind them (structs.BackfillNone). They
// can do so only in a pass that decides about them as well.
func nobodyPasses(snap *state.Snapshot) bool {
	if snap.SchedulerConfig().Backfill == structs.BackfillNone {
		return true
	}
	for q := range snap.Queues() {
		if q.Backfill == structs.BackfillNone {
			return true
		}
	}
	return false
}
