package endpoint

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/fsm"
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/feature"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/reconcile"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerDeployments() {
	handle(s, methods.JobDeployments, s.jobDeployments)
	handle(s, methods.DeploymentList, s.deploymentList)
	handle(s, methods.DeploymentGet, s.deploymentGet)
	handle(s, methods.DeploymentAllocs, s.deploymentAllocs)
	handle(s, methods.DeploymentFail, s.deploymentFail)
}

// deployed is a version of a service that is or was rolled out.
type deployed struct {
	*structs.Job              // the version
	now          *structs.Job // the job's newest version
	next         *structs.Job // the version that followed; nil for the newest
}

func (d *deployed) id() structs.DeploymentID { return d.Job.DeploymentID() }

// deployedOf returns the versions of a job that have deployments, the newest first. While the cluster is not to use the deadlines of
// updates, nothing marks how an update ended: there are none.
func deployedOf(snap *state.Snapshot, j *structs.Job) (out []deployed) {
	if j == nil || j.Type != structs.JobService || !snap.Has(feature.UpdateDeadlines) {
		return nil
	}
	var next *structs.Job
	for _, v := range snap.JobVersions(j.Key()) {
		if v.CreateIndex != j.CreateIndex {
			continue // of a purged job of the same name
		}
		if v.Deploys() {
			out = append(out, deployed{Job: v, now: j, next: next})
		}
		next = v
	}
	return out
}

