package fsm

import (
	"bytes"
	"slices"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/pack"
	"github.com/muster-sched/muster/structs"
)

// scalingEventsKept limits the scaling events of one group.
const scalingEventsKept = 20

func applyJobRegister(x *tx, c *structs.JobRegisterCommand) *structs.Error {
	if c.Job == nil || c.Job.ID == "" {
		return structs.Errorf(structs.CodeInvalid, "the command registers no job, or one without an ID")
	}
	in := *c.Job
	if in.Namespace == "" {
		in.Namespace = structs.NamespaceDefault
	}
	if in.NodePool == "" {
		in.NodePool = structs.NodePoolDefault
	}
	k := in.Key()
	old := state.Jobs.Get(x, k)
	if err := x.checkSpecIndex(c.EnforceIndex, c.SpecIndex, k, old); err != nil {
		return err
	}
	if err := x.checkJob(&in, old); err != nil {
		return err
	}
	if err := x.admit(&in, old, x.cmd.By.Name); err != nil {
		return err
	}
	if in.Dispatched {
		parent := structs.JobKey{Namespace: in.Namespace, ID: in.ParentID}
		p := state.Jobs.Get(x, parent)
		if p == nil || !p.IsParameterized() || p.Stop {
			return structs.Errorf(structs.CodeNotFound, "job %q of namespace %q cannot be dispatched: it does not exist, is stopped, or is not parameterized", in.ParentID, in.Namespace)
		}
		if in.DispatchIdempotencyToken != "" {
			if id := x.DispatchedAs(parent, in.DispatchIdempotencyToken); id != "" {
				child := state.Jobs.Get(x, structs.JobKey{Namespace: in.Namespace, ID: id})
				x.result.ChildID, x.result.SpecIndex, x.result.Version = id, child.SpecIndex, child.Version
				return nil
			}
		}
		x.result.ChildID = in.ID
	}
	if old != nil && c.PreserveCounts {
		in.Groups = WithCountsOf(&in, old).Groups
	}
	if old != nil && c.PreserveResources {
		preserveResources(&in, old)
	}
	j := x.putSpec(&in, old, c.Submission)
	x.respec(old, j)
	x.result.SpecIndex, x.result.Version = j.SpecIndex, j.Version
	if c.Eval && j.Placeable() {
		trigger := c.EvalTrigger
		if trigger == "" {
			trigger = structs.TriggerJobRegister
		}
		x.newEval(j, trigger, func(e *structs.Evaluation) {
			if c.EvalPriority > 0 {
				e.Priority = c.EvalPriority
			}
		})
	}
	return nil
}

func (x *tx) checkSpecIndex(enforce bool, want structs.Index, k structs.JobKey, old *structs.Job) *structs.Error {
	switch {
	case !enforce:
		return nil
	case want == 0 && old != nil:
		return structs.Errorf(structs.CodeConflict, "Enforcing job modify index 0: job %q already exists, at job modify index %d", k.ID, old.SpecIndex)
	case want != 0 && old == nil:
		return structs.Errorf(structs.CodeConflict, "Enforcing job modify index %d: job %q does not exist", want, k.ID)
	case want != 0 && old.SpecIndex != want:
		return structs.Errorf(structs.CodeConflict, "Enforcing job modify index %d: job %q is at job modify index %d", want, k.ID, old.SpecIndex)
	}
	return nil
}

// checkJob refuses a job for reasons that depend on the state; the endpoint has validated the job itself.
func (x *tx) checkJob(in, old *structs.Job) *structs.Error {
	switch {
	case state.Namespaces.Get(x, in.Namespace) == nil:
		return structs.Errorf(structs.CodeInvalid, "job %q is in nonexistent namespace %q", in.ID, in.Namespace)
	case state.Pools.Get(x, in.NodePool) == nil:
		return structs.Errorf(structs.CodeInvalid, "job %q is in nonexistent node pool %q", in.ID, in.NodePool)
	case len(in.Depends) > 0:
		if circle := structs.DependencyCircle(in, state.Jobs.Lookup(x)); circle != nil {
			return structs.Errorf(structs.CodeInvalid, "depends_on: a circle: %s", structs.CircleText(circle))
		}
	}
	switch {
	case old == nil:
		return nil
	case old.Type != in.Type:
		return structs.Errorf(structs.CodeInvalid, "cannot update job %q from type %q to %q; stop and purge it first", in.ID, old.Type, in.Type)
	case old.IsPeriodic() != in.IsPeriodic():
		return structs.Errorf(structs.CodeInvalid, "job %q cannot become periodic or stop being it; stop and purge it first", in.ID)
	case old.IsParameterized() != in.IsParameterized():
		return structs.Errorf(structs.CodeInvalid, "job %q cannot become parameterized or stop being it; stop and purge it first", in.ID)
	case old.Dispatched != in.Dispatched:
		return structs.Errorf(structs.CodeInvalid, "job %q is a dispatched child and cannot be registered otherwise", in.ID)
	}
	return nil
}

