package endpoint

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/cron"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/internal/suggest"
	"github.com/muster-sched/muster/scheduler"
	"github.com/muster-sched/muster/structs"
)

// Limits on texts in a job.
const (
	jobIDMax       = 512
	jobNameMax     = 512
	jobTextMax     = 16 << 10 // one value of env or meta
	jobMapMax      = 1000     // entries of one env or meta
	jobRulesMax    = 200      // constraints, affinities or spreads in one block
	jobPortsMax    = 1000     // ports of a group
	jobErrorsShown = 100
	datacentersMax = 100
	deviceCountMax = 128
)

// CheckJob returns everything that is wrong with a job after defaults. It repeats checks of the HTTP API, because
// servers trust no caller.
func (s *Set) CheckJob(j *structs.Job) []string {
	p := &problems{}
	switch {
	case j.ID == "":
		p.addf("Missing job ID")
	case len(j.ID) > jobIDMax:
		p.addf("Job ID is %d bytes long; the limit is %d", len(j.ID), jobIDMax)
	case strings.ContainsFunc(j.ID, func(r rune) bool { return r == ' ' || r == utf8.RuneError || r != '\n' && unicode.IsControl(r) }):
		p.addf("Job ID %q contains a space, a control character other than a line break, or bytes that are not UTF-8", j.ID)
	}
	if j.Name == "" || len(j.Name) > jobNameMax || strings.ContainsFunc(j.Name, unicode.IsControl) {
		p.addf("Job name must have 1 to %d bytes and no control characters", jobNameMax)
	}
	switch j.Type {
	case structs.JobService, structs.JobBatch, structs.JobSystem, structs.JobSysBatch:
	default:
		p.addf("Invalid job type: %q; want service, batch, system or sysbatch", j.Type)
	}
	if j.Priority < structs.JobPriorityMin || j.Priority > structs.JobPriorityMax {
		p.addf("Job priority must be between [%d, %d], not %d", structs.JobPriorityMin, structs.JobPriorityMax, j.Priority)
	}
	if j.Region != s.env.Region {
		p.addf("Job region is %q, but this is region %q", j.Region, s.env.Region)
	}
	if len(j.Datacenters) == 0 || len(j.Datacenters) > datacentersMax {
		p.addf("Job needs 1 to %d datacenters, not %d", datacentersMax, len(j.Datacenters))
	}
	for _, dc := range j.Datacenters {
		if dc == "" || len(dc) > 128 {
			p.addf("Job datacenters must be non-empty strings of at most 128 bytes")
		}
	}
	if j.NodePool == "" || len(j.NodePool) > 128 {
		p.addf("Job node pool must have 1 to 128 bytes")
	}
	p.rules("Job", j.Constraints, j.Affinities, j.Spreads)
	p.texts("Job meta", j.Meta)
	if len(j.Queue) > 512 {
		p.addf("Job queue path is longer than 512 bytes")
	}
	switch {
	case len(j.Groups) == 0:
		p.addf("Missing job task groups")
	case len(j.Groups) > structs.GroupsMax:
		p.addf("Job has %d task groups; the limit is %d", len(j.Groups), structs.GroupsMax)
	}
	ns := s.published().Snapshot.Namespace(j.Namespace)
	if ns == nil {
		p.addf("Job %q is in nonexistent namespace %q", j.ID, j.Namespace)
	}
	if s.published().Snapshot.Pool(j.NodePool) == nil {
		p.addf("Job %q is in nonexistent node pool %q%s", j.ID, j.NodePool, nearPool(s.published().Snapshot, j.NodePool))
	}
	seen := map[structs.GroupName]bool{}
	tasks, count := 0, 0
	for i, g := range j.Groups {
		if g == nil {
			p.addf("Task group %d is missing", i+1)
			continue
		}
		if seen[g.Name] {
			p.addf("Job task group %q defined more than once", g.Name)
		}
		seen[g.Name] = true
		tasks += len(g.Tasks)
		count += min(max(g.Count, 0), structs.JobCountMax)
		p.group(j, g, ns)
	}
	if count > structs.JobCountMax {
		p.addf("Job asks for %d allocations over all groups; the limit is %d", count, structs.JobCountMax)
	}
	if tasks > structs.TasksMax {
		p.addf("Job has %d tasks; the limit is %d", tasks, structs.TasksMax)
	}
	p.templates(j)
	s.checkWork(p, j)
	if len(p.list) == 0 {
		if n, err := rpc.Size(j); err != nil {
			p.addf("Job cannot be encoded: %v", err)
		} else if n > structs.JobSizeMax {
			p.addf("Job is %d bytes encoded; the limit is %d", n, structs.JobSizeMax)
		}
	}
	return p.list
}

