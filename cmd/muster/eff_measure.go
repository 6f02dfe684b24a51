package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// effAllocs is the maximum number of allocations that eff looks at, the newest first.
const effAllocs = 64

// measure collects the figures: of a job that still exists from its allocations, and of one that has ended from its record,
// too.
func (o *effOptions) measure(ctx context.Context, a *api, prefix string) (*efficiency, error) {
	stub, err := a.job(ctx, prefix)
	q := ns(a.anyNamespace())
	var list []*wire.AllocationListStub
	f := &efficiency{Namespace: orDefault(a.namespace), JobID: prefix}
	switch {
	case err == nil:
		f.Namespace, f.JobID, f.Status = stub.Namespace, stub.ID, stub.Status
		if _, err := a.get(ctx, jobPath(stub.ID, "/allocations"), ns(stub.Namespace), &list); err != nil {
			return nil, err
		}
		q = ns(stub.Namespace)
	case !errors.As(err, new(noJob)):
		return nil, err
	}
	var rec *nomadlike.AcctRecord
	if err != nil || stub.Status == "dead" {
		q.Set("prefix", f.JobID)
		records, get := pages[nomadlike.AcctRecord](ctx, a, "/v1/acct", q)
		if get != nil {
			return nil, get
		}
		for i := range records { // the oldest first
			if r := &records[i]; r.JobID == f.JobID {
				rec = r
			}
		}
		if rec == nil && err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(x, y *wire.AllocationListStub) int { return cmp.Compare(y.CreateIndex, x.CreateIndex) })
	if len(list) > effAllocs {
		f.AllocationsLeftOut, list = len(list)-effAllocs, list[:effAllocs]
	}
	sizes := map[string]map[string]int64{} // MiB of the GPUs of nodes
	newest := newestRun(list)
	for _, s := range list {
		if err := o.allocation(ctx, a, f, s, !newest[s.ID], sizes); err != nil {
			return nil, err
		}
	}
	f.total()
	if rec != nil {
		f.recorded(rec, len(list))
	}
	if stub != nil && len(f.GPUs) == 0 {
		var job wire.Job
		if _, err := a.get(ctx, jobPath(stub.ID), ns(stub.Namespace), &job); err != nil {
			return nil, err
		}
		f.wanted(&job)
	}
	f.forgotten = len(list) == 0 && rec == nil && f.Status == "dead"
	f.NotStarted = !f.forgotten && f.RanSeconds == 0 && f.AllocationsLeftOut == 0 && !slices.ContainsFunc(f.GPUs, func(g effGPU) bool { return g.HeldSeconds > 0 })
	return f, nil
}

// newestRun returns the IDs of the allocations of a job's newest run: those that are live, and of the newest version that
// was placed those that no other replaced. The list has the newest first.
func newestRun(list []*wire.AllocationListStub) map[string]bool {
	out, named := map[string]bool{}, map[string]bool{}
	var version uint64
	for _, s := range list {
		version = max(version, s.JobVersion)
	}
	for _, s := range list {
		if liveAlloc(s.ClientStatus) || s.JobVersion == version && !named[s.Name] {
			out[s.ID] = true
		}
		named[s.Name] = true
	}
	return out
}

// wanted sets GPUsAsked from the specification of a job.
func (f *efficiency) wanted(job *wire.Job) {
	f.GPUsAsked, f.askedMiB = 0, 0
	for _, g := range job.TaskGroups {
		var gpus, parts int64
		for _, t := range g.Tasks {
			if t.Resources == nil {
				continue
			}
			for _, d := range t.Resources.Devices {
				if structs.IsGPUDevice(d.Name) {
					gpus += int64(max(val(d.Count), 1))
				}
			}
			if r := t.Resources.GPU; r != nil {
				n := int64(1)
				if r.Count != nil {
					n = int64(*r.Count)
				}
				gpus += n
				if r.Memory != "" || r.Share != nil || r.MIG != "" {
					parts += n
				}
			}
		}
		count := int64(1)
		if g.Count != nil {
			count = int64(*g.Count)
		}
		if gpus > 0 && count > 0 {
			f.GPUsAsked += count * gpus
			f.askedParts += count * parts
			each := ""
			if count > 1 {
				each = " each"
			}
			f.asked = append(f.asked, fmt.Sprintf("%s with %d%s", plural(count, "allocation"), gpus, each))
		}
	}
}

// allocation adds the GPUs of an allocation, and of a running one its memory and processor time.
func (o *effOptions) allocation(ctx context.Context, a *api, f *efficiency, s *wire.AllocationListStub, earlier bool, sizes map[string]map[string]int64) error {
	var al wire.Allocation
	if _, err := a.get(ctx, "/v1/allocation/"+s.ID, ns(s.Namespace), &al); err != nil {
		return err
	}
	if al.AllocatedResources == nil {
		return nil
	}
	held := heldFor(&al, o.now())
	if !earlier {
		f.RanSeconds = max(f.RanSeconds, held.Seconds())
	}
	var use *wire.AllocResourceUsage
	if al.ClientStatus == "running" {
		if _, err := a.get(ctx, "/v1/client/allocation/"+al.ID+"/stats", ns(al.Namespace), &use); err != nil {
			use = nil // its node does not answer: the last report has to do
		}
	}
	var own []effGPU
	for _, task := range sortedKeys(al.AllocatedResources.Tasks) {
		for _, d := range al.AllocatedResources.Tasks[task].Devices {
			if d.Type != "gpu" {
				continue
			}
			if sizes[al.NodeID] == nil {
				sizes[al.NodeID] = gpuSizes(ctx, a, al.NodeID)
			}
			for _, id := range d.DeviceIDs {
				g := effGPU{AllocID: al.ID, NodeName: al.NodeName, GPU: id, Model: d.Name, HeldSeconds: held.Seconds(), Earlier: earlier, AskedMiB: sizes[al.NodeID][id]}
				if g.AskedMiB == 0 {
					g.AskedMiB = sizeNow(use, task, id)
				}
				g.granted(d.Shares)
				g.measured(&al, task, use)
				own = append(own, g)
			}
		}
	}
	settleIdle(own)
	if earlier && len(own) > 0 {
		f.EarlierAllocations++
	}
	f.GPUs = append(f.GPUs, own...)
	f.host(&al, use)
	return nil
}