// WithCountsOf returns a job whose groups have the counts of those that its older version has.
func WithCountsOf(in, old *structs.Job) *structs.Job {
	groups := slices.Clone(in.Groups)
	for i, g := range groups {
		if o := old.Group(g.Name); o != nil && o.Count != g.Count {
			c := *g
			c.Count = o.Count
			groups[i] = &c
		}
	}
	out := *in
	out.Groups = groups
	return &out
}

// preserveResources gives existing tasks the resources that they have.
func preserveResources(in, old *structs.Job) {
	groups := slices.Clone(in.Groups)
	for i, g := range groups {
		o := old.Group(g.Name)
		if o == nil {
			continue
		}
		c := *g
		c.Tasks = slices.Clone(g.Tasks)
		for n, t := range c.Tasks {
			for _, was := range o.Tasks {
				if was.Name == t.Name {
					kept := *t
					kept.Resources = was.Resources
					c.Tasks[n] = &kept
				}
			}
		}
		groups[i] = &c
	}
	in.Groups = groups
}

// putSpec writes a specification, as a new version if it differs from the current one. It sets the server-owned fields
// and ignores the command's values of them.
func (x *tx) putSpec(in, old *structs.Job, sub *structs.JobSubmission) *structs.Job {
	k := in.Key()
	j := *in
	if x.Has(feature.JointJobs) {
		j.Join() // counts may have changed since it was submitted
	}
	j.ConsulToken, j.VaultToken = "", ""
	j.Submitter = x.cmd.By
	j.SubmitTime, j.Stable, j.VersionTag, j.StatusDesc, j.UpdateFailed = x.time, false, nil, "", ""
	j.ModifyIndex, j.SpecIndex = x.index, x.index
	if old == nil {
		j.CreateIndex, j.Status = x.index, structs.JobPending
		if h := state.Versions.Get(x, k); h != nil { // a purged job of this name still has allocations
			for _, v := range h.Versions {
				j.Version = max(j.Version, v.Version+1)
			}
		} else {
			j.Version = 0
		}
	} else {
		if SameSpec(&j, old) {
			x.touch(k)
			if old.UpdateFailed != "" { // submitted again: the update continues, and its deadlines begin again
				j = *old
				j.UpdateFailed, j.SubmitTime, j.ModifyIndex = "", x.time, x.index
				state.Jobs.Put(x, &j)
				return &j
			}
			return old
		}
		j.CreateIndex, j.Version, j.Status = old.CreateIndex, old.Version+1, old.Status
		if j.Status == structs.JobDead && !j.Stop {
			j.Status = structs.JobPending
		}
		x.keepVersion(old)
	}
	state.Jobs.Put(x, &j)
	if sub != nil {
		x.editVersions(k, func(h *structs.JobVersions) { h.Submissions[j.Version] = sub })
	}
	x.pruneVersions(k)
	x.touch(k)
	return &j
}

// SameSpec compares what a user submitted, without what the server adds: registering the same job again makes no new
// version.
func SameSpec(a, b *structs.Job) bool {
	return bytes.Equal(specBytes(a), specBytes(b))
}

func specBytes(j *structs.Job) []byte {
	c := *j
	c.Stable, c.Version, c.VersionTag, c.SubmitTime, c.Submitter = false, 0, nil, 0, structs.Submitter{}
	c.Status, c.StatusDesc, c.UpdateFailed, c.CreateIndex, c.ModifyIndex, c.SpecIndex = "", "", "", 0, 0, 0
	return pack.Append(nil, &c)
}