// nearPool names the pool that may be meant by one that does not exist.
func nearPool(snap *state.Snapshot, name structs.PoolName) string {
	var all []string
	for p := range snap.Pools() {
		all = append(all, string(p.Name))
	}
	if near := suggest.DidYouMean(string(name), all); near != "" {
		return near
	}
	return " (muster node pool list has all)"
}

// templates checks a periodic or parameterized job.
func (p *problems) templates(j *structs.Job) {
	system := j.Type == structs.JobSystem || j.Type == structs.JobService
	if j.Periodic != nil {
		if j.Type == structs.JobSystem || j.Type == structs.JobService {
			p.addf("Periodic can only be used with batch and sysbatch jobs, not %q", j.Type)
		}
		if len(j.Periodic.Specs) == 0 && j.Periodic.Enabled {
			p.addf("Periodic needs a cron expression")
		}
		for _, spec := range j.Periodic.Specs {
			if err := cron.Check(spec); err != nil {
				p.addf("Invalid periodic block: %v", err)
			}
		}
		if tz := j.Periodic.TimeZone; tz != "" && !validZone(tz) {
			p.addf("Invalid time zone %q: want an IANA name such as Europe/Berlin", tz)
		}
	}
	if j.Parameterized != nil {
		if system {
			p.addf("Parameterized job can only be used with batch or sysbatch jobs, not %q", j.Type)
		}
		if v := j.Parameterized.Payload; v != "" && !slices.Contains(structs.Enums["Parameterized.Payload"], v) {
			p.addf("Unknown payload requirement %q: want optional, required or forbidden", j.Parameterized.Payload)
		}
		for _, k := range j.Parameterized.MetaRequired {
			if slices.Contains(j.Parameterized.MetaOptional, k) {
				p.addf("Meta key %q is both required and optional", k)
			}
		}
	}
	if j.Payload != nil && !j.Dispatched {
		p.addf("Only dispatched jobs have a payload")
	}
}

func (p *problems) rules(where string, cs []structs.Constraint, as []structs.Affinity, sp []structs.Spread) {
	if len(cs) > jobRulesMax || len(as) > jobRulesMax || len(sp) > jobRulesMax {
		p.addf("%s: more than %d constraints, affinities or spreads", where, jobRulesMax)
		return
	}
	for i, a := range as {
		if a.Weight == 0 || a.Weight < -100 || a.Weight > 100 {
			p.addf("%s: affinity %d has weight %d; want -100 to 100, not 0", where, i+1, a.Weight)
		}
	}
	for i, x := range sp {
		if x.Attribute == "" {
			p.addf("%s: spread %d has no attribute", where, i+1)
		}
		if x.Weight < 0 || x.Weight > 100 {
			p.addf("%s: spread %d has weight %d; want 0 to 100", where, i+1, x.Weight)
		}
		sum := int64(0)
		for _, t := range x.Targets {
			if t.Percent < 0 || t.Percent > 100 {
				p.addf("%s: spread target %q has %d percent; want 0 to 100", where, t.Value, t.Percent)
			}
			sum += t.Percent
		}
		if sum > 100 {
			p.addf("%s: spread targets of %q add up to %d percent", where, x.Attribute, sum)
		}
	}
	for i, c := range cs {
		if c.Operand == "" {
			p.addf("%s: constraint %d has no operand", where, i+1)
		}
		if len(c.LTarget) > 1024 || len(c.RTarget) > 4096 {
			p.addf("%s: constraint %d is longer than its limit", where, i+1)
		}
	}
}

func (p *problems) texts(where string, m map[string]string) {
	if len(m) > jobMapMax {
		p.addf("%s has %d entries; the limit is %d", where, len(m), jobMapMax)
		return
	}
	for k, v := range m {
		if k == "" || len(k) > 256 || len(v) > jobTextMax || strings.ContainsRune(k, 0) || strings.ContainsRune(v, 0) {
			p.addf("%s: key %.40q must have 1 to 256 bytes, its value at most %d, and neither may contain NUL", where, k, jobTextMax)
		}
	}
}

