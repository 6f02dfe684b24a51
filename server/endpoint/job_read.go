package endpoint

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/scheduler/jobdiff"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/decide"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/server/watch"
	"github.com/muster-sched/muster/structs"
)

func (s *Set) registerJobReads() {
	handle(s, methods.JobGet, s.jobGet)
	handle(s, methods.JobList, s.jobList)
	handle(s, methods.JobVersions, s.jobVersions)
	handle(s, methods.JobSubmission, s.jobSubmission)
	handle(s, methods.JobSummary, s.jobSummary)
	handle(s, methods.JobAllocs, s.jobAllocs)
	handle(s, methods.JobEvals, s.jobEvals)
	handle(s, methods.JobScaleStatus, s.jobScaleStatus)
	handle(s, methods.ScalingList, s.scalingList)
	handle(s, methods.ScalingGet, s.scalingGet)
	handle(s, methods.JobGangs, s.jobGangs)
	handle(s, methods.JobWhy, s.jobWhy)
	handle(s, methods.QueueList, s.queueList)
}

func keyOf(c *rpc.Call, id string) structs.JobKey {
	return structs.JobKey{Namespace: auth.NamespaceOf(c), ID: id}
}

// jobIndex returns the index for a query about one job.
func jobIndex(snap *state.Snapshot, j *structs.Job) structs.Index {
	if j == nil {
		return snap.TableIndex(state.Jobs)
	}
	return j.ModifyIndex
}

func (s *Set) jobGet(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobGetResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.JobGetResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k)}, func(p *replica.Published) (structs.Index, error) {
		j := p.Snapshot.JobByKey(k)
		resp.Job = j
		if req.Version != nil {
			resp.Job = p.Snapshot.JobVersion(k, *req.Version)
		}
		return jobIndex(p.Snapshot, j), nil
	})
}

func (s *Set) jobList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.JobListResponse, error) {
	ns := auth.NamespaceOf(c)
	may := visible(ctx, ns, acl.CapListJobs)
	resp := &methods.JobListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Jobs)}, func(p *replica.Published) (structs.Index, error) {
		snap := p.Snapshot
		jobs, next, err := list(s, &req.Query, lister[structs.Job]{kind: "job",
			key:  jobToken,
			keep: func(j *structs.Job) bool { return may(j.Namespace) },
		}, snap.Jobs(ns, req.Prefix))
		if err != nil {
			return 0, err
		}
		resp.Jobs, resp.NextToken = make([]methods.JobListItem, len(jobs)), next
		for i, j := range jobs {
			resp.Jobs[i] = methods.JobListItem{Job: j, Summary: Summarize(snap, j)}
		}
		fillEnds(snap, resp.Jobs)
		return snap.TableIndex(state.Jobs), nil
	})
}

// endsMax bounds the accounting records that one list looks at.
const endsMax = 20_000

// fillEnds adds how jobs ended. Records are in the order of ends, and none of them is older than its job.
func fillEnds(snap *state.Snapshot, jobs []methods.JobListItem) {
	dead := map[structs.JobKey]*methods.JobListItem{}
	oldest := structs.Index(0)
	for i := range jobs {
		if j := jobs[i].Job; j.Status == structs.JobDead {
			dead[j.Key()] = &jobs[i]
			if oldest == 0 || j.CreateIndex < oldest {
				oldest = j.CreateIndex
			}
		}
	}
	left := endsMax
	for r := range snap.AcctBack() {
		if len(dead) == 0 || left == 0 || r.CreateIndex < oldest {
			return
		}
		left--
		it := dead[r.Key()]
		if it == nil {
			continue
		}
		delete(dead, r.Key())
		if r.CreateIndex >= it.Job.CreateIndex { // else it is of a purged job of the same name
			it.End = &methods.JobEnd{Exit: r.Exit, Code: r.ExitCode, At: r.End}
		}
	}
}

func (s *Set) jobVersions(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobVersionsResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.JobVersionsResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k)}, func(p *replica.Published) (structs.Index, error) {
		snap := p.Snapshot
		j := snap.JobByKey(k)
		all := snap.JobVersions(k)
		resp.Versions, resp.Diffs = all, nil
		if !req.Diffs {
			return jobIndex(snap, j), nil
		}
		var base *structs.Job
		switch {
		case req.DiffTag != "":
			for _, v := range all {
				if v.VersionTag != nil && v.VersionTag.Name == req.DiffTag {
					base = v
				}
			}
			if base == nil && len(all) > 0 {
				return 0, structs.Errorf(structs.CodeNotFound, "tag %q not found on any version of job %q", req.DiffTag, k.ID)
			}
		case req.DiffVersion != nil:
			if base = snap.JobVersion(k, *req.DiffVersion); base == nil && len(all) > 0 {
				return 0, structs.Errorf(structs.CodeNotFound, "job %q has no version %d", k.ID, *req.DiffVersion)
			}
		}
		for i, v := range all {
			against := base
			if base == nil {
				if i+1 >= len(all) {
					break // the oldest version has no predecessor
				}
				against = all[i+1]
			}
			d, err := jobdiff.JSON(against, v, true)
			if err != nil {
				return 0, err
			}
			resp.Diffs = append(resp.Diffs, d)
		}
		return jobIndex(snap, j), nil
	})
}

