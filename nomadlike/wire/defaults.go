package wire

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/structs"
)

// DiskDefaultMiB is the ephemeral disk of a group that asks for none.
const DiskDefaultMiB = 300

// healthyDeadlineDefault is how long an allocation of a new version has to become healthy, as in Nomad.
const healthyDeadlineDefault = 5 * time.Minute

// progressDeadlineDefault is how long an update may take until a further allocation is healthy, as in Nomad.
const progressDeadlineDefault = 10 * time.Minute

// def sets *p to v when nothing was said.
func def[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// or returns the first of the pointers that is set.
func or[T any](ps ...*T) *T {
	for _, p := range ps {
		if p != nil {
			return ptr(*p)
		}
	}
	return nil
}

// Canonicalize fills in the defaults, as Nomad does. Doing it twice changes nothing.
func (j *Job) Canonicalize() {
	def(&j.ID, "")
	def(&j.Name, *j.ID)
	if *j.Name == "" {
		*j.Name = *j.ID
	}
	def(&j.Namespace, structs.NamespaceDefault)
	if *j.Namespace == "" {
		*j.Namespace = structs.NamespaceDefault
	}
	def(&j.Region, structs.RegionDefault)
	if *j.Region == "" {
		*j.Region = structs.RegionDefault
	}
	def(&j.Type, string(structs.JobService))
	if *j.Type == "" {
		*j.Type = string(structs.JobService)
	}
	def(&j.Priority, structs.JobPriorityDefault)
	if *j.Priority == 0 {
		*j.Priority = structs.JobPriorityDefault
	}
	def(&j.NodePool, "") // servers know the namespace's default
	if len(j.Datacenters) == 0 {
		j.Datacenters = []string{"*"}
	}
	def(&j.AllAtOnce, false)
	def(&j.Stop, false)
	def(&j.ParentID, "")
	def(&j.ConsulNamespace, "")
	def(&j.VaultNamespace, "")
	def(&j.NomadTokenID, "")
	def(&j.Status, "")
	def(&j.StatusDescription, "")
	def(&j.Stable, false)
	def(&j.Version, 0)
	def(&j.CreateIndex, 0)
	def(&j.ModifyIndex, 0)
	def(&j.JobModifyIndex, 0)
	canonConstraints(j.Constraints)
	canonAffinities(j.Affinities)
	canonSpreads(j.Spreads)
	if p := j.Periodic; p != nil {
		def(&p.Enabled, true)
		def(&p.Spec, "")
		def(&p.SpecType, "cron")
		def(&p.ProhibitOverlap, false)
		def(&p.TimeZone, "UTC")
		if *p.TimeZone == "" {
			*p.TimeZone = "UTC"
		}
	}
	if p := j.ParameterizedJob; p != nil && p.Payload == "" {
		p.Payload = "optional"
	}
	j.canonicalizeOwn()
	if j.Update != nil {
		j.Update.canonicalize()
	} else if *j.Type == string(structs.JobService) || *j.Type == string(structs.JobSystem) {
		j.Update = &UpdateStrategy{}
		j.Update.canonicalize()
	}
	for _, g := range j.TaskGroups {
		if g != nil {
			g.canonicalize(j)
		}
	}
}

func canonConstraints(in []*Constraint) {
	for _, c := range in {
		if c != nil {
			c.Operand = canonOperand(c.Operand)
		}
	}
}

// canonOperand resolves the spellings that mean the same.
func canonOperand(op string) string {
	switch op {
	case "", "==", "is":
		return structs.OperandEqual
	case "not":
		return structs.OperandNotEqual
	}
	return op
}

func canonAffinities(in []*Affinity) {
	for _, a := range in {
		if a != nil {
			a.Operand = canonOperand(a.Operand)
			def(&a.Weight, 50)
		}
	}
}

func canonSpreads(in []*Spread) {
	for _, s := range in {
		if s != nil {
			def(&s.Weight, 50)
		}
	}
}

func (u *UpdateStrategy) canonicalize() {
	def(&u.Stagger, Duration(30*time.Second))
	def(&u.MaxParallel, 1)
	def(&u.HealthCheck, "checks")
	def(&u.MinHealthyTime, Duration(10*time.Second))
	def(&u.HealthyDeadline, Duration(healthyDeadlineDefault))
	def(&u.ProgressDeadline, Duration(progressDeadlineDefault))
	def(&u.AutoRevert, false)
	def(&u.AutoPromote, false)
	def(&u.Canary, 0)
}

func (u *UpdateStrategy) empty() bool {
	return val(u.Stagger) == 0 && val(u.MaxParallel) == 0 && val(u.HealthCheck) == "" && val(u.MinHealthyTime) == 0 &&
		val(u.HealthyDeadline) == 0 && val(u.ProgressDeadline) == 0 && !val(u.AutoRevert) && !val(u.AutoPromote) && val(u.Canary) == 0
}

func (g *TaskGroup) canonicalize(j *Job) {
	service := *j.Type == string(structs.JobService)
	everyNode := *j.Type == string(structs.JobSystem) || *j.Type == string(structs.JobSysBatch)
	def(&g.Name, "")
	if g.Count == nil {
		g.Count = ptr(1)
		if g.Scaling != nil && g.Scaling.Min != nil {
			g.Count = ptr(int(*g.Scaling.Min))
		}
	}
	if s := g.Scaling; s != nil {
		s.canonicalize("horizontal", int64(*g.Count))
	}
	if g.EphemeralDisk == nil {
		g.EphemeralDisk = &EphemeralDisk{}
	}
	def(&g.EphemeralDisk.Sticky, false)
	def(&g.EphemeralDisk.Migrate, false)
	def(&g.EphemeralDisk.SizeMB, DiskDefaultMiB)

	// A job without an update block leaves its groups alone, an empty one says "all at once".
	if ju := j.Update; ju != nil && g.Update != nil {
		u := g.Update
		g.Update = &UpdateStrategy{
			Stagger: or(u.Stagger, ju.Stagger), MaxParallel: or(u.MaxParallel, ju.MaxParallel), HealthCheck: or(u.HealthCheck, ju.HealthCheck),
			MinHealthyTime: or(u.MinHealthyTime, ju.MinHealthyTime), HealthyDeadline: or(u.HealthyDeadline, ju.HealthyDeadline),
			ProgressDeadline: or(u.ProgressDeadline, ju.ProgressDeadline), Canary: or(u.Canary, ju.Canary),
			AutoRevert: or(u.AutoRevert, ju.AutoRevert), AutoPromote: or(u.AutoPromote, ju.AutoPromote),
		}
	} else if ju != nil && !ju.empty() {
		g.Update = &UpdateStrategy{}
		*g.Update = *ju
	}
	if g.Update != nil {
		g.Update.canonicalize()
	}

	base := &ReschedulePolicy{Attempts: ptr(0), Interval: wdur(0), Delay: wdur(0), DelayFunction: ptr(""), MaxDelay: wdur(0), Unlimited: ptr(false)}
	switch structs.JobType(*j.Type) {
	case structs.JobService:
		base = &ReschedulePolicy{Attempts: ptr(0), Interval: wdur(0), Delay: wdur(30 * time.Second), DelayFunction: ptr("exponential"), MaxDelay: wdur(time.Hour), Unlimited: ptr(true)}
	case structs.JobBatch:
		base = &ReschedulePolicy{Attempts: ptr(1), Interval: wdur(24 * time.Hour), Delay: wdur(5 * time.Second), DelayFunction: ptr("constant"), MaxDelay: wdur(0), Unlimited: ptr(false)}
	}
	if jr, r := j.Reschedule, g.ReschedulePolicy; jr != nil || r != nil || !everyNode {
		if jr == nil {
			jr = &ReschedulePolicy{}
		}
		if r == nil {
			r = &ReschedulePolicy{}
		}
		g.ReschedulePolicy = &ReschedulePolicy{
			Attempts: or(r.Attempts, jr.Attempts, base.Attempts), Interval: or(r.Interval, jr.Interval, base.Interval),
			Delay: or(r.Delay, jr.Delay, base.Delay), DelayFunction: or(r.DelayFunction, jr.DelayFunction, base.DelayFunction),
			MaxDelay: or(r.MaxDelay, jr.MaxDelay, base.MaxDelay), Unlimited: or(r.Unlimited, jr.Unlimited, base.Unlimited),
		}
	}

	if jm, m := j.Migrate, g.Migrate; jm != nil || m != nil || service {
		if jm == nil {
			jm = &MigrateStrategy{}
		}
		if m == nil {
			m = &MigrateStrategy{}
		}
		g.Migrate = &MigrateStrategy{
			MaxParallel: or(m.MaxParallel, jm.MaxParallel, ptr(1)), HealthCheck: or(m.HealthCheck, jm.HealthCheck, ptr("checks")),
			MinHealthyTime: or(m.MinHealthyTime, jm.MinHealthyTime, wdur(10*time.Second)), HealthyDeadline: or(m.HealthyDeadline, jm.HealthyDeadline, wdur(healthyDeadlineDefault)),
		}
	}

	restart := &RestartPolicy{Attempts: ptr(3), Interval: wdur(24 * time.Hour)}
	if service || *j.Type == string(structs.JobSystem) {
		restart = &RestartPolicy{Attempts: ptr(2), Interval: wdur(30 * time.Minute)}
	}
	if g.Gang != nil {
		restart.Attempts = ptr(0) // one member alone cannot go on: its end is the gang's business
	}
	restart.Delay, restart.Mode, restart.RenderTemplates = wdur(15*time.Second), ptr("fail"), ptr(false)
	g.RestartPolicy = mergeRestart(g.RestartPolicy, restart)

	canonConstraints(g.Constraints)
	canonAffinities(g.Affinities)
	canonSpreads(g.Spreads)
	for _, s := range g.Services {
		if s != nil {
			s.canonicalize(fmt.Sprintf("%s-%s", *j.Name, *g.Name), *j.Name, *g.Name, "")
		}
	}
	if d := g.Disconnect; d != nil {
		def(&d.Replace, true)
		def(&d.Reconcile, "best_score")
	}
	for name, v := range g.Volumes {
		if v != nil && v.Name == "" {
			v.Name = name
		}
	}
	for _, t := range g.Tasks {
		if t != nil {
			t.canonicalize(j, g)
			g.takePorts(t)
		}
	}
}

// takePorts adds the ports of a task's deprecated networks to the group's network, each label once.
func (g *TaskGroup) takePorts(t *Task) {
	for _, n := range t.Resources.Networks {
		if n == nil || len(n.ReservedPorts)+len(n.DynamicPorts) == 0 {
			continue
		}
		if len(g.Networks) == 0 || g.Networks[0] == nil {
			g.Networks = []*NetworkResource{{}}
		}
		to := g.Networks[0]
		has := func(label string) bool {
			same := func(p Port) bool { return p.Label == label }
			return slices.ContainsFunc(to.ReservedPorts, same) || slices.ContainsFunc(to.DynamicPorts, same)
		}
		for _, p := range n.ReservedPorts {
			if !has(p.Label) {
				to.ReservedPorts = append(to.ReservedPorts, p)
			}
		}
		for _, p := range n.DynamicPorts {
			if !has(p.Label) {
				to.DynamicPorts = append(to.DynamicPorts, p)
			}
		}
	}
}

func mergeRestart(r, base *RestartPolicy) *RestartPolicy {
	if r == nil {
		r = &RestartPolicy{}
	}
	return &RestartPolicy{
		Interval: or(r.Interval, base.Interval), Attempts: or(r.Attempts, base.Attempts), Delay: or(r.Delay, base.Delay),
		Mode: or(r.Mode, base.Mode), RenderTemplates: or(r.RenderTemplates, base.RenderTemplates),
	}
}

func (s *ScalingPolicy) canonicalize(typ string, count int64) {
	def(&s.Enabled, true)
	def(&s.Min, count)
	if s.Type == "" {
		s.Type = typ
	}
}

func (t *Task) canonicalize(j *Job, g *TaskGroup) {
	if t.Resources == nil {
		t.Resources = &Resources{}
	}
	t.metaGPU()
	t.Resources.canonicalize()
	def(&t.KillTimeout, Duration(structs.KillTimeoutDefault))
	if t.LogConfig == nil {
		t.LogConfig = &LogConfig{}
	}
	l := t.LogConfig
	if l.Disabled == nil && l.Enabled != nil {
		l.Disabled = ptr(!*l.Enabled)
	}
	l.Enabled = nil
	def(&l.MaxFiles, 10)
	def(&l.MaxFileSizeMB, 10)
	def(&l.Disabled, false)
	t.RestartPolicy = mergeRestart(t.RestartPolicy, g.RestartPolicy)
	canonConstraints(t.Constraints)
	canonAffinities(t.Affinities)
	for _, s := range t.Services {
		if s != nil {
			s.canonicalize(fmt.Sprintf("%s-%s-%s", *j.Name, *g.Name, t.Name), *j.Name, *g.Name, t.Name)
		}
	}
	if t.Identity != nil {
		t.Identities = append([]*WorkloadIdentity{t.Identity}, t.Identities...)
		t.Identity = nil
	}
	for _, id := range t.Identities {
		if id != nil && id.Name == "" {
			id.Name = "default"
		}
	}
	for _, s := range t.ScalingPolicies {
		if s != nil {
			def(&s.Enabled, true)
			def(&s.Min, 0)
		}
	}
	for _, a := range t.Artifacts {
		if a == nil {
			continue
		}
		def(&a.GetterMode, "any")
		def(&a.GetterInsecure, false)
		def(&a.GetterSource, "")
		if a.RelativeDest == nil {
			a.RelativeDest = ptr("local/")
			if *a.GetterMode == "file" {
				a.RelativeDest = ptr(path.Join("local", path.Base(*a.GetterSource)))
			}
		}
	}
	for _, m := range t.Templates {
		if m != nil {
			m.canonicalize()
		}
	}
	for _, m := range t.VolumeMounts {
		if m != nil {
			def(&m.PropagationMode, "private")
			def(&m.ReadOnly, false)
			def(&m.SELinuxLabel, "")
		}
	}
}

func (m *Template) canonicalize() {
	def(&m.SourcePath, "")
	def(&m.DestPath, "")
	def(&m.EmbeddedTmpl, "")
	def(&m.ChangeMode, "restart")
	if m.ChangeSignal == nil {
		m.ChangeSignal = ptr("")
		if *m.ChangeMode == "signal" {
			m.ChangeSignal = ptr("SIGHUP")
		}
	}
	m.ChangeSignal = ptr(strings.ToUpper(*m.ChangeSignal))
	if c := m.ChangeScript; c != nil {
		def(&c.Command, "")
		def(&c.Timeout, Duration(5*time.Second))
		def(&c.FailOnError, false)
		def(&c.RunOnFirstRender, false)
	}
	def(&m.Once, false)
	def(&m.Splay, Duration(5*time.Second))
	def(&m.Perms, "0644")
	def(&m.LeftDelim, "{{")
	def(&m.RightDelim, "}}")
	def(&m.Envvars, false)
	def(&m.ErrMissingKey, false)
	def(&m.VaultGrace, Duration(0))
}

func (r *Resources) canonicalize() {
	if r.Cores == nil {
		r.Cores = ptr(0)
		def(&r.CPU, 100)
	}
	if r.CPU == nil {
		r.CPU = ptr(0)
		if *r.Cores == 0 {
			*r.CPU = 100
		}
	}
	def(&r.MemoryMB, 300)
	if g := r.GPU; g != nil && g.plain() {
		r.Devices = append(r.Devices, g.device())
		r.GPU = nil
	}
	if r.GPU != nil {
		r.GPU.canonicalize()
	}
	for _, d := range r.Devices {
		if d == nil {
			continue
		}
		def(&d.Count, 1)
		canonConstraints(d.Constraints)
		canonAffinities(d.Affinities)
	}
	if r.NUMA != nil && r.NUMA.Affinity == "" {
		r.NUMA.Affinity = "none"
	}
}

// canonicalize fills in what a service does not say. ${JOB}, ${TASKGROUP}, ${TASK} and ${BASE} (all of them, with hyphens)
// in its name and tags are known now; other ${...} are replaced on the node.
func (s *Service) canonicalize(base, job, group, task string) {
	if s.Name == "" {
		s.Name = base
	}
	known := strings.NewReplacer("${JOB}", job, "${TASKGROUP}", group, "${TASK}", task, "${BASE}", base)
	s.Name = known.Replace(s.Name)
	for i := range s.Tags {
		s.Tags[i] = known.Replace(s.Tags[i])
	}
	if s.AddressMode == "" {
		s.AddressMode = "auto"
	}
	if s.OnUpdate == "" {
		s.OnUpdate = "require_healthy"
	}
	if s.Provider == "" {
		s.Provider = structs.ServiceProvider
	}
	if s.Cluster == "" {
		s.Cluster = "default"
	}
	for i := range s.Checks {
		c := &s.Checks[i]
		if c.Name == "" {
			c.Name = fmt.Sprintf("service: %q check", s.Name)
		}
		if c.Type == "http" && c.Method == "" {
			c.Method = "GET"
		}
		if c.OnUpdate == "" {
			c.OnUpdate = s.OnUpdate
		}
		if c.CheckRestart == nil && s.CheckRestart != nil {
			c.CheckRestart = ptr(*s.CheckRestart)
		}
		if c.CheckRestart != nil && c.CheckRestart.Grace == nil {
			c.CheckRestart = ptr(*c.CheckRestart)
			c.CheckRestart.Grace = wdur(time.Second)
		}
	}
}