func (p *problems) group(j *structs.Job, g *structs.Group, ns *structs.Namespace) {
	where := fmt.Sprintf("Task group %q", g.Name)
	if g.Name == "" || len(g.Name) > 128 || strings.ContainsFunc(string(g.Name), func(r rune) bool { return unicode.IsControl(r) || r == '/' }) {
		p.addf("%s: the name must have 1 to 128 bytes without slashes and control characters", where)
	}
	switch {
	case g.Count < 0:
		p.addf("%s count can't be negative", where)
	case g.Count > structs.GroupCountMax:
		p.addf("%s count is %d; the limit is %d", where, g.Count, structs.GroupCountMax)
	case (j.Type == structs.JobSystem || j.Type == structs.JobSysBatch) && g.Count > 1:
		p.addf("%s: a %s job has a count of 0 or 1 on each node, not %d", where, j.Type, g.Count)
	}
	if most := scheduler.GangMembersMax(g); g.Gang != nil && g.Least()+g.Gang.Standby > most {
		p.addf("%s: a gang of at least %d members and standbys does not fit into one log entry; with what each of them asks for the limit is %d (fewer members with more GPUs each, or a smaller min)", where, g.Least()+g.Gang.Standby, most)
	}
	p.rules(where, g.Constraints, g.Affinities, g.Spreads)
	p.texts(where+" meta", g.Meta)
	for i := range g.Volumes {
		if _, err := g.Volumes[i].Host(); err != nil {
			p.addf("%s: %v", where, err)
		}
	}
	if g.Disk.SizeMiB < 0 || g.Disk.SizeMiB > 1<<40 {
		p.addf("%s: ephemeral disk of %d MB", where, g.Disk.SizeMiB)
	}
	if g.Restart.Attempts < 0 || g.Restart.Delay < 0 || g.Restart.Interval < 0 || g.Restart.Mode != "" && g.Restart.Mode != "fail" && g.Restart.Mode != "delay" {
		p.addf("%s: restart needs attempts, interval and delay of 0 or more and mode fail or delay", where)
	}
	r := g.Reschedule
	if r.Attempts < 0 || r.Interval < 0 || r.Delay < 0 || r.MaxDelay < 0 {
		p.addf("%s: reschedule values must not be negative", where)
	}
	if v := string(r.DelayFunction); v != "" && !slices.Contains(structs.Enums["Reschedule.DelayFunction"], v) {
		p.addf("%s: unknown reschedule delay function %q; want constant, exponential or fibonacci", where, r.DelayFunction)
	}
	if g.Scaling != nil && (g.Scaling.Min < 0 || g.Scaling.Max < g.Scaling.Min || int64(g.Count) > g.Scaling.Max || int64(g.Count) < g.Scaling.Min) {
		p.addf("%s: count %d is not between scaling min %d and max %d", where, g.Count, g.Scaling.Min, g.Scaling.Max)
	}
	if g.MaxRunDuration < 0 || g.ShutdownDelay < 0 {
		p.addf("%s: durations must not be negative", where)
	}
	if len(g.Networks) > 1 {
		p.addf("%s: only one network block per group", where)
	}
	ports := 0
	labels := map[string]bool{}
	static := map[int]bool{}
	for _, n := range g.Networks {
		switch n.Mode {
		case "", structs.NetworkHost:
		case structs.NetworkNone, structs.NetworkBridge:
			if g.Gang != nil || g.Launch != nil {
				p.addf("%s: a gang or launch needs network mode host, not %s", where, n.Mode)
			}
		default:
			p.addf("%s: network mode %q is not supported; want bridge, host or none", where, n.Mode)
		}
		for _, t := range g.Tasks {
			if t != nil && n.Mode == structs.NetworkBridge && !structs.JoinsNetwork(t.Driver) {
				p.addf("%s: task %q of driver %q cannot join a network of mode bridge", where, t.Name, t.Driver)
			}
		}
		if n.Hostname != "" && n.Mode != structs.NetworkBridge {
			p.addf("%s: a hostname needs network mode bridge", where)
		}
		for _, q := range append(slices.Clone(n.StaticPorts), n.DynamicPorts...) {
			ports++
			if q.Label == "" || labels[q.Label] {
				p.addf("%s: port label %q is empty or used twice", where, q.Label)
			}
			labels[q.Label] = true
			if q.Value < 0 || q.Value > 65535 || q.To < -1 || q.To > 65535 {
				p.addf("%s: port %q must be 0 to 65535", where, q.Label)
			}
		}
		for _, q := range n.StaticPorts {
			if q.Value == 0 {
				p.addf("%s: static port %q has no number", where, q.Label)
			} else if static[q.Value] && !q.IgnoreCollision {
				p.addf("%s: static port %d is asked for twice", where, q.Value)
			}
			static[q.Value] = true
		}
	}
	if ports > jobPortsMax {
		p.addf("%s: %d ports are over the limit of %d", where, ports, jobPortsMax)
	}
	if len(g.Tasks) == 0 {
		p.addf("Missing tasks for task group %q", g.Name)
	}
	seen := map[string]bool{}
	leaders, mains := 0, 0
	for i, t := range g.Tasks {
		if t == nil {
			p.addf("%s: task %d is missing", where, i+1)
			continue
		}
		if seen[t.Name] {
			p.addf("%s: task %q defined more than once", where, t.Name)
		}
		seen[t.Name] = true
		if t.Leader {
			leaders++
		}
		if t.Lifecycle == nil {
			mains++
		}
		p.task(where, t, ns)
	}
	if leaders > 1 {
		p.addf("%s: only one task may be the leader", where)
	}
	if len(g.Tasks) > 0 && mains == 0 {
		p.addf("%s: only tasks with lifecycle hooks; at least one main task is needed", where)
	}
}