func (s *Set) jobSubmission(ctx context.Context, c *rpc.Call, req *methods.JobSubmissionRequest) (*methods.JobSubmissionResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.JobSubmissionResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k)}, func(p *replica.Published) (structs.Index, error) {
		j := p.Snapshot.JobVersion(k, req.Version)
		resp.Submission = p.Snapshot.JobSubmission(k, req.Version)
		resp.JobIndex = 0
		if j != nil {
			resp.JobIndex = j.SpecIndex
		}
		return jobIndex(p.Snapshot, p.Snapshot.JobByKey(k)), nil
	})
}

func (s *Set) jobSummary(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobSummaryResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.JobSummaryResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k), watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		j := p.Snapshot.JobByKey(k)
		resp.Summary = nil
		if j == nil {
			return jobIndex(p.Snapshot, nil), nil
		}
		resp.Summary = Summarize(p.Snapshot, j)
		if ended := p.Snapshot.ArrayByKey(k); ended != nil && j.Array != nil {
			resp.Summary.Ended = ended.Ended
		}
		return resp.Summary.ModifyIndex, nil
	})
}

func (s *Set) jobAllocs(ctx context.Context, c *rpc.Call, req *methods.JobAllocsRequest) (*methods.AllocListResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.AllocListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		j := p.Snapshot.JobByKey(k)
		as := p.Snapshot.AllocsByJob(k)
		idx := allocsIndex(p.Snapshot, as)
		if j != nil && !req.All {
			as = slices.DeleteFunc(slices.Clone(as), func(a *structs.Allocation) bool { return a.CreateIndex < j.CreateIndex })
		}
		var err error
		resp.Allocs, resp.NextToken, err = s.newestAllocs(&req.Query, slices.Clone(as))
		resp.Jobs = jobsOf(resp.Allocs)
		return idx, err
	})
}

func (s *Set) jobEvals(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.EvalListResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.EvalListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		es := withDeployments(p.Snapshot, slices.Clone(p.Snapshot.EvalsByJob(k)))
		idx := evalsIndex(p.Snapshot, es)
		var err error
		resp.Evals, resp.NextToken, err = newest(s, &req.Query, "eval", es, func(e *structs.Evaluation) (structs.Index, [16]byte) { return e.CreateIndex, e.ID })
		return idx, err
	})
}

func (s *Set) jobScaleStatus(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobScaleStatusResponse, error) {
	k := keyOf(c, req.JobID)
	resp := &methods.JobScaleStatusResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k), watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		snap := p.Snapshot
		j := snap.JobByKey(k)
		resp.Groups = nil
		if j == nil {
			return jobIndex(snap, nil), nil
		}
		resp.Namespace, resp.JobID = j.Namespace, j.ID
		resp.JobCreateIndex, resp.JobModifyIndex, resp.JobStopped = j.CreateIndex, j.SpecIndex, j.Stop
		resp.Groups = map[structs.GroupName]*methods.GroupScaleStatus{}
		idx := j.ModifyIndex
		for _, g := range j.Groups {
			resp.Groups[g.Name] = &methods.GroupScaleStatus{Desired: g.Count}
		}
		for _, a := range snap.AllocsByJob(k) {
			idx = max(idx, a.ModifyIndex)
			g := resp.Groups[a.Group]
			if g == nil || a.Terminal() {
				continue
			}
			g.Placed++
			if a.Client == structs.ClientRunning {
				g.Running++
			}
		}
		if ev := snap.ScalingEvents(k); ev != nil {
			idx = max(idx, ev.ModifyIndex)
			for _, e := range ev.Events {
				if g := resp.Groups[e.Group]; g != nil {
					g.Events = append(g.Events, e)
				}
			}
		}
		return idx, nil
	})
}