// editVersions edits a copy of a job's history and stores it.
func (x *tx) editVersions(k structs.JobKey, edit func(*structs.JobVersions)) {
	h := structs.JobVersions{Namespace: k.Namespace, JobID: k.ID, Submissions: map[uint64]*structs.JobSubmission{}}
	if old := state.Versions.Get(x, k); old != nil {
		h.Versions = slices.Clone(old.Versions)
		for v, s := range old.Submissions {
			h.Submissions[v] = s
		}
	}
	edit(&h)
	if len(h.Versions) == 0 && len(h.Submissions) == 0 {
		state.Versions.Delete(x, k)
		return
	}
	if len(h.Submissions) == 0 {
		h.Submissions = nil
	}
	state.Versions.Put(x, &h)
}

func (x *tx) keepVersion(j *structs.Job) {
	x.editVersions(j.Key(), func(h *structs.JobVersions) {
		h.Versions = slices.Insert(h.Versions, 0, j)
	})
}

// pruneVersions drops versions beyond JobVersionsKept that neither a tag nor an allocation refers to (D17). Of a purged
// job only versions that allocations refer to are kept.
func (x *tx) pruneVersions(k structs.JobKey) {
	h := state.Versions.Get(x, k)
	if h == nil {
		return
	}
	current := state.Jobs.Get(x, k)
	kept := 0
	if current != nil {
		kept = 1
	}
	var versions []*structs.Job
	for _, v := range h.Versions {
		mine := current != nil && v.CreateIndex == current.CreateIndex // not of a purged job of the same name
		if mine && (kept < structs.JobVersionsKept || v.VersionTag != nil) || x.HasAllocsOfVersion(k, v.Version) {
			versions = append(versions, v)
			kept++
		}
	}
	stale := func(v uint64) bool {
		return (current == nil || current.Version != v) &&
			!slices.ContainsFunc(versions, func(j *structs.Job) bool { return j.Version == v })
	}
	drop := len(versions) != len(h.Versions)
	for v := range h.Submissions { // the order does not matter: one stale entry is enough
		drop = drop || stale(v)
	}
	if !drop {
		return
	}
	x.editVersions(k, func(h *structs.JobVersions) {
		h.Versions = versions
		for v := range h.Submissions {
			if stale(v) {
				delete(h.Submissions, v)
			}
		}
	})
}

func applyJobDeregister(x *tx, c *structs.JobDeregisterCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	old := state.Jobs.Get(x, k)
	if old == nil {
		return jobNotFound(k)
	}
	if c.NoShutdownDelay {
		for _, a := range x.AllocsByJob(k) {
			if structs.Holds(a) && !a.Transition.NoShutdownDelay {
				n := *a
				n.Transition.NoShutdownDelay = true
				x.serverWrote(&n)
			}
		}
	}
	j := old
	if c.Purge {
		x.purgeJob(old)
	} else if !old.Stop {
		stopped := *old
		stopped.Stop = true
		j = x.putSpec(&stopped, old, nil)
	}
	x.result.SpecIndex, x.result.Version = j.SpecIndex, j.Version
	if old.IsPeriodic() || old.IsParameterized() {
		return nil
	}
	id := x.newEval(j, structs.TriggerJobDeregister, func(e *structs.Evaluation) {
		if c.EvalPriority > 0 {
			e.Priority = c.EvalPriority
		}
	})
	why := "job stopped"
	if c.Purge {
		why = "job purged"
	}
	x.cancelEvals(k, id, why)
	return nil
}

// purgeJob removes a job. Versions that allocations refer to are kept until the allocations are collected.
func (x *tx) purgeJob(j *structs.Job) {
	k := j.Key()
	x.keepVersion(j)
	x.acctPurged(j)
	state.Jobs.Delete(x, k)
	state.Workloads.Delete(x, k)
	state.Launches.Delete(x, k)
	state.Scaling.Delete(x, k)
	state.Arrays.Delete(x, k)
	x.pruneVersions(k)
	x.touch(k)
}

// cancelEvals cancels the open evaluations of a stopped or purged job, except for their successor: a blocked or delayed
// one would keep the job from being dead.
func (x *tx) cancelEvals(k structs.JobKey, successor structs.EvalID, why string) {
	for _, e := range x.EvalsByJob(k) {
		if !e.Terminal() && e.ID != successor {
			x.cancelEval(e, successor, why)
		}
	}
}