func (p *problems) task(group string, t *structs.Task, ns *structs.Namespace) {
	where := fmt.Sprintf("%s task %q", group, t.Name)
	if err := structs.CheckTaskName(t.Name); err != nil {
		p.addf("%s: %v", where, err)
	}
	if t.Driver == "" || len(t.Driver) > 64 {
		p.addf("%s: missing task driver", where)
	}
	if ns != nil {
		if len(ns.EnabledDrivers) > 0 && !slices.Contains(ns.EnabledDrivers, t.Driver) || slices.Contains(ns.DisabledDrivers, t.Driver) {
			p.addf("%s: used task driver %q is not allowed in namespace %q", where, t.Driver, ns.Name)
		}
	}
	p.rules(where, t.Constraints, t.Affinities, nil)
	p.texts(where+" env", t.Env)
	p.texts(where+" meta", t.Meta)
	if t.KillTimeout < 0 || t.ShutdownDelay < 0 {
		p.addf("%s: kill_timeout and shutdown_delay must not be negative", where)
	}
	r := t.Resources
	if r.CPU < 0 || r.Cores < 0 || r.MemoryMiB < 0 || r.MemoryMaxMiB < -1 || r.DiskMiB < 0 ||
		r.CPU > 1<<40 || r.Cores > 1<<20 || r.MemoryMiB > 1<<40 || r.MemoryMaxMiB > 1<<40 || r.DiskMiB > 1<<40 {
		p.addf("%s: resources are negative or too large", where)
	}
	if r.MemoryMaxMiB > 0 && r.MemoryMaxMiB < r.MemoryMiB {
		p.addf("%s: memory_max %d is less than memory %d", where, r.MemoryMaxMiB, r.MemoryMiB)
	}
	for _, d := range r.Devices {
		if d.Name == "" || d.Count < 0 || d.Count > deviceCountMax {
			p.addf("%s: device %q needs a name and a count of 0 to %d, not %d", where, d.Name, deviceCountMax, d.Count)
		}
		p.rules(where+" device", d.Constraints, d.Affinities, nil)
	}
	for i := range r.GPU {
		g := &r.GPU[i]
		if g.Count < 0 || g.Count > deviceCountMax || g.MemoryMiB < 0 || g.MemoryMiB > 1<<40 || g.Share < 0 || g.Share > 100 || g.Compute < 0 || g.Compute > structs.GPUComputeMax {
			p.addf("%s: gpu request %d: want a count of 0 to %d, memory in MiB, and share and compute from 0 to 100 percent", where, i+1, deviceCountMax)
		}
		if g.Compute > 0 && !g.Shared() || g.MemoryMiB > 0 && g.Share > 0 {
			p.addf("%s: gpu request %d: a part of a GPU is either memory in MiB or a share in percent", where, i+1)
		}
		if g.PowerLimitW < 0 || g.PowerLimitW > 1<<20 || g.PowerLimitW > 0 && (g.Shared() || g.MIG != "") {
			p.addf("%s: gpu request %d: a power limit is for whole GPUs, in watts", where, i+1)
		}
		if x := g.Pressure; x != nil && (!g.Shared() || len(x.At) > structs.GPUPressureMax) {
			p.addf("%s: gpu request %d: memory pressure thresholds are only for shares, at most %d", where, i+1, structs.GPUPressureMax)
		}
		p.rules(where+" gpu", g.Constraints, g.Affinities, nil)
	}
	if t.Logs.MaxFiles < 0 || t.Logs.MaxFileSizeMB < 0 {
		p.addf("%s: log limits must not be negative", where)
	}
	if l := t.Lifecycle; l != nil {
		if !slices.Contains(structs.Enums["Lifecycle.Hook"], l.Hook) {
			p.addf("%s: invalid lifecycle hook %q; want prestart, poststart or poststop", where, l.Hook)
		}
		if t.Leader {
			p.addf("%s: a task with a lifecycle hook cannot be the leader", where)
		}
	}
	if strings.Contains(t.DispatchPayload, "..") || strings.HasPrefix(t.DispatchPayload, "/") {
		p.addf("%s: dispatch payload file %q must stay below the task's local directory", where, t.DispatchPayload)
	}
}