// heldFor returns how long an allocation has held what it was given: from the start of its first task to the end of its last,
// as the accounting counts.
func heldFor(al *wire.Allocation, now time.Time) time.Duration {
	var from, to time.Time
	for _, t := range al.TaskStates {
		if !t.StartedAt.IsZero() && (from.IsZero() || t.StartedAt.Before(from)) {
			from = t.StartedAt
		}
		if t.FinishedAt.After(to) {
			to = t.FinishedAt
		}
	}
	switch {
	case from.IsZero():
		return 0
	case liveAlloc(al.ClientStatus):
		to = now
	case to.IsZero():
		to = time.Unix(0, al.ModifyTime)
	}
	return max(to.Sub(from), 0)
}

// granted sets Part and AskedMiB from the shares of an allocation. Before the call, AskedMiB is the size of the GPU.
func (g *effGPU) granted(shares []wire.DeviceShare) {
	one := 1.0
	g.Part = &one
	for _, share := range shares {
		if share.DeviceID != g.GPU {
			continue
		}
		switch {
		case g.AskedMiB > 0:
			part := float64(share.MemoryMB) / float64(g.AskedMiB)
			g.Part = &part
		case share.Backend != structs.BackendMIG: // an instance counts whole
			g.Part = nil
		}
		g.AskedMiB = share.MemoryMB
	}
}

// sizeNow returns the memory of a GPU in MiB, as the agent measures it now for a task; 0: unknown.
func sizeNow(use *wire.AllocResourceUsage, task, gpu string) int64 {
	if use == nil || use.Tasks[task] == nil || use.Tasks[task].ResourceUsage == nil {
		return 0
	}
	for _, d := range use.Tasks[task].ResourceUsage.DeviceStats {
		if s := d.InstanceStats[gpu]; s != nil && s.Stats != nil && s.Stats.Attributes["Memory state"] != nil {
			return max(val(s.Stats.Attributes["Memory state"].IntDenominatorVal), 0)
		}
	}
	return 0
}

// gpuSizes returns the memory of a node's GPUs in MiB. Nothing is known of a node that is gone, or that the caller may not read.
func gpuSizes(ctx context.Context, a *api, node string) map[string]int64 {
	out := map[string]int64{}
	var n wire.Node
	if _, err := a.get(ctx, "/v1/node/"+node, nil, &n); err != nil || n.NodeResources == nil {
		return out
	}
	for _, d := range n.NodeResources.Devices {
		for _, in := range d.Instances {
			out[in.ID] = in.MemoryMB
		}
	}
	return out
}

// measured takes what is known of a task's use of a GPU: now, or up to the last report.
func (g *effGPU) measured(al *wire.Allocation, task string, use *wire.AllocResourceUsage) {
	set := func(peak int64, busy float64) {
		g.PeakMiB = &peak
		if busy > 0 || !strings.Contains(g.Model, " MIG ") { // drivers do not say how busy an instance is
			g.BusySeconds = &busy
		}
	}
	for _, u := range al.GPUUse {
		if u != nil && u.Task == task && u.GPU == g.GPU {
			set(u.PeakMiB, u.SMSeconds)
		}
	}
	if use == nil || use.Tasks[task] == nil || use.Tasks[task].ResourceUsage == nil {
		return
	}
	for _, d := range use.Tasks[task].ResourceUsage.DeviceStats {
		s := d.InstanceStats[g.GPU]
		if s == nil || s.Stats == nil {
			continue
		}
		peak, busy := s.Stats.Attributes["Task memory, peak"], s.Stats.Attributes["Task SM time"]
		if peak != nil && peak.IntNumeratorVal != nil && busy != nil && busy.IntNumeratorVal != nil {
			set(*peak.IntNumeratorVal, float64(*busy.IntNumeratorVal)/1000)
		}
	}
}

// host adds the memory and processor time of a running allocation.
func (f *efficiency) host(al *wire.Allocation, use *wire.AllocResourceUsage) {
	if use == nil || len(use.Tasks) == 0 {
		return
	}
	var asked, peak int64
	for name, t := range al.AllocatedResources.Tasks {
		u := use.Tasks[name]
		if u == nil || u.ResourceUsage == nil {
			continue
		}
		if m := u.ResourceUsage.MemoryStats; m != nil {
			asked += t.Memory.MemoryMB
			peak += int64(max(m.MaxUsage, m.Usage) >> 20)
		}
		if c := u.ResourceUsage.CpuStats; c != nil {
			busy := c.Percent/100 + val(f.CoresBusy)
			f.CoresBusy = &busy
			f.CoresAsked += int64(len(t.Cpu.ReservedCores))
			f.MHzAsked += t.Cpu.CpuShares
		}
	}
	if asked > 0 && (f.MemoryPeakMiB == nil || peak > *f.MemoryPeakMiB) {
		f.MemoryAskedMiB, f.MemoryPeakMiB = asked, &peak
	}
}