func (x *tx) cancelEval(e *structs.Evaluation, successor structs.EvalID, why string) {
	n := *e
	n.Status, n.StatusDesc, n.Successor = structs.EvalCanceled, why, successor
	n.ModifyIndex, n.ModifyTime = x.index, x.time
	state.Evals.Put(x, &n)
}

func jobNotFound(k structs.JobKey) *structs.Error {
	return structs.Errorf(structs.CodeNotFound, "job %q not found in namespace %q", k.ID, k.Namespace)
}

// editVersion edits a copy of one version of a job, current or kept, and stores it.
func (x *tx) editVersion(k structs.JobKey, version uint64, edit func(*structs.Job)) *structs.Error {
	j := state.Jobs.Get(x, k)
	if j == nil {
		return jobNotFound(k)
	}
	if j.Version == version {
		c := *j
		edit(&c)
		c.ModifyIndex = x.index
		state.Jobs.Put(x, &c)
		return nil
	}
	if x.JobVersion(k, version) == nil {
		return structs.Errorf(structs.CodeNotFound, "job %q has no version %d; the newest is %d", k.ID, version, j.Version)
	}
	x.editVersions(k, func(h *structs.JobVersions) {
		for i, v := range h.Versions {
			if v.Version == version {
				c := *v
				edit(&c)
				h.Versions[i] = &c
			}
		}
	})
	return nil
}

func applyJobStable(x *tx, c *structs.JobStableCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	return x.editVersion(k, c.Version, func(j *structs.Job) { j.Stable, j.UpdateFailed = c.Stable, c.Failed })
}

func applyJobTag(x *tx, c *structs.JobTagCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	j := state.Jobs.Get(x, k)
	if j == nil {
		return jobNotFound(k)
	}
	name := c.Name
	if c.Tag != nil {
		name = c.Tag.Name
	}
	if name == "" {
		return structs.Errorf(structs.CodeInvalid, "the tag of a version of job %q needs a name", k.ID)
	}
	all := []*structs.Job{j}
	if h := state.Versions.Get(x, k); h != nil {
		all = append(all, h.Versions...)
	}
	var holder *structs.Job
	for _, v := range all {
		if v.VersionTag != nil && v.VersionTag.Name == name {
			holder = v
		}
	}
	if c.Tag == nil {
		if holder == nil {
			return structs.Errorf(structs.CodeNotFound, "tag %q not found on any version of job %q", name, k.ID)
		}
		err := x.editVersion(k, holder.Version, func(j *structs.Job) { j.VersionTag = nil })
		x.pruneVersions(k)
		return err
	}
	if holder != nil && holder.Version != c.Version {
		return structs.Errorf(structs.CodeConflict, "tag %q already exists on version %d of job %q; remove it there first", name, holder.Version, k.ID)
	}
	tag := *c.Tag
	if tag.TaggedTime == 0 {
		tag.TaggedTime = x.time
	}
	return x.editVersion(k, c.Version, func(j *structs.Job) { j.VersionTag = &tag })
}

func applyScale(x *tx, c *structs.ScaleCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	j := state.Jobs.Get(x, k)
	if j == nil {
		return jobNotFound(k)
	}
	g := j.Group(c.Group)
	if g == nil {
		return structs.Errorf(structs.CodeInvalid, "job %q has no group %q", k.ID, c.Group)
	}
	if err := x.checkSpecIndex(c.EnforceIndex, c.SpecIndex, k, j); err != nil {
		return err
	}
	event := c.Event
	event.Time, event.Group, event.PreviousCount, event.CreateIndex = x.time, g.Name, int64(g.Count), x.index
	event.Count, event.EvalID = c.Count, structs.EvalID{}
	x.result.SpecIndex, x.result.Version = j.SpecIndex, j.Version
	if c.Count != nil {
		n := *c.Count
		switch {
		case event.Error:
			return structs.Errorf(structs.CodeInvalid, "a scaling event that reports an error cannot change the count")
		case n < 0 || n > structs.GroupCountMax:
			return structs.Errorf(structs.CodeInvalid, "count %d of group %q is outside 0..%d", n, g.Name, structs.GroupCountMax)
		case g.Scaling != nil && n < g.Scaling.Min:
			return structs.Errorf(structs.CodeInvalid, "group count was less than scaling policy minimum: %d < %d", n, g.Scaling.Min)
		case g.Scaling != nil && n > g.Scaling.Max:
			return structs.Errorf(structs.CodeInvalid, "group count was greater than scaling policy maximum: %d > %d", n, g.Scaling.Max)
		}
		total := n
		for _, o := range j.Groups {
			if o.Name != g.Name {
				total += int64(o.Count)
			}
		}
		if total > structs.JobCountMax {
			return structs.Errorf(structs.CodeInvalid, "with count %d of group %q the job asks for %d allocations over all groups; the limit is %d", n, g.Name, total, structs.JobCountMax)
		}
		in := *j
		in.Groups = slices.Clone(j.Groups)
		for i := range in.Groups {
			if in.Groups[i].Name == g.Name {
				c := *g
				c.Count = int(n)
				in.Groups[i] = &c
			}
		}
		now := x.putSpec(&in, j, x.submission(k, j.Version))
		x.result.SpecIndex, x.result.Version = now.SpecIndex, now.Version
		if now.Placeable() {
			event.EvalID = x.newEval(now, structs.TriggerScale, nil)
		}
	}
	x.addScalingEvent(k, event)
	return nil
}

