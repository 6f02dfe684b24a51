package server

import (
	"cmp"
	"slices"
	"sync"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/scheduler/queue"
	"github.com/muster-sched/muster/structs"
)

// totals keeps what the cluster has, which only nodes change.
type totals struct {
	mu  sync.Mutex
	at  structs.Index
	sum structs.Amount
	has bool
}

// of is what the ready nodes of a state have. Reserved cores count with their clock, overcommit by its ratio.
func (t *totals) of(snap *state.Snapshot) structs.Amount {
	at := snap.TableIndex(state.TableNodes)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.has && t.at == at {
		return t.sum
	}
	t.at, t.has, t.sum = at, true, structs.Amount{}
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
			for i := range g.Instances {
				t.sum.GPUMilli += 1000
				t.sum.GPUMemoryMiB += g.Instances[i].MemoryMiB
			}
		}
	}
	return t.sum
}

// queueTable is the queues as a decision sees them.
func (s *Server) queueTable(snap *state.Snapshot) *scheduler.QueueTable {
	t := &scheduler.QueueTable{Total: s.decide.totals.of(snap), Turnover: s.decide.foretold.turnover()}
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
				t.Tenants = append(t.Tenants, scheduler.Tenant{Namespace: n.Name, Quota: spec.Name, Hard: l.Hard, Soft: l.Soft})
			}
		}
	}
	return t
}

// booked are the reservations that a pass of a domain keeps: those of its node pool and of all of them, by id.
func booked(snap *state.Snapshot, domain string, now structs.LogTime) []*structs.Reservation {
	var out []*structs.Reservation
	for r := range snap.Reservations() {
		if r.JobID == "" && r.End != 0 && r.End <= now {
			continue
		}
		if domain == structs.NodePoolAll || r.Domain == structs.NodePoolAll || cmp.Or(r.Domain, structs.NodePoolDefault) == domain {
			out = append(out, r)
		}
	}
	return out
}

// lineOf puts workloads in line as a pass would, without placing anything: the order in which people see them.
func (s *Server) lineOf(snap *state.Snapshot, ws []*structs.Workload, now structs.LogTime) (order []int, line *queue.Line) {
	pending := make([]scheduler.Workload, len(ws))
	for i, w := range ws {
		k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
		pending[i] = scheduler.Workload{Key: k, Job: snap.JobByKey(k), Queue: w, Allocs: snap.AllocsByJob(k)}
		s.decide.foretold.tell(&pending[i])
	}
	line = queue.NewLine(s.queueTable(snap), *snap.SchedulerConfig(), pending, now, uint64(snap.Index()))
	for i := line.Next(); i >= 0; i = line.Next() {
		order = append(order, i)
		line.Placed(i, structs.Amount{})
	}
	return order, line
}

// choice is which of more ready workloads than a pass can take it takes.
func (p *passes) choice(ready []*structs.Workload, n int, now structs.LogTime) []int {
	order, _ := p.s.lineOf(p.pub.Snapshot, ready, now)
	return order[:min(n, len(order))]
}

// waitingByQueue counts the jobs that wait by queue, ancestors included.
func waitingByQueue(ws []*structs.Workload) map[string]int64 {
	out := map[string]int64{}
	for _, w := range ws {
		for _, r := range structs.UseRowsOf(w.Namespace, cmp.Or(w.Queue, structs.QueueDefault), "") {
			out[r.Path]++
		}
	}
	return out
}

// guaranteeWarnings says where the guarantees of children exceed what their parent, or the cluster, can give.
func guaranteeWarnings(qs []*structs.Queue, total structs.Amount) []string {
	sums := map[string]structs.Amount{}
	for _, q := range qs {
		if q.Guarantee != nil && q.Path != structs.QueueRoot {
			p := cmp.Or(structs.QueueParent(q.Path), structs.QueueRoot)
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
				out = append(out, "the guarantees of the children of queue "+q.Path+" exceed its own in "+what)
			}
		}
		if q.Limit != nil {
			if what, over := sum.Exceeds(*q.Limit); over > 0 {
				out = append(out, "the guarantees of the children of queue "+q.Path+" exceed its limit of "+what)
			}
		}
	}
	if what, over := sums[structs.QueueRoot].Exceeds(total); over > 0 {
		out = append(out, "the guarantees of all queues together exceed what the ready nodes have of "+what)
	}
	slices.Sort(out)
	return out
}