// jobGangs returns the members and states of a job's gangs.
func (s *Set) jobGangs(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobGangsResponse, error) {
	k := structs.JobKey{Namespace: auth.NamespaceOf(c), ID: req.JobID}
	resp := &methods.JobGangsResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k), watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		j := p.Snapshot.JobByKey(k)
		if j == nil {
			return 0, structs.Errorf(structs.CodeNotFound, "job not found")
		}
		resp.Job, resp.Rosters = j, p.Snapshot.RostersByJob(k)
		eval, idx := LastDecision(p.Snapshot, k)
		var reports []*structs.GroupReport
		if auth.Who(ctx).Task == nil { // a task may see the members of its gang, but not what others hold
			reports = s.ReportsOf(k, eval)
		}
		resp.States = gangStates(p, j, reports)
		idx = max(idx, j.ModifyIndex)
		for _, r := range resp.Rosters {
			idx = max(idx, r.ModifyIndex)
			for _, m := range r.Members {
				if a := p.Snapshot.AllocByID(m.Alloc); a != nil {
					idx = max(idx, a.ModifyIndex)
				}
			}
		}
		return idx, nil
	})
}

// jobWhy explains why a job waits, in words and numbers (D23).
func (s *Set) jobWhy(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobWhyResponse, error) {
	k := keyOf(c, req.JobID)
	may := visible(ctx, "*", acl.CapListJobs)
	resp := &methods.JobWhyResponse{}
	err := s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnJob(k), watch.OnJobAllocs(k)}, func(p *replica.Published) (structs.Index, error) {
		*resp = methods.JobWhyResponse{Meta: resp.Meta}
		snap := p.Snapshot
		j := snap.JobByKey(k)
		if j == nil {
			return jobIndex(snap, nil), nil
		}
		resp.Job, resp.Workload, resp.Summary = j, snap.Workload(k), Summarize(snap, j)
		if resp.Workload != nil {
			domain := resp.Workload.Domain
			all := decide.Pending(snap)
			terms := func(line *decide.ShownLine, i int) {
				if all[i] == resp.Workload {
					resp.Terms = line.Terms(i)
				}
			}
			starts := s.env.Decide.StartEstimates(snap, s.env.Replica.Now())
			for _, i := range s.env.Decide.Shown(p, all, s.env.Replica.Now(), terms) {
				w := all[i]
				wk := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
				if wk == k || resp.Position == 0 && w.Reason == structs.ReasonQuota {
					s.startsAt(snap, resp, wk == k, starts, w, wk)
				}
				if w.Domain != domain {
					continue
				}
				resp.QueueLen++
				if wk == k {
					resp.Position = resp.QueueLen
				} else if resp.Position == 0 && len(resp.Ahead) < 10 && may(w.Namespace) {
					resp.Ahead = append(resp.Ahead, wk)
					resp.AheadAsk = append(resp.AheadAsk, decide.WaitingAsk(snap.JobByKey(wk), w))
				}
			}
			if resp.Position == 0 {
				resp.Ahead, resp.AheadAsk = nil, nil
			}
			resp.Asks = decide.WaitingAsk(j, resp.Workload)
			resp.Since = decide.PendingSince(snap, j, resp.Workload)
		}
		eval, idx := LastDecision(snap, k)
		idx = max(idx, resp.Summary.ModifyIndex)
		resp.Eval = eval
		resp.Reports = append(decide.PreemptWaitReports(snap, k), s.ReportsOf(k, eval)...)
		if w := resp.Workload; w != nil && w.StartEst != 0 {
			resp.StartEst, resp.Starts = s.env.Decide.StartEstimates(snap, s.env.Replica.Now()).Reserved(w, func() []*structs.GroupReport { return resp.Reports })
		}
		if resp.Workload != nil {
			resp.Others = s.otherQueues(p, j, resp.Workload, resp.Reports, may)
		}
		resp.NodeNames = nodeNames(snap, resp.Reports)
		resp.Saving = s.CheckpointsFor(snap, k)
		resp.Suspended = SuspendedOf(snap, k)
		resp.Silent = silentOf(snap, k)
		resp.Updating = updatingOf(snap, j, s.env.Replica.Now())
		for _, g := range j.Groups {
			resp.Topology = noteReached(resp.Topology, g.Name, reachedBy(p, snap.RosterByKey(structs.RosterKey{Job: k, Group: g.Name})))
		}
		if j.IsPeriodic() || j.IsParameterized() {
			if err := s.NamespaceRefuses(snap, j); err != nil {
				resp.Refused = err.Error()
			}
		}
		return idx, nil
	})
	if err == nil && resp.Job != nil && resp.Workload != nil && resp.Workload.Waiting > 0 {
		found := s.env.Decide.Advise(k)
		if resp.Advice = adviceOf(found, may); found != nil && found.Start > 0 && resp.Workload.StartEst != 0 && (resp.Starts == "" || resp.Starts == decide.RunsLonger) {
			resp.StartEst = found.Start // of this moment, while the pass may have been some time ago
		}
		if req.All {
			for _, x := range s.env.Decide.Excluded(k) {
				resp.Excluded = append(resp.Excluded, methods.ExcludedNode{Group: x.Group, NodeID: x.Node.ID, NodeName: x.Node.Name, Why: x.Why})
			}
		}
	}
	return resp, err
}

