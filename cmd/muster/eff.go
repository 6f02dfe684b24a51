package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

type effOptions struct {
	*env
	form format
}

// effAllocs is the maximum number of allocations that eff looks at, the newest first.
const effAllocs = 64

// effMinimum is how long an allocation must have run before eff judges it: programs load and compile first.
const effMinimum = time.Minute

func newEff(e *env) *cobra.Command {
	o := &effOptions{env: e}
	c := e.verb("eff [options] JOB", "Compare what a job asked for with what it used",
		"Compare what a job asked for with what it used: GPU hours held and busy, the peak of GPU memory, GPUs that stood idle, memory and processor time,\nand what to change. GPU use is what the agents measured: of running allocations up to now, of ended ones as the records have it (30 days). What\nwas not measured is unknown, and never counts as idle. Busy GPU hours are hours with all multiprocessors busy. Memory and processor time are\nmeasured of running tasks only. Hours count all allocations; idle GPUs and advice about GPUs count the newest run, once it has run for a minute.\nFor a job that has not started, eff shows what it asks for. The hours of a part of a GPU need the size of the GPU: it is read from the node, which\nneeds node:read, or measured while the allocation runs.", `
muster eff train
muster eff -json train
muster eff -t '{{.GPUHoursBusy}}' train`, 1, 1, o.run)
	o.form.flags(c)
	return e.complete(c, "jobs")
}

// effGPU is one GPU, or a part of one, that an allocation holds or held.
type effGPU struct {
	AllocID, NodeName, GPU, Model string
	HeldSeconds                   float64
	Part                          *float64 // of the GPU that was asked for: 1 for all of it; absent: the size of the GPU is unknown
	AskedMiB                      int64    // 0: unknown
	PeakMiB                       *int64   // absent: not measured
	BusySeconds                   *float64 // with all multiprocessors; absent: not measured
	Idle                          bool     // measured for effMinimum, and busy for less than a hundredth of the time
	Earlier                       bool     `json:",omitempty"` // of an allocation before the newest run
}

// hours returns the GPU hours held. They are unknown for a part of a GPU of unknown size.
func (g *effGPU) hours() (hours float64, known bool) {
	return val(g.Part) * g.HeldSeconds / 3600, g.Part != nil
}

// judged reports whether the GPU counts as idle or not: it was measured for long enough, in the newest run.
func (g *effGPU) judged() bool {
	return !g.Earlier && g.BusySeconds != nil && g.HeldSeconds >= effMinimum.Seconds()
}

// efficiency is what eff prints; also its JSON form. Absent figures are unknown.
type efficiency struct {
	Namespace, JobID, Status string
	GPUsAsked                int64    `json:",omitempty"` // of a job without allocations that hold GPUs: what it asks for, parts included
	NotStarted               bool     `json:",omitempty"`
	GPUHoursAsked            *float64 // held; a part of a GPU counts as that part
	GPUHoursBusy             *float64 // of those that were measured
	GPUHoursBusyAtLeast      bool     `json:",omitempty"` // GPUHoursBusy is a sum that does not say which GPUs were measured
	GPUHoursUnmeasured       *float64 // of GPUHoursAsked
	GPUMemoryAskedMiB        int64    // on the GPU with the peak; 0: unknown
	GPUMemoryPeakMiB         *int64   // on one GPU
	GPUs                     []effGPU `json:",omitempty"`
	IdleGPUs                 int      // of JudgedGPUs
	JudgedGPUs               int      // of the newest run: those that were measured for at least a minute
	EarlierAllocations       int      // with GPUs, before the newest run
	RanSeconds               float64  // the longest allocation of the newest run
	MemoryAskedMiB           int64    // of the allocation with the peak
	MemoryPeakMiB            *int64   // of one running allocation
	CoresBusy                *float64 // of running allocations, now
	CoresAsked, MHzAsked     int64    // of the same
	AllocationsLeftOut       int      // beyond those that were looked at
	Advice                   []string

	forgotten  bool     // it has ended, and neither its allocations nor its record are there
	asked      []string // of GPUsAsked, by group
	askedParts int64    // of GPUsAsked
	askedMiB   int64    // of GPUs, of a job that ended and asked for parts of unknown size
	gpuBusy    float64  // GPU hours busy of GPUs that are judged and of known size
	gpuHeld    float64  // GPU hours held by the same
	unknownGPU bool     // a part of a GPU of unknown size was held
}

func (o *effOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	f, err := o.measure(ctx, a, args[0])
	if err != nil {
		return err
	}
	f.advise()
	if done, err := o.form.done(o.env, f); done || err != nil {
		return err
	}
	o.print(f)
	return nil
}

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