// allDeployed returns the versions with deployments of all jobs of a namespace, "*" for all, that the caller may see.
func allDeployed(snap *state.Snapshot, ns string, may func(string) bool) iter.Seq[deployed] {
	return func(yield func(deployed) bool) {
		for j := range snap.Jobs(ns, "") {
			if j.Type != structs.JobService || !may(j.Namespace) {
				continue
			}
			for _, d := range deployedOf(snap, j) {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// findDeployment returns the version of a deployment in a namespace that the caller may see.
func findDeployment(snap *state.Snapshot, id structs.DeploymentID, may func(string) bool) (deployed, bool) {
	for d := range allDeployed(snap, "", may) {
		if d.id() == id {
			return d, true
		}
	}
	return deployed{}, false
}

// deploymentOf derives how far the rollout of a version is or was.
func deploymentOf(snap *state.Snapshot, d deployed, now structs.LogTime) *methods.Deployment {
	out := &methods.Deployment{
		ID: d.id(), Namespace: d.Namespace, JobID: d.ID, Version: d.Version, JobModifyIndex: d.ModifyIndex, JobSpecIndex: d.SpecIndex,
		JobCreateIndex: d.CreateIndex, ModifyIndex: d.ModifyIndex, CreateTime: d.SubmitTime, ModifyTime: d.SubmitTime,
	}
	allocs := snap.AllocsByJob(d.Key())
	for _, a := range allocs {
		if !reconcile.OlderThan(a, d.Job) {
			out.ModifyIndex, out.ModifyTime = max(out.ModifyIndex, a.ModifyIndex), max(out.ModifyTime, a.ModifyTime)
		}
	}
	x := reconcile.Measure(d.Job, allocs, now)
	overdue := ""
	var want, healthy int64
	for _, g := range x.Groups {
		own := methods.DeploymentGroup{
			Group: g.Group.Name, AutoRevert: g.Update.AutoRevert, ProgressDeadline: g.Update.ProgressDeadline, By: g.By,
			Want: int64(g.Want), Placed: int64(g.Placed), Healthy: int64(g.Healthy), Unhealthy: int64(g.Unhealthy),
		}
		if d.Stable { // all were healthy when it ended
			own.Placed, own.Healthy, own.Unhealthy = own.Want, own.Want, 0
		}
		want, healthy, overdue = want+own.Want, healthy+own.Healthy, cmp.Or(overdue, g.Overdue)
		out.Groups = append(out.Groups, own)
	}
	out.Status, out.StatusDesc = statusOf(snap, d, overdue)
	if out.StatusDesc == "" {
		out.StatusDesc = fmt.Sprintf("%d of %d allocations are healthy", healthy, want)
	}
	for i := range out.Groups {
		if out.Status != methods.DeploymentRunning {
			out.Groups[i].By = 0
		}
	}
	return out
}

// statusOf returns the status of a deployment and why; "" while it makes progress.
func statusOf(snap *state.Snapshot, d deployed, overdue string) (methods.DeploymentStatus, string) {
	switch {
	case d.UpdateFailed != "":
		return methods.DeploymentFailed, d.UpdateFailed
	case d.Stable:
		return methods.DeploymentSuccessful, "all allocations became healthy"
	case d.next != nil && d.next.Stop:
		return methods.DeploymentCancelled, "the job was stopped"
	case d.next != nil:
		return methods.DeploymentCancelled, fmt.Sprintf("version %d was registered", d.next.Version)
	case d.Version == 0 && overdue != "":
		return methods.DeploymentFailed, overdue + "; there is no earlier version, so Muster continues to start this one"
	}
	switch w := snap.Workload(d.Key()); {
	case w == nil:
	case w.Held:
		return methods.DeploymentPaused, fmt.Sprintf("the job is on hold until  muster job release %s", d.ID)
	case w.Suspended != 0:
		return methods.DeploymentPaused, fmt.Sprintf("the job is suspended until  muster job resume %s", d.ID)
	}
	return methods.DeploymentRunning, ""
}

// jobDeploymentsIndex returns the index for a query about the deployments of a job: any change of the job, its allocations, its
// place in the queue or its evaluations may change them.
func jobDeploymentsIndex(snap *state.Snapshot, j *structs.Job) structs.Index {
	idx := jobIndex(snap, j)
	if j == nil {
		return idx
	}
	for _, a := range snap.AllocsByJob(j.Key()) {
		idx = max(idx, a.ModifyIndex)
	}
	for _, e := range snap.EvalsByJob(j.Key()) {
		idx = max(idx, e.ModifyIndex)
	}
	if w := snap.Workload(j.Key()); w != nil {
		idx = max(idx, w.ModifyIndex)
	}
	return idx
}

func (s *Set) jobDeployments(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.DeploymentListResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.DeploymentListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k), watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		snap, now := p.Snapshot, s.env.Replica.Now()
		j := snap.JobByKey(k)
		var all []*methods.Deployment
		for _, d := range deployedOf(snap, j) {
			all = append(all, deploymentOf(snap, d, now))
		}
		var err error
		resp.Deployments, resp.NextToken, err = newest(s, &req.Query, "deployment", all, func(d *methods.Deployment) (structs.Index, [16]byte) { return d.JobSpecIndex, d.ID })
		return jobDeploymentsIndex(snap, j), err
	})
}

// deploymentToken returns the token of a list of deployments that begins with d: the oldest first.
func deploymentToken(d *deployed) string {
	return fmt.Sprintf("%020d!%s", d.SpecIndex, jobToken(d.Job))
}

// deploymentList lists deployments in the order in which their versions were registered. How far each is, is found out only for
// those that the caller gets, or that a filter looks at.
func (s *Set) deploymentList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.DeploymentListResponse, error) {
	ns := auth.NamespaceOf(c)
	may := visible(ctx, ns, acl.CapReadJob)
	prefix := strings.ToLower(strings.ReplaceAll(req.Prefix, "-", ""))
	resp := &methods.DeploymentListResponse{}
	keys := []watch.Key{watch.OnTable(state.Jobs), watch.OnTable(state.Allocs), watch.OnTable(state.Evals), watch.OnTable(state.Workloads)}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, keys, func(p *replica.Published) (structs.Index, error) {
		snap, now := p.Snapshot, s.env.Replica.Now()
		idx := max(snap.TableIndex(state.Jobs), snap.TableIndex(state.Allocs), snap.TableIndex(state.Evals), snap.TableIndex(state.Workloads))
		resp.Deployments, resp.NextToken = nil, ""
		match, err := s.filter("deployment", req.Filter)
		if err != nil {
			return 0, err
		}
		var all []*deployed
		for d := range allDeployed(snap, ns, may) {
			if strings.HasPrefix(strings.ReplaceAll(d.id().String(), "-", ""), prefix) {
				all = append(all, &d)
			}
		}
		slices.SortFunc(all, func(a, b *deployed) int { return strings.Compare(deploymentToken(a), deploymentToken(b)) })
		q := req.Query
		q.Filter = "" // of what is derived, not of versions
		var failed error
		page, next, err := list(s, &q, lister[deployed]{key: deploymentToken, keep: func(d *deployed) bool {
			if match == nil {
				return true
			}
			ok, err := match(deploymentOf(snap, *d, now))
			failed = cmp.Or(failed, err)
			return ok
		}}, slices.Values(all))
		if err = cmp.Or(failed, err); err != nil {
			return 0, err
		}
		for _, d := range page {
			resp.Deployments = append(resp.Deployments, deploymentOf(snap, *d, now))
		}
		resp.NextToken = next
		return idx, nil
	})
}

