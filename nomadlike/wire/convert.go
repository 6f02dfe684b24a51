package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/muster-sched/muster/structs"
)

// ToStructs converts a canonical job (see Canonicalize). It checks only what it needs for the conversion. Fields that
// servers set are converted too, so that a job read from a server survives a round trip. Tokens of Consul and Vault are
// dropped.
func (j *Job) ToStructs() (*structs.Job, error) {
	c := converter{}
	out := &structs.Job{
		Namespace: val(j.Namespace), ID: val(j.ID), Name: val(j.Name), ParentID: val(j.ParentID), Region: val(j.Region),
		Type: structs.JobType(val(j.Type)), Priority: val(j.Priority), AllAtOnce: val(j.AllAtOnce),
		Datacenters: slices.Clone(j.Datacenters), NodePool: structs.PoolName(val(j.NodePool)), Constraints: constraintsTo(j.Constraints),
		Affinities: affinitiesTo(j.Affinities), Spreads: spreadsTo(j.Spreads), Update: updateTo(j.Update),
		Dispatched: j.Dispatched, DispatchIdempotencyToken: val(j.DispatchIdempotencyToken), Payload: slices.Clone(j.Payload),
		Meta: cloneMap(j.Meta), Queue: j.queue(), Stop: val(j.Stop), Stable: val(j.Stable), Version: val(j.Version),
		SubmitTime: structs.LogTime(val(j.SubmitTime)), Status: structs.JobStatus(val(j.Status)),
		StatusDesc: val(j.StatusDescription), CreateIndex: structs.Index(val(j.CreateIndex)),
		ModifyIndex: structs.Index(val(j.ModifyIndex)), SpecIndex: structs.Index(val(j.JobModifyIndex)),
	}
	c.ownTo(j, out)
	if p := j.Periodic; p != nil {
		out.Periodic = &structs.Periodic{Enabled: val(p.Enabled), Specs: p.specs(), ProhibitOverlap: val(p.ProhibitOverlap), TimeZone: val(p.TimeZone)}
	}
	if p := j.ParameterizedJob; p != nil {
		out.Parameterized = &structs.Parameterized{Payload: p.Payload, MetaRequired: slices.Clone(p.MetaRequired), MetaOptional: slices.Clone(p.MetaOptional)}
	}
	if j.UI != nil {
		out.UI = &structs.JobUI{Description: j.UI.Description}
		for _, l := range j.UI.Links {
			if l != nil {
				out.UI.Links = append(out.UI.Links, structs.JobLink{Label: l.Label, URL: l.URL})
			}
		}
	}
	if t := j.VersionTag; t != nil {
		out.VersionTag = &structs.JobVersionTag{Name: t.Name, Description: t.Description, TaggedTime: structs.LogTime(t.TaggedTime)}
	}
	if s := j.Submitter; s != nil {
		id, err := structs.ParseID[structs.AccessorID](s.Accessor)
		c.fail("Submitter.Accessor", err)
		out.Submitter = structs.Submitter{Name: s.Name, UID: s.UID, GID: s.GID, Accessor: id}
	}
	for _, g := range j.TaskGroups {
		if g != nil {
			out.Groups = append(out.Groups, c.group(g))
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	return out, nil
}

// queue returns the queue a job asks for.
func (j *Job) queue() structs.QueuePath {
	return structs.QueuePath(val(j.Queue))
}

func (p *PeriodicConfig) specs() []string {
	if val(p.Spec) != "" {
		return append([]string{*p.Spec}, p.Specs...)
	}
	return slices.Clone(p.Specs)
}

// converter keeps the first error of a conversion.
type converter struct{ err error }

func (c *converter) fail(where string, err error) {
	if err != nil && c.err == nil {
		c.err = structs.Errorf(structs.CodeInvalid, "%s: %v", where, err)
	}
}

// raw returns the canonical JSON of v, empty for an empty map.
func (c *converter) raw(where string, v any) structs.RawConfig {
	if m, ok := v.(map[string]any); ok && len(m) == 0 {
		return nil
	}
	b, err := CanonicalJSON(v)
	c.fail(where, err)
	return b
}

func (c *converter) group(g *TaskGroup) *structs.Group {
	where := "group " + val(g.Name)
	out := &structs.Group{
		Name: structs.GroupName(val(g.Name)), Count: val(g.Count), Constraints: constraintsTo(g.Constraints), Affinities: affinitiesTo(g.Affinities),
		Spreads: spreadsTo(g.Spreads), Networks: networksTo(g.Networks), Update: updateTo(g.Update), Meta: cloneMap(g.Meta),
		ShutdownDelay: dur(g.ShutdownDelay), MaxRunDuration: dur(g.MaxRunDuration), MaxClientDisc: durPtr(g.MaxClientDisconnect),
		StopAfterDisc: durPtr(g.StopAfterClientDisconnect), PreventLostResch: val(g.PreventRescheduleOnLost),
		Services: c.services(where, g.Services),
	}
	if r := g.RestartPolicy; r != nil {
		out.Restart = restartTo(r)
	}
	if r := g.ReschedulePolicy; r != nil {
		out.Reschedule = structs.Reschedule{Attempts: val(r.Attempts), Interval: dur(r.Interval), Delay: dur(r.Delay),
			DelayFunction: structs.DelayFunction(val(r.DelayFunction)), MaxDelay: dur(r.MaxDelay), Unlimited: val(r.Unlimited)}
	}
	if m := g.Migrate; m != nil {
		out.Migrate = &structs.Migrate{MaxParallel: val(m.MaxParallel), HealthCheck: val(m.HealthCheck),
			MinHealthyTime: dur(m.MinHealthyTime), HealthyDeadline: dur(m.HealthyDeadline)}
	}
	if d := g.Disconnect; d != nil {
		out.Disconnect = &structs.Disconnect{LostAfter: dur(d.LostAfter), StopOnClientAfter: durPtr(d.StopOnClientAfter),
			Replace: clonePtr(d.Replace), Reconcile: val(d.Reconcile)}
	}
	if s := g.Scaling; s != nil {
		sc := c.scaling(where+", scaling", s)
		out.Scaling = &sc
	}
	if d := g.EphemeralDisk; d != nil {
		out.Disk = structs.EphemeralDisk{SizeMiB: int64(val(d.SizeMB)), Sticky: val(d.Sticky), Migrate: val(d.Migrate)}
	}
	for _, name := range sortedKeys(g.Volumes) {
		out.Volumes = append(out.Volumes, structs.VolumeRequest{Name: name, Raw: c.raw(where+", volume "+name, g.Volumes[name])})
	}
	groupOwnTo(g, out)
	for _, t := range g.Tasks {
		if t != nil {
			out.Tasks = append(out.Tasks, c.task(where, out, t))
		}
	}
	return out
}

func (c *converter) task(where string, g *structs.Group, t *Task) *structs.Task {
	where += ", task " + t.Name
	out := &structs.Task{
		Name: t.Name, Driver: t.Driver, User: t.User, Config: c.raw(where+", config", t.Config), Env: cloneMap(t.Env),
		Meta: cloneMap(t.Meta), Constraints: constraintsTo(t.Constraints), Affinities: affinitiesTo(t.Affinities),
		Leader: t.Leader, KillTimeout: dur(t.KillTimeout), KillSignal: t.KillSignal, ShutdownDelay: t.ShutdownDelay.D(),
		Kind: t.Kind, Services: c.services(where, t.Services),
		WorkDir: t.WorkDir, Umask: t.Umask, LogPath: t.LogPath, LogErrorPath: t.LogErrorPath,
	}
	if r := t.Resources; r != nil {
		out.Resources = resourcesTo(r)
	}
	if l := t.Lifecycle; l != nil {
		out.Lifecycle = &structs.Lifecycle{Hook: l.Hook, Sidecar: l.Sidecar}
	}
	if r := t.RestartPolicy; r != nil {
		// Canonical jobs repeat the group's policy in each task; structs have nil instead.
		if v := restartTo(r); v != g.Restart {
			out.Restart = &v
		}
	}
	if l := t.LogConfig; l != nil {
		out.Logs = structs.LogConfig{MaxFiles: val(l.MaxFiles), MaxFileSizeMB: val(l.MaxFileSizeMB), Disabled: val(l.Disabled)}
	}
	if d := t.DispatchPayload; d != nil {
		out.DispatchPayload = d.File
	}
	for i, x := range t.Templates {
		out.Templates = append(out.Templates, structs.Template{Raw: c.raw(fmt.Sprintf("%s, template %d", where, i+1), x)})
	}
	for i, x := range t.Artifacts {
		out.Artifacts = append(out.Artifacts, structs.Artifact{Raw: c.raw(fmt.Sprintf("%s, artifact %d", where, i+1), x)})
	}
	for i, x := range t.VolumeMounts {
		out.VolumeMounts = append(out.VolumeMounts, structs.VolumeMount{Raw: c.raw(fmt.Sprintf("%s, volume_mount %d", where, i+1), x)})
	}
	ids := t.Identities
	if t.Identity != nil {
		ids = append([]*WorkloadIdentity{t.Identity}, ids...)
	}
	for i, x := range ids {
		out.Identities = append(out.Identities, structs.Identity{Raw: c.raw(fmt.Sprintf("%s, identity %d", where, i+1), x)})
	}
	for _, a := range t.Actions {
		if a != nil {
			out.Actions = append(out.Actions, structs.Action{Name: a.Name, Command: a.Command, Args: slices.Clone(a.Args)})
		}
	}
	for i, s := range t.ScalingPolicies {
		if s != nil {
			out.ScalingPolicies = append(out.ScalingPolicies, c.scaling(fmt.Sprintf("%s, scaling %d", where, i+1), s))
		}
	}
	return out
}

func (c *converter) services(where string, in []*Service) []structs.Service {
	var out []structs.Service
	for i, s := range in {
		if s != nil {
			out = append(out, structs.Service{Name: s.Name, PortLabel: s.PortLabel, Checked: s.checked(), Raw: c.raw(fmt.Sprintf("%s, service %d", where, i+1), s)})
		}
	}
	return out
}

// checked reports whether checks of the service decide if an allocation is healthy.
func (s *Service) checked() bool {
	return s.registers() && slices.ContainsFunc(s.Checks, func(c ServiceCheck) bool { return c.OnUpdate != "ignore" })
}

func (c *converter) scaling(where string, s *ScalingPolicy) structs.Scaling {
	return structs.Scaling{Type: s.Type, Min: val(s.Min), Max: val(s.Max), Enabled: val(s.Enabled), Policy: c.raw(where+", policy", s.Policy)}
}

func constraintsTo(in []*Constraint) []structs.Constraint {
	var out []structs.Constraint
	for _, c := range in {
		if c != nil {
			out = append(out, structs.Constraint{LTarget: c.LTarget, RTarget: c.RTarget, Operand: c.Operand})
		}
	}
	return out
}

func affinitiesTo(in []*Affinity) []structs.Affinity {
	var out []structs.Affinity
	for _, a := range in {
		if a != nil {
			out = append(out, structs.Affinity{LTarget: a.LTarget, RTarget: a.RTarget, Operand: a.Operand, Weight: int64(val(a.Weight))})
		}
	}
	return out
}

func spreadsTo(in []*Spread) []structs.Spread {
	var out []structs.Spread
	for _, s := range in {
		if s == nil {
			continue
		}
		v := structs.Spread{Attribute: s.Attribute, Weight: int64(val(s.Weight))}
		for _, t := range s.SpreadTarget {
			if t != nil {
				v.Targets = append(v.Targets, structs.SpreadTarget{Value: t.Value, Percent: int64(t.Percent)})
			}
		}
		out = append(out, v)
	}
	return out
}

func updateTo(u *UpdateStrategy) *structs.Update {
	if u == nil {
		return nil
	}
	return &structs.Update{
		Stagger: dur(u.Stagger), MaxParallel: val(u.MaxParallel), HealthCheck: val(u.HealthCheck), MinHealthyTime: dur(u.MinHealthyTime),
		HealthyDeadline: dur(u.HealthyDeadline), ProgressDeadline: dur(u.ProgressDeadline), AutoRevert: val(u.AutoRevert),
		AutoPromote: val(u.AutoPromote), Canary: val(u.Canary),
	}
}

func restartTo(r *RestartPolicy) structs.Restart {
	return structs.Restart{Attempts: val(r.Attempts), Interval: dur(r.Interval), Delay: dur(r.Delay), Mode: val(r.Mode), RenderTemplates: val(r.RenderTemplates)}
}

func networksTo(in []*NetworkResource) []structs.Network {
	var out []structs.Network
	for _, n := range in {
		if n == nil {
			continue
		}
		v := structs.Network{Mode: n.Mode, Hostname: n.Hostname, StaticPorts: portsTo(n.ReservedPorts), DynamicPorts: portsTo(n.DynamicPorts), MBits: int64(val(n.MBits))}
		if n.DNS != nil {
			v.DNS = &structs.DNS{Servers: slices.Clone(n.DNS.Servers), Searches: slices.Clone(n.DNS.Searches), Options: slices.Clone(n.DNS.Options)}
		}
		out = append(out, v)
	}
	return out
}

func portsTo(in []Port) []structs.Port {
	var out []structs.Port
	for _, p := range in {
		out = append(out, structs.Port{Label: p.Label, Value: p.Value, To: p.To, HostNetwork: p.HostNetwork, IgnoreCollision: p.IgnoreCollision})
	}
	return out
}

func resourcesTo(r *Resources) structs.Resources {
	out := structs.Resources{
		CPU: int64(val(r.CPU)), Cores: int64(val(r.Cores)), MemoryMiB: int64(val(r.MemoryMB)), MemoryMaxMiB: int64(val(r.MemoryMaxMB)),
		DiskMiB: int64(val(r.DiskMB)), ShmMiB: int64(val(r.ShmMB)), Networks: networksTo(r.Networks), SecretsMiB: int64(val(r.SecretsMB)),
		RDMA: val(r.RDMA), Ulimits: cloneMap(r.Ulimits),
	}
	for _, d := range r.Devices {
		if d != nil {
			out.Devices = append(out.Devices, structs.DeviceRequest{Name: d.Name, Count: int64(val(d.Count)), Constraints: constraintsTo(d.Constraints), Affinities: affinitiesTo(d.Affinities)})
		}
	}
	if r.GPU != nil {
		out.GPU = gpusTo(r.GPU)
	}
	if n := r.NUMA; n != nil {
		out.NUMA = &structs.NUMA{Affinity: n.Affinity, Devices: slices.Clone(n.Devices)}
	}
	return out
}

// JobFromStructs converts a job, including the fields that servers set.
func JobFromStructs(j *structs.Job) *Job {
	if j == nil {
		return nil
	}
	out := &Job{
		Region: ptr(j.Region), Namespace: ptr(j.Namespace), ID: ptr(j.ID), Name: ptr(j.Name), Type: ptr(string(j.Type)),
		Priority: ptr(j.Priority), AllAtOnce: ptr(j.AllAtOnce), Datacenters: j.Datacenters, NodePool: ptr(string(j.NodePool)),
		Constraints: constraintsFrom(j.Constraints), Affinities: affinitiesFrom(j.Affinities), Update: updateFrom(j.Update),
		Spreads: spreadsFrom(j.Spreads), Meta: j.Meta, Stop: ptr(j.Stop), ParentID: ptr(j.ParentID), Dispatched: j.Dispatched,
		DispatchIdempotencyToken: ptr(j.DispatchIdempotencyToken), Payload: j.Payload, ConsulNamespace: ptr(""),
		VaultNamespace: ptr(""), NomadTokenID: ptr(j.Submitter.Accessor.String()), Status: ptr(string(j.Status)), StatusDescription: ptr(StatusDescription(j)),
		Stable: ptr(j.Stable), Version: ptr(j.Version), SubmitTime: ptr(int64(j.SubmitTime)), CreateIndex: ptr(uint64(j.CreateIndex)),
		ModifyIndex: ptr(uint64(j.ModifyIndex)), JobModifyIndex: ptr(uint64(j.SpecIndex)),
	}
	out.ownFrom(j)
	if (j.Submitter != structs.Submitter{}) {
		out.Submitter = &Submitter{Name: j.Submitter.Name, UID: j.Submitter.UID, GID: j.Submitter.GID, Accessor: j.Submitter.Accessor.String()}
	}
	if p := j.Periodic; p != nil {
		out.Periodic = &PeriodicConfig{Enabled: ptr(p.Enabled), Spec: ptr(""), Specs: p.Specs, SpecType: ptr("cron"), ProhibitOverlap: ptr(p.ProhibitOverlap), TimeZone: ptr(p.TimeZone)}
		if len(p.Specs) == 1 {
			out.Periodic.Spec, out.Periodic.Specs = ptr(p.Specs[0]), nil
		}
	}
	if p := j.Parameterized; p != nil {
		out.ParameterizedJob = &Parameterized{Payload: p.Payload, MetaRequired: p.MetaRequired, MetaOptional: p.MetaOptional}
	}
	if j.UI != nil {
		out.UI = &JobUI{Description: j.UI.Description}
		for _, l := range j.UI.Links {
			out.UI.Links = append(out.UI.Links, &JobUILink{Label: l.Label, URL: l.URL})
		}
	}
	if t := j.VersionTag; t != nil {
		out.VersionTag = &JobVersionTag{Name: t.Name, Description: t.Description, TaggedTime: int64(t.TaggedTime)}
	}
	for _, g := range j.Groups {
		out.TaskGroups = append(out.TaskGroups, groupFrom(j, g))
	}
	return out
}

func groupFrom(j *structs.Job, g *structs.Group) *TaskGroup {
	out := &TaskGroup{
		Name: ptr(string(g.Name)), Count: ptr(g.Count), Constraints: constraintsFrom(g.Constraints), Affinities: affinitiesFrom(g.Affinities),
		Spreads: spreadsFrom(g.Spreads), Networks: networksFrom(g.Networks), RestartPolicy: restartFrom(&g.Restart), Update: updateFrom(g.Update),
		EphemeralDisk: &EphemeralDisk{Sticky: ptr(g.Disk.Sticky), Migrate: ptr(g.Disk.Migrate), SizeMB: ptr(int(g.Disk.SizeMiB))},
		Meta:          g.Meta, Services: servicesFrom(g.Services), ShutdownDelay: wdur(g.ShutdownDelay),
		MaxClientDisconnect: wdurPtr(g.MaxClientDisc), StopAfterClientDisconnect: wdurPtr(g.StopAfterDisc),
		PreventRescheduleOnLost: ptr(g.PreventLostResch),
	}
	if g.MaxRunDuration != 0 {
		out.MaxRunDuration = wdur(g.MaxRunDuration)
	}
	if r := g.Reschedule; (r != structs.Reschedule{}) || (j.Type != structs.JobSystem && j.Type != structs.JobSysBatch) {
		out.ReschedulePolicy = &ReschedulePolicy{Attempts: ptr(r.Attempts), Interval: wdur(r.Interval), Delay: wdur(r.Delay),
			DelayFunction: ptr(string(r.DelayFunction)), MaxDelay: wdur(r.MaxDelay), Unlimited: ptr(r.Unlimited)}
	}
	if m := g.Migrate; m != nil {
		out.Migrate = &MigrateStrategy{MaxParallel: ptr(m.MaxParallel), HealthCheck: ptr(m.HealthCheck), MinHealthyTime: wdur(m.MinHealthyTime), HealthyDeadline: wdur(m.HealthyDeadline)}
	}
	if d := g.Disconnect; d != nil {
		out.Disconnect = &DisconnectStrategy{LostAfter: wdur(d.LostAfter), StopOnClientAfter: wdurPtr(d.StopOnClientAfter), Replace: d.Replace, Reconcile: ptr(d.Reconcile)}
	}
	if g.Scaling != nil {
		out.Scaling = scalingFrom(*g.Scaling)
		out.Scaling.Namespace = j.Namespace
		out.Scaling.Target = map[string]string{"Namespace": j.Namespace, "Job": j.ID, "Group": string(g.Name)}
	}
	for _, v := range g.Volumes {
		if out.Volumes == nil {
			out.Volumes = map[string]*VolumeRequest{}
		}
		out.Volumes[v.Name] = unraw[VolumeRequest](v.Raw)
	}
	groupOwnFrom(g, out)
	for _, t := range g.Tasks {
		out.Tasks = append(out.Tasks, taskFrom(g, t))
	}
	return out
}

func taskFrom(g *structs.Group, t *structs.Task) *Task {
	out := &Task{
		Name: t.Name, Driver: t.Driver, User: t.User, Constraints: constraintsFrom(t.Constraints), Affinities: affinitiesFrom(t.Affinities),
		Env: t.Env, Meta: t.Meta, Services: servicesFrom(t.Services), Resources: resourcesFrom(t.Resources),
		RestartPolicy: restartFrom(&g.Restart), KillTimeout: wdur(t.KillTimeout),
		LogConfig: &LogConfig{MaxFiles: ptr(t.Logs.MaxFiles), MaxFileSizeMB: ptr(t.Logs.MaxFileSizeMB), Disabled: ptr(t.Logs.Disabled)},
		Leader:    t.Leader, ShutdownDelay: Duration(t.ShutdownDelay), KillSignal: t.KillSignal, Kind: t.Kind,
		WorkDir: t.WorkDir, Umask: t.Umask, LogPath: t.LogPath, LogErrorPath: t.LogErrorPath,
	}
	out.Config = RawToMap(t.Config)
	if t.Lifecycle != nil {
		out.Lifecycle = &TaskLifecycle{Hook: t.Lifecycle.Hook, Sidecar: t.Lifecycle.Sidecar}
	}
	if t.Restart != nil {
		out.RestartPolicy = restartFrom(t.Restart)
	}
	if t.DispatchPayload != "" {
		out.DispatchPayload = &DispatchPayload{File: t.DispatchPayload}
	}
	for _, x := range t.Templates {
		out.Templates = append(out.Templates, unraw[Template](x.Raw))
	}
	for _, x := range t.Artifacts {
		out.Artifacts = append(out.Artifacts, unraw[TaskArtifact](x.Raw))
	}
	for _, x := range t.VolumeMounts {
		out.VolumeMounts = append(out.VolumeMounts, unraw[VolumeMount](x.Raw))
	}
	for _, x := range t.Identities {
		out.Identities = append(out.Identities, unraw[WorkloadIdentity](x.Raw))
	}
	for _, a := range t.Actions {
		out.Actions = append(out.Actions, &Action{Name: a.Name, Command: a.Command, Args: a.Args})
	}
	for _, s := range t.ScalingPolicies {
		out.ScalingPolicies = append(out.ScalingPolicies, scalingFrom(s))
	}
	return out
}

func servicesFrom(in []structs.Service) []*Service {
	var out []*Service
	for _, s := range in {
		w := unraw[Service](s.Raw)
		w.Name, w.PortLabel = s.Name, s.PortLabel
		out = append(out, w)
	}
	return out
}

func scalingFrom(s structs.Scaling) *ScalingPolicy {
	return &ScalingPolicy{Min: ptr(s.Min), Max: ptr(s.Max), Enabled: ptr(s.Enabled), Type: s.Type, Policy: RawToMap(s.Policy)}
}

func constraintsFrom(in []structs.Constraint) []*Constraint {
	var out []*Constraint
	for _, c := range in {
		out = append(out, &Constraint{LTarget: c.LTarget, RTarget: c.RTarget, Operand: c.Operand})
	}
	return out
}

func affinitiesFrom(in []structs.Affinity) []*Affinity {
	var out []*Affinity
	for _, a := range in {
		out = append(out, &Affinity{LTarget: a.LTarget, RTarget: a.RTarget, Operand: a.Operand, Weight: ptr(int8(a.Weight))})
	}
	return out
}

func spreadsFrom(in []structs.Spread) []*Spread {
	var out []*Spread
	for _, s := range in {
		w := &Spread{Attribute: s.Attribute, Weight: ptr(int8(s.Weight))}
		for _, t := range s.Targets {
			w.SpreadTarget = append(w.SpreadTarget, &SpreadTarget{Value: t.Value, Percent: uint8(t.Percent)})
		}
		out = append(out, w)
	}
	return out
}

func updateFrom(u *structs.Update) *UpdateStrategy {
	if u == nil {
		return nil
	}
	return &UpdateStrategy{
		Stagger: wdur(u.Stagger), MaxParallel: ptr(u.MaxParallel), HealthCheck: ptr(u.HealthCheck), MinHealthyTime: wdur(u.MinHealthyTime),
		HealthyDeadline: wdur(u.HealthyDeadline), ProgressDeadline: wdur(u.ProgressDeadline), Canary: ptr(u.Canary),
		AutoRevert: ptr(u.AutoRevert), AutoPromote: ptr(u.AutoPromote),
	}
}

func restartFrom(r *structs.Restart) *RestartPolicy {
	return &RestartPolicy{Interval: wdur(r.Interval), Attempts: ptr(r.Attempts), Delay: wdur(r.Delay), Mode: ptr(r.Mode), RenderTemplates: ptr(r.RenderTemplates)}
}

func networksFrom(in []structs.Network) []*NetworkResource {
	var out []*NetworkResource
	for _, n := range in {
		w := &NetworkResource{Mode: n.Mode, Hostname: n.Hostname, ReservedPorts: portsFrom(n.StaticPorts), DynamicPorts: portsFrom(n.DynamicPorts), MBits: ptr(int(n.MBits))}
		if n.DNS != nil {
			w.DNS = &DNSConfig{Servers: n.DNS.Servers, Searches: n.DNS.Searches, Options: n.DNS.Options}
		}
		out = append(out, w)
	}
	return out
}

func portsFrom(in []structs.Port) []Port {
	var out []Port
	for _, p := range in {
		out = append(out, Port{Label: p.Label, Value: p.Value, To: p.To, HostNetwork: p.HostNetwork, IgnoreCollision: p.IgnoreCollision})
	}
	return out
}

func resourcesFrom(r structs.Resources) *Resources {
	out := &Resources{
		CPU: ptr(int(r.CPU)), Cores: ptr(int(r.Cores)), MemoryMB: ptr(int(r.MemoryMiB)), MemoryMaxMB: ptr(int(r.MemoryMaxMiB)),
		DiskMB: ptr(int(r.DiskMiB)), Networks: networksFrom(r.Networks), SecretsMB: ptr(int(r.SecretsMiB)),
	}
	for _, d := range r.Devices {
		out.Devices = append(out.Devices, &RequestedDevice{Name: d.Name, Count: ptr(uint64(d.Count)), Constraints: constraintsFrom(d.Constraints), Affinities: affinitiesFrom(d.Affinities)})
	}
	out.ShmMB = set(int(r.ShmMiB))
	out.GPU = gpuFrom(r.GPU)
	if out.Ulimits = r.Ulimits; r.RDMA {
		out.RDMA = ptr(true)
	}
	if r.NUMA != nil {
		out.NUMA = &NUMAResource{Affinity: r.NUMA.Affinity, Devices: r.NUMA.Devices}
	}
	return out
}

// CanonicalJSON writes v with sorted keys and without white space or HTML escapes: the form of structs.RawConfig.
func CanonicalJSON(v any) (structs.RawConfig, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var generic any
	if err := dec.Decode(&generic); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(generic); err != nil {
		return nil, err
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), nil
}

// RawToMap reads a block that CanonicalJSON wrote; numbers stay exact (json.Number). Empty or damaged input gives nil.
func RawToMap(raw structs.RawConfig) map[string]any {
	if len(raw) == 0 {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var m map[string]any
	if dec.Decode(&m) != nil {
		return nil
	}
	return m
}

// unraw reads a wire shape that the job carried opaquely. The server wrote it, so errors are ignored: damaged input
// reads as empty.
func unraw[T any](raw structs.RawConfig) *T {
	var v T
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	_ = dec.Decode(&v)
	return &v
}

func dur(d *Duration) time.Duration { return val(d).D() }

func durPtr(d *Duration) *time.Duration {
	if d == nil {
		return nil
	}
	return ptr(d.D())
}

func wdur(d time.Duration) *Duration { return ptr(Duration(d)) }

func wdurPtr(d *time.Duration) *Duration {
	if d == nil {
		return nil
	}
	return wdur(*d)
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return ptr(*p)
}

func cloneMap(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// StatusDescription says why a job has its status, or that its rolling update stopped.
func StatusDescription(j *structs.Job) string {
	if j.StatusDesc == "" && j.UpdateFailed != "" {
		return "the rolling update stopped: " + j.UpdateFailed
	}
	return j.StatusDesc
}