// idleBelow is the part of the time that an idle GPU is busy at most.
const idleBelow = 0.01

// settleIdle finds the idle GPUs of an allocation. The records have no line of a GPU that nothing was done on. So where
// the agent measured work on one GPU of an allocation, another whole one without a line was measured, too, and stood idle;
// where it measured none, nothing is known.
func settleIdle(own []effGPU) {
	measures := slices.ContainsFunc(own, func(g effGPU) bool { return g.BusySeconds != nil && *g.BusySeconds > 0 })
	for i := range own {
		g := &own[i]
		if measures && g.PeakMiB == nil && val(g.Part) == 1 && !strings.Contains(g.Model, " MIG ") {
			g.PeakMiB, g.BusySeconds = new(int64), new(float64)
		}
		// A part of unknown size is idle only if it never worked.
		g.Idle = g.BusySeconds != nil && g.HeldSeconds >= effMinimum.Seconds() && (*g.BusySeconds == 0 || *g.BusySeconds < idleBelow*val(g.Part)*g.HeldSeconds)
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

// total adds up the GPUs.
func (f *efficiency) total() {
	var asked, unmeasured float64
	f.GPUHoursAsked, f.GPUHoursUnmeasured = &asked, &unmeasured
	for i := range f.GPUs {
		g := &f.GPUs[i]
		hours, known := g.hours()
		asked += hours
		if !known {
			f.GPUHoursAsked, f.unknownGPU = nil, true
		}
		if g.BusySeconds != nil {
			busy := *g.BusySeconds/3600 + val(f.GPUHoursBusy)
			f.GPUHoursBusy = &busy
		} else {
			unmeasured += hours
			if !known {
				f.GPUHoursUnmeasured = nil
			}
		}
		if g.judged() {
			f.JudgedGPUs++
			f.gpuBusy, f.gpuHeld = f.gpuBusy+*g.BusySeconds/3600, f.gpuHeld+hours
		}
		if g.PeakMiB != nil && (f.GPUMemoryPeakMiB == nil || *g.PeakMiB > *f.GPUMemoryPeakMiB) {
			f.GPUMemoryPeakMiB, f.GPUMemoryAskedMiB = g.PeakMiB, g.AskedMiB
		}
		if g.Idle && g.judged() {
			f.IdleGPUs++
		}
	}
}

// recorded takes the sums of a run that has ended. The record has all allocations of the run, also those that are gone; n of
// them were looked at.
func (f *efficiency) recorded(r *nomadlike.AcctRecord, n int) {
	f.Namespace, f.Status = r.Namespace, "ended: "+r.Exit
	asked := float64(r.GPUSeconds) / 3600
	if n == 0 {
		f.RanSeconds = time.Duration(r.Longest).Seconds()
		f.GPUsAsked, f.askedMiB = int64(math.Ceil(r.GPUs)), r.GPUMemoryMiB
	}
	if int64(n) >= r.Allocs {
		if f.GPUHoursAsked == nil && int64(n) == r.Allocs {
			f.GPUHoursAsked = &asked // the servers knew the sizes of the GPUs
		}
		return // nothing is missing, and the sums are exact
	}
	if f.GPUHoursAsked != nil && f.GPUHoursUnmeasured != nil {
		unmeasured := max(0, asked-(*f.GPUHoursAsked-*f.GPUHoursUnmeasured))
		f.GPUHoursUnmeasured = &unmeasured
	}
	f.GPUHoursAsked = &asked
	f.AllocationsLeftOut = int(r.Allocs) - n
	if u := r.GPUUse; u != nil {
		busy := u.SMSeconds / 3600
		f.GPUHoursBusy = &busy
		f.GPUHoursUnmeasured, f.GPUHoursBusyAtLeast = new(float64), true
		if f.GPUMemoryPeakMiB == nil || u.PeakMiB > *f.GPUMemoryPeakMiB {
			f.GPUMemoryPeakMiB, f.GPUMemoryAskedMiB = &u.PeakMiB, 0
			if r.GPUs == 0 && n == 0 && r.Allocs == 1 {
				f.GPUMemoryAskedMiB = r.GPUMemoryMiB
			}
		}
	}
}

// measuredHours returns the GPU hours that were measured.
func (f *efficiency) measuredHours() (hours float64, known bool) {
	if f.GPUHoursAsked == nil || f.GPUHoursUnmeasured == nil {
		return 0, false
	}
	return *f.GPUHoursAsked - *f.GPUHoursUnmeasured, true
}

// busyShare returns how much of the measured GPU hours was busy.
func (f *efficiency) busyShare() (share float64, known bool) {
	measured, known := f.measuredHours()
	if f.GPUHoursBusy == nil || !known || measured <= 0 {
		return 0, false
	}
	return *f.GPUHoursBusy / measured, true
}

// heldGPUs reports whether the job holds or held GPUs.
func (f *efficiency) heldGPUs() bool {
	return f.GPUHoursAsked == nil || *f.GPUHoursAsked > 0 || len(f.GPUs) > 0
}

// advise says what to change. Idle GPUs and their use are judged in the newest run; of a job whose allocations are gone, by
// the sums of its record.
func (f *efficiency) advise() {
	add := func(format string, args ...any) { f.Advice = append(f.Advice, fmt.Sprintf(format, args...)) }
	ended := strings.HasPrefix(f.Status, "ended: ") || f.Status == "dead"
	ran := time.Duration(f.RanSeconds * float64(time.Second))
	switch {
	case f.forgotten:
		add("There is nothing to judge: no allocation and no record of it is left.")
		return
	case f.NotStarted && ended:
		add("It never started, so there is nothing to judge.")
		return
	case f.NotStarted:
		hint := "muster job why " + inNamespace(f.Namespace) + word(f.JobID)
		if f.GPUsAsked > 0 {
			add("It has not started, and asks for %s%s. What it waits for:  %s", plural(f.GPUsAsked, "GPU"), f.inPart(), hint)
		} else {
			add("It has not started. What it waits for:  %s", hint)
		}
		return
	case ran < effMinimum && ended:
		add("Too short to judge: it ran for %s.", span(ran))
		return
	case ran < effMinimum:
		add("Too early to judge: it has run for %s.", span(ran))
		return
	}
	share, known := f.busyShare()
	if len(f.GPUs) > 0 && !f.GPUHoursBusyAtLeast && (f.EarlierAllocations > 0 || !f.unknownGPU) {
		if known = f.gpuHeld > 0 && !f.unknownGPU; known {
			share = f.gpuBusy / f.gpuHeld
		}
	}
	memory := 1.0 // of what was asked for
	if f.GPUMemoryPeakMiB != nil && f.GPUMemoryAskedMiB > 0 {
		memory = float64(*f.GPUMemoryPeakMiB) / float64(f.GPUMemoryAskedMiB)
	}
	switch {
	case !f.heldGPUs():
	case f.IdleGPUs > 0 && f.IdleGPUs == f.newestGPUs():
		add("No GPU did any work: ask for none, or see whether the program finds its GPUs (CUDA_VISIBLE_DEVICES, its log).")
	case f.IdleGPUs > 0:
		add("Ask for fewer GPUs, or use them all: %d of %d did no work.", f.IdleGPUs, f.newestGPUs())
	case !known && f.unknownGPU && f.GPUHoursBusy != nil:
		add("How busy the GPUs were is not known: the size of a GPU that was shared is not known (that needs node:read, and the node).")
	case !known:
		add("How busy the GPUs were is not known: nothing was measured of this job.")
	case share < 0.5 && memory < 0.5:
		add("A part of a GPU may be enough:  gpu { memory = \"%dGiB\" }  (the peak and a fifth).", (*f.GPUMemoryPeakMiB*6/5+1023)/1024)
	case share < 0.5:
		add("The GPUs waited for more than half of the time: look at what feeds them (data loading, cores, checkpoints) before asking for more.")
	}
	if f.MemoryPeakMiB != nil && f.MemoryAskedMiB >= 2048 && *f.MemoryPeakMiB*2 < f.MemoryAskedMiB {
		add("Ask for less memory: the peak is %s of %s so far.", mib(*f.MemoryPeakMiB), mib(f.MemoryAskedMiB))
	}
	if len(f.Advice) == 0 {
		add("Nothing to change.")
	}
}

// inPart says how many of the GPUs that are asked for are not whole ones.
func (f *efficiency) inPart() string {
	switch f.askedParts {
	case 0:
		return ""
	case f.GPUsAsked:
		return " (parts of GPUs)"
	}
	return fmt.Sprintf(" (%d of them in part)", f.askedParts)
}

// newestGPUs counts the GPUs of the newest run.
func (f *efficiency) newestGPUs() (n int) {
	for i := range f.GPUs {
		if !f.GPUs[i].Earlier {
			n++
		}
	}
	return n
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

func (o *effOptions) print(f *efficiency) {
	const unknown = "unknown"
	name := f.JobID
	if f.Namespace != "default" {
		name = f.Namespace + "/" + name
	}
	busy, peak, memory, cores := unknown, unknown, unknown+" (measured of running tasks only)", unknown+" (measured of running tasks only)"
	if f.GPUHoursBusy != nil {
		busy = fmt.Sprintf("%.2f", *f.GPUHoursBusy)
		if f.GPUHoursBusyAtLeast {
			busy = "at least " + busy
		}
		if share, known := f.busyShare(); known {
			busy += " (" + percent(share) + ")"
		}
		if measured, known := f.measuredHours(); known && *f.GPUHoursUnmeasured > 0 {
			busy += fmt.Sprintf(" of %.2f that were measured", measured)
		}
	}
	if f.GPUMemoryPeakMiB != nil {
		peak = mib(*f.GPUMemoryPeakMiB) + " on one GPU"
		if f.GPUMemoryAskedMiB > 0 {
			peak += fmt.Sprintf(", of %s asked for (%s)", mib(f.GPUMemoryAskedMiB), percent(float64(*f.GPUMemoryPeakMiB)/float64(f.GPUMemoryAskedMiB)))
		}
	}
	idle := unknown
	if f.JudgedGPUs > 0 {
		idle = fmt.Sprintf("%d of %d", f.IdleGPUs, f.newestGPUs())
		if f.EarlierAllocations > 0 {
			idle += " of the newest run"
		}
		if n := f.newestGPUs() - f.JudgedGPUs; n > 0 {
			idle += fmt.Sprintf(" (unknown of %d)", n)
		}
	}
	hours := unknown + " (the size of a GPU that was shared is not known)"
	if f.GPUHoursAsked != nil {
		hours = fmt.Sprintf("%.2f", *f.GPUHoursAsked)
	}
	if f.EarlierAllocations > 0 {
		hours += fmt.Sprintf(", with %s before the newest run", plural(int64(f.EarlierAllocations), "allocation"))
	}
	if f.MemoryPeakMiB != nil {
		memory = fmt.Sprintf("peak %s, of %s asked for", mib(*f.MemoryPeakMiB), mib(f.MemoryAskedMiB))
	}
	if f.CoresBusy != nil {
		cores = fmt.Sprintf("%.1f cores busy now", *f.CoresBusy)
		switch {
		case f.CoresAsked > 0:
			cores += fmt.Sprintf(", of %s asked for", plural(f.CoresAsked, "core"))
		case f.MHzAsked > 0:
			cores += fmt.Sprintf(", %d MHz asked for", f.MHzAsked)
		}
	}
	rows := [][2]string{{"Job", name}, {"Status", f.Status}}
	switch {
	case f.heldGPUs():
		rows = append(rows, [2]string{"GPU Hours Asked", hours}, [2]string{"GPU Hours Busy", busy}, [2]string{"GPU Memory Peak", peak}, [2]string{"Idle GPUs", idle})
	case f.GPUsAsked > 0 && len(f.asked) > 0:
		rows = append(rows, [2]string{"GPUs", fmt.Sprintf("%d asked for%s: %s", f.GPUsAsked, f.inPart(), strings.Join(f.asked, ", "))})
	case f.GPUsAsked > 0:
		rows = append(rows, [2]string{"GPUs", fmt.Sprintf("%d asked for", f.GPUsAsked)})
	case f.askedMiB > 0:
		rows = append(rows, [2]string{"GPUs", mib(f.askedMiB) + " of GPU memory asked for"})
	default:
		rows = append(rows, [2]string{"GPUs", "none asked for"})
	}
	o.kv(append(rows, [2]string{"Memory", memory}, [2]string{"Processor", cores}))
	if f.AllocationsLeftOut > 0 {
		o.printf("GPUs are shown of the allocations that are kept, at most %d; there were %d more.\n", effAllocs, f.AllocationsLeftOut)
	}
	if len(f.GPUs) > 0 {
		o.println()
		table := [][]string{}
		for i := range f.GPUs {
			g := &f.GPUs[i]
			b, p := unknown, unknown
			if hours, known := g.hours(); g.BusySeconds != nil && known && hours > 0 {
				b = percent(*g.BusySeconds / 3600 / hours)
			}
			if g.Idle {
				b = "idle"
			}
			if g.PeakMiB != nil {
				p = mib(*g.PeakMiB)
			}
			of := unknown
			if g.AskedMiB > 0 {
				of = mib(g.AskedMiB)
			}
			table = append(table, []string{g.GPU, g.Model, g.NodeName, shortID(g.AllocID, false), span(time.Duration(g.HeldSeconds * float64(time.Second))), b, p, of})
		}
		o.table("GPU|MODEL|NODE|ALLOCATION|HELD|BUSY|PEAK|ASKED", table)
	}
	o.println()
	for _, l := range f.Advice {
		o.println("Advice: " + l)
	}
}