// ofDeployment answers a query about one deployment. look gets it, or false; the index is that of its job.
func (s *Set) ofDeployment(ctx context.Context, req *methods.DeploymentGetRequest, m *methods.Meta, look func(snap *state.Snapshot, d deployed, ok bool) error) error {
	may := visible(ctx, "*", acl.CapReadJob)
	keys := []watch.Key{watch.OnTable(state.Jobs)}
	snap := s.published().Snapshot
	if d, ok := findDeployment(snap, req.ID, may); ok {
		keys = []watch.Key{watch.OnJob(d.Key()), watch.OnJobAllocs(d.Key())}
		if req.MinIndex > 0 {
			req.MaxWait = untilOverdue(deploymentOf(snap, d, s.env.Replica.Now()), s.env.Replica.Now(), req.MaxWait)
		}
	}
	return s.env.Hub.Read(ctx, &req.Query, m, keys, func(p *replica.Published) (structs.Index, error) {
		d, ok := findDeployment(p.Snapshot, req.ID, may)
		if err := look(p.Snapshot, d, ok); err != nil || !ok {
			return p.Snapshot.TableIndex(state.Jobs), err
		}
		return jobDeploymentsIndex(p.Snapshot, d.now), nil
	})
}

// untilOverdue shortens the wait of a blocking query to when a first version is overdue: nothing is written then.
func untilOverdue(d *methods.Deployment, now structs.LogTime, wait time.Duration) time.Duration {
	for _, g := range d.Groups {
		if left := g.By.Sub(now); d.Version == 0 && g.By != 0 && left > 0 && (wait <= 0 || left < wait) {
			wait = max(left, time.Second)
		}
	}
	return wait
}

func (s *Set) deploymentGet(ctx context.Context, c *rpc.Call, req *methods.DeploymentGetRequest) (*methods.DeploymentGetResponse, error) {
	resp := &methods.DeploymentGetResponse{}
	see := func() {}
	err := s.ofDeployment(ctx, req, &resp.Meta, func(snap *state.Snapshot, d deployed, ok bool) error {
		see = func() {
			if resp.Deployment = nil; ok {
				resp.Deployment = deploymentOf(snap, d, s.env.Replica.Now())
			}
		}
		return nil
	})
	see() // now: time alone may have changed it while the query waited
	return resp, err
}