func (x *tx) submission(k structs.JobKey, version uint64) *structs.JobSubmission {
	if h := state.Versions.Get(x, k); h != nil {
		return h.Submissions[version]
	}
	return nil
}

func (x *tx) addScalingEvent(k structs.JobKey, event structs.ScalingEvent) {
	row := structs.ScalingEvents{Namespace: k.Namespace, JobID: k.ID, ModifyIndex: x.index}
	row.Events = append(row.Events, event)
	kept := 1
	if old := state.Scaling.Get(x, k); old != nil {
		for _, e := range old.Events {
			if e.Group == event.Group {
				if kept++; kept > scalingEventsKept {
					continue
				}
			}
			row.Events = append(row.Events, e)
		}
	}
	state.Scaling.Put(x, &row)
}

func applyPeriodicLaunch(x *tx, c *structs.PeriodicLaunchCommand) *structs.Error {
	k := structs.JobKey{Namespace: c.Namespace, ID: c.JobID}
	parent := state.Jobs.Get(x, k)
	switch {
	case parent == nil:
		return jobNotFound(k)
	case !parent.IsPeriodic():
		return structs.Errorf(structs.CodeInvalid, "job %q is not periodic", k.ID)
	case parent.Stop:
		return structs.Errorf(structs.CodeConflict, "periodic job %q is stopped", k.ID)
	}
	last := state.Launches.Get(x, k)
	if last != nil && c.Launch <= last.Launch && !c.Forced {
		return structs.Errorf(structs.CodeConflict, "periodic job %q was already launched for this time", k.ID)
	}
	row := structs.PeriodicLaunch{Namespace: k.Namespace, JobID: k.ID, Launch: c.Launch, CreateIndex: x.index, ModifyIndex: x.index}
	if last != nil {
		row.CreateIndex, row.Launch = last.CreateIndex, max(last.Launch, c.Launch)
	}
	state.Launches.Put(x, &row)
	if c.Child == nil || (!c.Forced && parent.Periodic.ProhibitOverlap && x.hasLiveChild(k)) {
		return nil
	}
	child := *c.Child
	child.Namespace, child.ParentID, child.Periodic = k.Namespace, k.ID, nil
	if child.NodePool == "" {
		child.NodePool = parent.NodePool
	}
	if state.Jobs.Get(x, child.Key()) != nil {
		return structs.Errorf(structs.CodeConflict, "job %q already exists", child.ID)
	}
	if err := x.checkJob(&child, nil); err != nil {
		return err
	}
	j := x.putSpec(&child, nil, nil)
	x.result.ChildID, x.result.SpecIndex = j.ID, j.SpecIndex
	if j.Placeable() {
		x.newEval(j, structs.TriggerPeriodic, nil)
	}
	return nil
}

// hasLiveChild reports whether a job launched by this one is not dead. It uses only the state: a leader's memory of its
// launches would be lost with the leader, and prohibit_overlap would fail.
func (x *tx) hasLiveChild(parent structs.JobKey) bool {
	live := false
	x.Children(parent, func(j *structs.Job) bool {
		live = j.Status != structs.JobDead
		return !live
	})
	return live
}
