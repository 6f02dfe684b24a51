package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

type allocStatusOptions struct {
	*env
	form                       format
	job, short, stats, verbose bool
}

func newAllocStatus(e *env) *cobra.Command {
	o := &allocStatusOptions{env: e}
	c := e.verb("status [options] [ALLOCATION]", "List allocations, or show one", "List allocations, or show one: where it runs, what its tasks did and use, and why it was placed there.", `
muster alloc status
muster alloc status -o wide
muster alloc status 8ba85cef
muster alloc status -job example
muster alloc status -stats -verbose 8ba85cef
muster alloc status -t '{{.ClientStatus}}' 8ba85cef`, 0, 1, o.run)
	o.form.listFlags(c)
	o.form.wideFlag(c)
	f := c.Flags()
	f.BoolVar(&o.short, "short", false, "only the essentials")
	f.BoolVar(&o.stats, "stats", false, "what the tasks use, in detail")
	f.BoolVar(&o.verbose, "verbose", false, "long ids, exact times, placement metrics")
	ofList(c, "out")
	e.ofAlloc(c, &o.job)
	ofOne(c, "short", "stats", "job")
	return c
}

func (o *allocStatusOptions) run(ctx context.Context, args []string) error {
	if o.short && o.stats {
		return errors.New("-short leaves out what -stats shows: choose one")
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	if len(args) == 0 {
		q := url.Values{}
		queryFlag(q, "resources", o.form.wide)
		var list []*wire.AllocationListStub
		if _, err := a.get(ctx, "/v1/allocations", q, &list); err != nil {
			return err
		}
		if done, err := listed(&o.form, o.env, list, "", func(s *wire.AllocationListStub) string { return s.ID }); done || err != nil {
			return err
		}
		o.allocList(list)
		return nil
	}
	al, err := o.pickAlloc(ctx, a, args[0], o.job)
	if err != nil {
		return err
	}
	if done, err := o.form.done(o.env, al); done || err != nil {
		return err
	}
	if o.form.quiet {
		o.println(al.ID)
		return nil
	}
	o.show(ctx, a, al)
	return nil
}

func (o *allocStatusOptions) allocList(list []*wire.AllocationListStub) {
	if len(list) == 0 {
		o.println("No allocations")
		return
	}
	slices.SortStableFunc(list, func(x, y *wire.AllocationListStub) int { return int(int64(y.CreateIndex) - int64(x.CreateIndex)) })
	all := make([]string, 0, len(list))
	for _, s := range list {
		all = append(all, s.ID)
	}
	cut := abbreviate(o.verbose, all)
	head, rows := "ID|Job ID|Task Group|Node ID|Desired|Status|Created", [][]string{}
	if o.form.wide {
		head += "|Modified|Namespace|Version|Index|Exit|GPUs|Node"
	}
	for _, s := range list {
		r := []string{cut(s.ID), s.JobID, s.TaskGroup, shortID(s.NodeID, o.verbose), s.DesiredStatus, allocState(s.ClientStatus, s.Suspension), o.ageNanos(s.CreateTime, o.verbose)}
		if o.form.wide {
			r = append(r, o.ageNanos(s.ModifyTime, o.verbose), s.Namespace, strconv.FormatUint(s.JobVersion, 10), strconv.Itoa(nameIndex(s.Name)), allocExit(s), gpusHeld(s.AllocatedResources), s.NodeName)
		}
		rows = append(rows, r)
	}
	o.table(head, rows)
}

func (o *allocStatusOptions) show(ctx context.Context, a *api, al *wire.Allocation) {
	rows := [][2]string{
		{"ID", al.ID}, {"Eval ID", shortID(al.EvalID, o.verbose)}, {"Name", al.Name}, {"Node ID", shortID(al.NodeID, o.verbose)}, {"Node Name", al.NodeName},
		{"Job ID", al.JobID}, {"Job Version", strconv.FormatUint(al.JobVersion, 10)}, {"Client Status", allocState(al.ClientStatus, al.Suspension)}, {"Client Description", al.ClientDescription},
		{"Desired Status", al.DesiredStatus}, {"Desired Description", al.DesiredDescription}, {"Created", o.ageNanos(al.CreateTime, o.verbose)}, {"Modified", o.ageNanos(al.ModifyTime, o.verbose)},
	}
	if al.Namespace != "default" {
		rows = slices.Insert(rows, 5, [2]string{"Namespace", al.Namespace})
	}
	add := func(k, v string) {
		if v != "" {
			rows = append(rows, [2]string{k, v})
		}
	}
	add("Replacement Alloc ID", shortID(al.NextAllocation, o.verbose))
	add("Previous Alloc ID", shortID(al.PreviousAllocation, o.verbose))
	add("Follow-up Eval ID", shortID(al.FollowupEvalID, o.verbose))
	add("Preempted By", shortID(al.PreemptedByAllocation, o.verbose))
	if n := al.RescheduleTracker; n != nil && len(n.Events) > 0 {
		add("Reschedule Attempts", strconv.Itoa(len(n.Events)))
	}
	for _, w := range al.WaitsOn {
		add("Waits On", shortID(w, o.verbose))
	}
	for _, s := range []struct {
		key  string
		what *wire.SavedCheckpoint
	}{{"Checkpoint", al.Checkpoint}, {"Resumes From", al.ResumeFrom}} {
		if s.what != nil {
			add(s.key, o.saved(s.what))
		}
	}
	add("Topology", al.Topology)
	add("Gang Topology", al.GangTopology)
	add("Suspension", o.standsStill(al.Suspension))
	o.kv(rows)
	if o.short {
		rows := [][]string{}
		for _, t := range o.taskNames(al) {
			if s := al.TaskStates[t]; s != nil {
				rows = append(rows, []string{t, s.State, o.lastEvent(s), o.age(lastTime(s), o.verbose)})
			}
		}
		if len(rows) > 0 {
			o.heading("Tasks")
			o.table("Name|State|Last Event|Time", rows)
		}
		return
	}
	if r := al.AllocatedResources; r != nil && len(r.Shared.Ports) > 0 {
		o.heading("Allocation Addresses")
		rows := [][]string{}
		for _, p := range r.Shared.Ports {
			to := ""
			if p.To > 0 {
				to = " -> " + strconv.Itoa(p.To)
			}
			rows = append(rows, []string{p.Label, fmt.Sprintf("%s:%d%s", p.HostIP, p.Value, to)})
		}
		o.table("Label|Address", rows)
	}
	var usage *wire.AllocResourceUsage
	if al.ClientStatus == "running" {
		var u wire.AllocResourceUsage
		sctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := a.get(sctx, "/v1/client/allocation/"+al.ID+"/stats", ns(al.Namespace), &u)
		cancel()
		if err == nil {
			usage = &u
		} else if o.stats {
			o.hint("What the tasks use is not known: %v", err)
		}
	}
	for _, t := range o.taskNames(al) {
		o.task(al, t, usage)
	}
	if o.verbose || o.stats {
		o.metrics(al)
	}
	if al.ClientStatus == "failed" || al.ClientStatus == "lost" {
		if ran := func(t *wire.TaskState) bool { return !t.StartedAt.IsZero() || t.Restarts > 0 }; slices.ContainsFunc(slices.Collect(maps.Values(al.TaskStates)), ran) { // what never started wrote nothing
			where := inNamespace(al.Namespace) + shortID(al.ID, false)
			o.hint("\nWhat it wrote:  muster alloc logs %s   and   muster alloc logs -stderr %s", where, where)
		}
	}
}

func (o *allocStatusOptions) taskNames(al *wire.Allocation) []string {
	names := tasksOf(al)
	for _, t := range sortedKeys(al.TaskStates) {
		if !slices.Contains(names, t) {
			names = append(names, t)
		}
	}
	return names
}

func lastTime(s *wire.TaskState) time.Time {
	if n := len(s.Events); n > 0 {
		return time.Unix(0, s.Events[n-1].Time)
	}
	return time.Time{}
}

func (o *allocStatusOptions) lastEvent(s *wire.TaskState) string {
	if n := len(s.Events); n > 0 {
		return s.Events[n-1].Type
	}
	return "-"
}

func (o *allocStatusOptions) task(al *wire.Allocation, name string, usage *wire.AllocResourceUsage) {
	state := al.TaskStates[name]
	word := "pending"
	if state != nil {
		word = state.State
		if state.Failed {
			word += " (failed)"
		}
	}
	o.heading(fmt.Sprintf("Task %q is %q", name, word))
	if r := al.AllocatedResources; r != nil && r.Tasks[name] != nil {
		o.taskResources(al, name, r.Tasks[name], usage)
	}
	if state == nil {
		return
	}
	o.println()
	o.println(o.bold("Task Events:"))
	o.kv([][2]string{{"Started At", date(state.StartedAt)}, {"Finished At", date(state.FinishedAt)}, {"Total Restarts", strconv.FormatUint(state.Restarts, 10)}, {"Last Restart", date(state.LastRestart)}})
	if len(state.Events) == 0 {
		return
	}
	o.println()
	o.println(o.bold("Recent Events:"))
	rows := [][]string{}
	for _, e := range slices.Backward(state.Events) {
		rows = append(rows, []string{date(time.Unix(0, e.Time)), e.Type, strings.ReplaceAll(e.DisplayMessage, "\n", " ")})
	}
	o.table("Time|Type|Description", rows)
}

func (o *allocStatusOptions) taskResources(al *wire.Allocation, name string, r *wire.AllocatedTaskResources, usage *wire.AllocResourceUsage) {
	cpu, mem := fmt.Sprintf("%d MHz", r.Cpu.CpuShares), mib(r.Memory.MemoryMB)
	if len(r.Cpu.ReservedCores) > 0 {
		cpu += fmt.Sprintf(" (cores %v)", r.Cpu.ReservedCores)
	}
	if r.Memory.MemoryMaxMB > r.Memory.MemoryMB {
		mem += " (at most " + mib(r.Memory.MemoryMaxMB) + ")"
	}
	var use *wire.ResourceUsage
	if usage != nil && usage.Tasks[name] != nil {
		use = usage.Tasks[name].ResourceUsage
	}
	if use != nil && use.CpuStats != nil {
		cpu = fmt.Sprintf("%.0f/%s", use.CpuStats.TotalTicks, cpu)
	}
	if use != nil && use.MemoryStats != nil {
		m := use.MemoryStats.Usage
		if m == 0 {
			m = use.MemoryStats.RSS
		}
		mem = bytesText(m) + "/" + mem
	}
	disk := ""
	if al.AllocatedResources != nil {
		disk = mib(al.AllocatedResources.Shared.DiskMB)
	}
	o.println(o.bold("Task Resources:"))
	o.table("CPU|Memory|Disk", [][]string{{cpu, mem, disk}})
	if len(r.Devices) > 0 {
		rows := [][]string{}
		for _, d := range r.Devices {
			for _, id := range d.DeviceIDs {
				share := "whole"
				for _, s := range d.Shares {
					if s.DeviceID == id {
						share = shareText(s)
					}
				}
				rows = append(rows, []string{strings.Trim(d.Vendor+"/"+d.Type+"/"+d.Name, "/"), id, share})
			}
		}
		o.println()
		o.println(o.bold("Device Grants:"))
		o.table("Device|ID|Share", rows)
	}
	if use != nil {
		o.gpuUse(use.DeviceStats)
	} else if al.ClientStatus != "running" {
		o.gpuUsed(al.GPUUse, name)
	}
	if !o.stats || use == nil {
		return
	}
	if m := use.MemoryStats; m != nil {
		o.println()
		o.println(o.bold("Memory Stats"))
		o.table("Usage|Max Usage|RSS|Cache|Swap", [][]string{{bytesText(m.Usage), bytesText(m.MaxUsage), bytesText(m.RSS), bytesText(m.Cache), bytesText(m.Swap)}})
	}
	if s := use.CpuStats; s != nil {
		o.println()
		o.println(o.bold("CPU Stats"))
		o.table("Percent|User Mode|System Mode|Throttled Periods|Throttled Time", [][]string{{fmt.Sprintf("%.2f%%", s.Percent), fmt.Sprintf("%.2f%%", s.UserMode), fmt.Sprintf("%.2f%%", s.SystemMode), fmt.Sprint(s.ThrottledPeriods), time.Duration(s.ThrottledTime).String()}})
	}
	o.deviceStats(use.DeviceStats, o.verbose)
}

// gpuUse prints the task's use of each of its GPUs.
func (e *env) gpuUse(groups []*wire.DeviceGroupStats) {
	rows := [][]string{}
	for _, g := range groups {
		for _, id := range sortedKeys(g.InstanceStats) {
			s := g.InstanceStats[id]
			if s == nil || s.Stats == nil || s.Stats.Attributes["Task SM time"] == nil {
				continue
			}
			row := []string{id}
			for _, name := range []string{"Task memory", "Task memory, peak", "Task memory over time", "Task SM time", "Task SM activity", "Task energy", "Task allocations refused"} {
				text := "-"
				if v := s.Stats.Attributes[name]; v != nil {
					text = useText(name, v)
				}
				row = append(row, text)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) > 0 {
		e.println()
		e.println(e.bold("GPU Use"))
		e.table("GPU|Memory|Peak|Memory Over Time|SM Time|SM Active|Energy|Refused", rows)
	}
}

// useText formats a running task's use like that of an ended one.
func useText(name string, v *wire.StatValue) string {
	if v.IntNumeratorVal != nil {
		switch n := *v.IntNumeratorVal; name {
		case "Task memory over time":
			return gibHours(n) + " GiB-hours"
		case "Task SM time":
			return tenths(float64(n)/1000) + " s"
		case "Task energy":
			return tenths(float64(n)/1000) + " J"
		}
	}
	return strings.TrimSuffix(statText(v), " #")
}

// gpuUsed prints an ended task's use of its GPUs.
func (e *env) gpuUsed(list []*wire.GPUUse, task string) {
	rows := [][]string{}
	for _, u := range list {
		if u != nil && u.Task == task {
			rows = append(rows, []string{u.GPU, mib(u.PeakMiB), gibHours(u.MiBSeconds) + " GiB-hours", tenths(u.SMSeconds) + " s", smActive(u), tenths(u.EnergyJoules) + " J", strconv.FormatInt(u.Refused, 10)})
		}
	}
	if len(rows) > 0 {
		e.println()
		e.println(e.bold("GPU Use"))
		e.table("GPU|Peak|Memory Over Time|SM Time|SM Active|Energy|Refused", rows)
	}
}

// smActive formats the mean activity of the multiprocessors, or "-".
func smActive(u *wire.GPUUse) string {
	if u == nil || u.SMActivity == nil {
		return "-"
	}
	return tenths(*u.SMActivity) + " %"
}

func tenths(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

// deviceStats prints one line per device, and with verbose one per measurement.
func (e *env) deviceStats(groups []*wire.DeviceGroupStats, verbose bool) {
	rows, all := [][]string{}, [][]string{}
	for _, g := range groups {
		for _, id := range sortedKeys(g.InstanceStats) {
			if s := g.InstanceStats[id]; s != nil && s.Summary != nil {
				rows = append(rows, []string{strings.Trim(g.Vendor+"/"+g.Type+"/"+g.Name, "/"), id, statText(s.Summary)})
				for i, name := range measurements(s) {
					shown := id
					if i > 0 {
						shown = ""
					}
					all = append(all, []string{shown, name, statText(s.Stats.Attributes[name])})
				}
			}
		}
	}
	if len(rows) > 0 {
		e.println()
		e.println(e.bold("Device Stats"))
		e.table("Device|ID|"+"Summary", rows)
	}
	if verbose && len(all) > 0 {
		e.println()
		e.println(e.bold("Device Measurements"))
		e.table("ID|Measurement|Value", all)
	}
}

// measurements returns the names of a device's measurements other than its summary.
func measurements(s *wire.DeviceStats) []string {
	if s.Stats == nil {
		return nil
	}
	return sortedKeys(s.Stats.Attributes)
}

func statText(s *wire.StatValue) string {
	text := ""
	switch {
	case s.IntNumeratorVal != nil && s.IntDenominatorVal != nil:
		text = fmt.Sprintf("%d / %d", *s.IntNumeratorVal, *s.IntDenominatorVal)
	case s.IntNumeratorVal != nil:
		text = fmt.Sprint(*s.IntNumeratorVal)
	case s.FloatNumeratorVal != nil && s.FloatDenominatorVal != nil:
		text = fmt.Sprintf("%g / %g", *s.FloatNumeratorVal, *s.FloatDenominatorVal)
	case s.FloatNumeratorVal != nil:
		text = fmt.Sprintf("%g", *s.FloatNumeratorVal)
	case s.StringVal != nil:
		text = *s.StringVal
	case s.BoolVal != nil:
		text = strconv.FormatBool(*s.BoolVal)
	}
	return strings.TrimSpace(text + " " + s.Unit)
}

// metrics prints why the allocation is where it is.
func (o *allocStatusOptions) metrics(al *wire.Allocation) {
	m := al.Metrics
	if m == nil {
		return
	}
	o.heading("Placement Metrics")
	o.printf("%s in the pool, %d looked at, %d excluded, %d full\n", plural(int64(m.NodesInPool), "node"), m.NodesEvaluated, m.NodesFiltered, m.NodesExhausted)
	for _, r := range m.Refusals {
		o.printf("  * %s\n", refusalLine(r.ToStructs())+slotText(r.ToStructs()))
	}
	if len(m.ScoreMetaData) == 0 {
		return
	}
	var names []string
	for _, s := range m.ScoreMetaData {
		for _, k := range sortedKeys(s.Scores) {
			if !slices.Contains(names, k) {
				names = append(names, k)
			}
		}
	}
	rows := [][]string{}
	for _, s := range m.ScoreMetaData {
		r := []string{shortID(s.NodeID, o.verbose)}
		for _, n := range names {
			r = append(r, scoreText(s.Scores[n], 'g'))
		}
		rows = append(rows, append(r, scoreText(s.NormScore, 'g')))
	}
	o.table(strings.Join(append(append([]string{"Node"}, names...), "final score"), "|"), rows)
}

// scoreText shows a score with three digits, or six where three would be 1: one loss of a node may be in the last of them.
func scoreText(x float64, verb byte) string {
	if x < 1 && x > 0.999 {
		return strconv.FormatFloat(x, 'f', 6, 64)
	}
	return strconv.FormatFloat(x, verb, 3, 64)
}

// shareText describes a part of a device: "20 GiB, 50% compute, enforced by mps".
func shareText(s wire.DeviceShare) string {
	text := mib(s.MemoryMB)
	if s.Compute > 0 {
		text += fmt.Sprintf(", %d%% compute", s.Compute)
	}
	if s.Backend == "" || s.Backend == "none" {
		return text + ", not enforced"
	}
	return text + ", enforced by " + s.Backend
}

// saved describes a checkpoint: its age, size and path.
func (e *env) saved(s *wire.SavedCheckpoint) string {
	text := e.age(time.Unix(0, s.Time), false)
	if s.Path != "" {
		text += ", " + bytesText(uint64(s.Bytes)) + ", " + s.Path
	}
	return text
}