func (s *Set) deploymentAllocs(ctx context.Context, c *rpc.Call, req *methods.DeploymentGetRequest) (*methods.AllocListResponse, error) {
	resp := &methods.AllocListResponse{}
	return resp, s.ofDeployment(ctx, req, &resp.Meta, func(snap *state.Snapshot, d deployed, ok bool) error {
		resp.Allocs, resp.Jobs, resp.NextToken = nil, nil, ""
		if !ok {
			return structs.Errorf(structs.CodeNotFound, "deployment not found")
		}
		as := slices.DeleteFunc(slices.Clone(snap.AllocsByJob(d.Key())), func(a *structs.Allocation) bool { return reconcile.OlderThan(a, d.Job) })
		var err error
		resp.Allocs, resp.NextToken, err = s.newestAllocs(&req.Query, as)
		resp.Jobs = jobsOf(resp.Allocs)
		return err
	})
}

// deploymentFail stops a rolling update, as if it made no progress. With auto_revert the newest stable version returns.
func (s *Set) deploymentFail(ctx context.Context, c *rpc.Call, req *methods.DeploymentGetRequest) (*methods.DeploymentFailResponse, error) {
	snap := s.published().Snapshot
	d, ok := findDeployment(snap, req.ID, visible(ctx, "*", acl.CapSubmitJob))
	if !ok {
		return nil, structs.Errorf(structs.CodeNotFound, "deployment not found")
	}
	now := deploymentOf(snap, d, s.env.Replica.Now())
	switch {
	case d.Version == 0 && d.next == nil && !d.Stable:
		return nil, structs.Errorf(structs.CodeInvalid, "version 0 is the first of job %q: there is no earlier one to keep; stop the job with  muster job stop %s", d.ID, d.ID)
	case now.Status != methods.DeploymentRunning && now.Status != methods.DeploymentPaused:
		return nil, structs.Errorf(structs.CodeInvalid, "deployment %s is %s: only one that runs can be stopped", d.id().Short(), now.Status)
	}
	by := auth.Who(ctx).By
	why := "stopped by hand"
	if by.Name != "" {
		why = "stopped by " + by.Name
	}
	w, err := s.write(ctx, &structs.JobStableCommand{Namespace: d.Namespace, JobID: d.ID, Version: d.Version, Failed: why + duty.RevertNote(snap, d.Job)})
	if err != nil {
		return nil, err
	}
	resp := &methods.DeploymentFailResponse{Index: w.Index}
	if good, _ := duty.Reverts(snap, d.Job); good != nil {
		resp.Reverts = &good.Version
	}
	return resp, nil
}

// withDeployment returns a copy of an evaluation that names the deployment of its version, if it is about one: those who submitted
// the version follow the deployment from there.
func withDeployment(snap *state.Snapshot, e *structs.Evaluation) *structs.Evaluation {
	if e == nil || e.Type != structs.JobService || e.Trigger != structs.TriggerJobRegister && e.Trigger != structs.TriggerScale && e.Trigger != structs.TriggerRollingUpdate {
		return e
	}
	for _, d := range deployedOf(snap, snap.JobByKey(e.JobKey())) {
		if d.SpecIndex == e.JobSpecIndex {
			c := *e
			c.DeploymentID = d.id()
			return &c
		}
	}
	return e
}

// withDeployments returns evaluations with their deployments.
func withDeployments(snap *state.Snapshot, es []*structs.Evaluation) []*structs.Evaluation {
	for i, e := range es {
		es[i] = withDeployment(snap, e)
	}
	return es
}

// revertsToNothing warns of an update that could not be reverted, although its job asks for that.
func (s *Set) revertsToNothing(j *structs.Job) (warnings []string) {
	snap := s.published().Snapshot
	old := snap.JobByKey(j.Key())
	if old == nil || !snap.Has(feature.UpdateDeadlines) || !j.Placeable() || fsm.SameSpec(old, j) {
		return nil
	}
	stable := func(v *structs.Job) bool { return v.Stable && v.CreateIndex == old.CreateIndex }
	if _, wants := duty.Reverts(snap, j); !wants || slices.ContainsFunc(snap.JobVersions(j.Key()), stable) {
		return nil
	}
	return []string{"auto_revert: no version of the job is stable yet, so there is nothing to go back to if this update stops"}
}