// startsAt estimates the start of a waiting workload, unless a pass has done so. It is also called for workloads ahead
// of the requested one under the same limit, because those are served first; with tell, it records the result.
func (s *Set) startsAt(snap *state.Snapshot, resp *methods.JobWhyResponse, tell bool, starts *decide.StartEstimates, w *structs.Workload, k structs.JobKey) {
	j := snap.JobByKey(k)
	if j == nil || w.Waiting == 0 || w.StartEst != 0 {
		return
	}
	eval, _ := LastDecision(snap, k)
	at, text := starts.Of(j, w, s.ReportsOf(k, eval))
	if tell {
		resp.StartEst, resp.Starts = at, text
	}
}

// queueFrom returns where in the queue the page of a token begins. The queue is reordered while it is read: if the job of
// the token has left it, the page begins at the place where that job was.
func queueFrom(waiting []*structs.Workload, token string) (int, error) {
	if token == "" {
		return 0, nil
	}
	place, key, _ := strings.Cut(token, ":")
	n, err := strconv.Atoi(place)
	if err != nil || n < 0 {
		return 0, structs.Errorf(structs.CodeInvalid, "next_token %q is not from this list", token)
	}
	for i, w := range waiting {
		if (structs.JobKey{Namespace: w.Namespace, ID: w.JobID}).String() == key {
			return i, nil
		}
	}
	return n, nil
}

// queueList lists what waits, in order. Without per_page the answer is whole: pages of an order that changes could omit
// a job that moved.
func (s *Set) queueList(ctx context.Context, c *rpc.Call, req *methods.ListRequest) (*methods.QueueListResponse, error) {
	may := visible(ctx, auth.NamespaceOf(c), acl.CapListJobs)
	resp := &methods.QueueListResponse{}
	return resp, s.env.Hub.Read(ctx, &req.Query, &resp.Meta, []watch.Key{watch.OnTable(state.Workloads), watch.OnTable(state.Jobs)}, func(p *replica.Published) (structs.Index, error) {
		resp.Items, resp.NextToken = nil, ""
		snap := p.Snapshot
		pos := map[structs.PoolName]int64{}
		if _, err := pageSize(&req.Query); err != nil {
			return 0, err
		}
		waiting := append(decide.PreemptWaiting(snap), s.Waiting(p)...)
		from, err := queueFrom(waiting, req.NextToken)
		if err != nil {
			return 0, err
		}
		now := s.env.Replica.Now()
		starts := s.env.Decide.StartEstimates(snap, now)
		for i, w := range waiting {
			if w.Reason != structs.ReasonPreemptionPending {
				pos[w.Domain]++
			}
			k := structs.JobKey{Namespace: w.Namespace, ID: w.JobID}
			it := methods.QueueItem{Workload: w, Job: snap.JobByKey(k), Position: pos[w.Domain]}
			if it.Job != nil {
				switch {
				case w.StartEst != 0:
					it.StartEst, it.Starts = starts.Reserved(w, func() []*structs.GroupReport {
						eval, _ := LastDecision(snap, k)
						return s.ReportsOf(k, eval)
					})
				case w.Held, w.Suspended != 0, w.Reason == structs.ReasonBeginTime, w.Reason == structs.ReasonDependency:
					it.StartEst, it.Starts = starts.Of(it.Job, w, nil)
				case w.Reason == structs.ReasonQuota: // also for jobs that are not shown, because they are served first
					eval, _ := LastDecision(snap, k)
					it.StartEst, it.Starts = starts.Of(it.Job, w, s.ReportsOf(k, eval))
				}
			}
			if i < from || !may(w.Namespace) || len(req.Prefix) > 0 && (len(w.JobID) < len(req.Prefix) || w.JobID[:len(req.Prefix)] != req.Prefix) {
				continue
			}
			if req.PerPage > 0 && len(resp.Items) == req.PerPage {
				resp.NextToken = fmt.Sprintf("%d:%s", i, k)
				break
			}
			resp.Items = append(resp.Items, it)
			if w.Reason == structs.ReasonPreemptionPending {
				resp.Items[len(resp.Items)-1].Position = 0 // it is no longer in the queue
			}
		}
		return max(snap.TableIndex(state.Workloads), snap.TableIndex(state.Jobs)), nil
	})
}
