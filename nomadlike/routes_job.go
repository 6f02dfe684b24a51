package nomadlike

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/nomadlike/jobspec"
	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

func jobRoutes() []route {
	return []route{
		{methods: "GET", pattern: "/v1/jobs", rpc: methods.JobList.Name, handle: jobList},
		{methods: "PUT,POST", pattern: "/v1/jobs", rpc: methods.JobRegister.Name, handle: jobRegister},
		{methods: "PUT,POST", pattern: "/v1/jobs/parse", rpc: "", handle: jobParse},
		{methods: "GET,POST", pattern: "/v1/jobs/statuses", rpc: methods.JobList.Name, handle: jobStatuses},
		{methods: "PUT,POST", pattern: "/v1/validate/job", rpc: methods.JobValidate.Name, handle: jobValidate},
		{methods: "GET", pattern: "/v1/job/{id}", rpc: methods.JobGet.Name, handle: jobGet},
		{methods: "PUT,POST", pattern: "/v1/job/{id}", rpc: methods.JobRegister.Name, handle: jobRegister},
		{methods: "DELETE", pattern: "/v1/job/{id}", rpc: methods.JobDeregister.Name, handle: jobStop},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/plan", rpc: methods.JobPlan.Name, handle: jobPlan},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/evaluate", rpc: methods.JobEvaluate.Name, handle: jobEvaluate},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/hold", rpc: methods.JobWorkload.Name, handle: jobWorkload(structs.ActionHold)},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/release", rpc: methods.JobWorkload.Name, handle: jobWorkload(structs.ActionRelease)},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/requeue", rpc: methods.JobWorkload.Name, handle: jobWorkload(structs.ActionRequeue)},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/retry", rpc: methods.JobWorkload.Name, handle: jobWorkload(structs.ActionRetry)},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/suspend", rpc: methods.JobSuspend.Name, handle: jobSuspend(false)},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/resume", rpc: methods.JobSuspend.Name, handle: jobSuspend(true)},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/priority", rpc: methods.JobPriority.Name, handle: jobPriority},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/checkpoint", rpc: methods.JobCheckpoint.Name, handle: jobCheckpoint},
		{methods: "GET", pattern: "/v1/job/{id}/allocations", rpc: methods.JobAllocs.Name, handle: jobAllocs},
		{methods: "GET", pattern: "/v1/job/{id}/evaluations", rpc: methods.JobEvals.Name, handle: jobEvals},
		{methods: "GET", pattern: "/v1/job/{id}/deployments", rpc: methods.JobDeployments.Name, handle: jobDeployments},
		{methods: "GET", pattern: "/v1/job/{id}/deployment", rpc: methods.JobDeployments.Name, handle: jobDeployment},
		{methods: "GET", pattern: "/v1/job/{id}/summary", rpc: methods.JobSummary.Name, handle: jobSummary},
		{methods: "GET", pattern: "/v1/job/{id}/versions", rpc: methods.JobVersions.Name, handle: jobVersions},
		{methods: "PUT,POST,DELETE", pattern: "/v1/job/{id}/versions/{tag}/tag", rpc: methods.JobTag.Name, handle: jobTag},
		{methods: "GET", pattern: "/v1/job/{id}/submission", rpc: methods.JobSubmission.Name, handle: jobSubmission},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/revert", rpc: methods.JobRevert.Name, handle: jobRevert},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/stable", rpc: methods.JobStable.Name, handle: jobStable},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/dispatch", rpc: methods.JobDispatch.Name, handle: jobDispatch},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/dispatch/payload", rpc: methods.JobDispatch.Name, handle: jobDispatchPayload},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/periodic/force", rpc: methods.JobPeriodic.Name, handle: jobPeriodicForce},
		{methods: "GET", pattern: "/v1/job/{id}/scale", rpc: methods.JobScaleStatus.Name, handle: jobScaleStatus},
		{methods: "PUT,POST", pattern: "/v1/job/{id}/scale", rpc: methods.JobScale.Name, handle: jobScale},
		{methods: "GET", pattern: "/v1/job/{id}/services", rpc: methods.ServiceJob.Name, handle: jobServices},
		{methods: "GET", pattern: "/v1/job/{id}/actions", rpc: methods.JobGet.Name, handle: jobActions},
		{methods: "GET", pattern: "/v1/job/{id}/gangs", rpc: methods.JobGangs.Name, handle: jobGangs},
		{methods: "GET", pattern: "/v1/job/{id}/why", rpc: methods.JobWhy.Name, handle: jobWhy},
		{methods: "GET", pattern: "/v1/queue", rpc: methods.QueueList.Name, handle: queueList},
	}
}

func jobList(c *call) (any, error) {
	withMeta, err := c.flag("meta")
	if err != nil {
		return nil, err
	}
	return invokeList(c, methods.JobList, &methods.ListRequest{}, jobStubs(withMeta))
}

func jobStubs(withMeta bool) func(*methods.JobListResponse) []*wire.JobListStub {
	return func(resp *methods.JobListResponse) []*wire.JobListStub {
		return each(resp.Jobs, func(it methods.JobListItem) *wire.JobListStub { return jobStub(it, withMeta) })
	}
}

func jobStub(it methods.JobListItem, withMeta bool) *wire.JobListStub {
	j := it.Job
	s := &wire.JobListStub{
		ID: j.ID, ParentID: j.ParentID, Name: j.Name, Namespace: j.Namespace, Datacenters: j.Datacenters, NodePool: string(j.NodePool),
		Type: string(j.Type), Priority: j.Priority, Periodic: j.IsPeriodic(), ParameterizedJob: j.IsParameterized(), Stop: j.Stop,
		Status: string(j.Status), StatusDescription: wire.StatusDescription(j), JobSummary: summaryOf(it.Summary), CreateIndex: uint64(j.CreateIndex),
		ModifyIndex: uint64(j.ModifyIndex), JobModifyIndex: uint64(j.SpecIndex), SubmitTime: int64(j.SubmitTime), Queue: string(j.Queue), User: j.Submitter.Name, Version: j.Version,
	}
	if e := it.End; e != nil {
		s.End = &wire.JobEnd{Exit: e.Exit, ExitCode: e.Code, Time: int64(e.At)}
	}
	if t := j.VersionTag; t != nil {
		s.VersionTag = &wire.JobVersionTag{Name: t.Name, Description: t.Description, TaggedTime: int64(t.TaggedTime)}
	}
	if withMeta {
		s.Meta = j.Meta
	}
	return s
}

func summaryOf(s *methods.Summary) *wire.JobSummary {
	if s == nil {
		return nil
	}
	out := &wire.JobSummary{
		JobID: s.JobID, Namespace: s.Namespace, Summary: map[string]wire.TaskGroupSummary{},
		Children:    &wire.JobChildrenSummary{Pending: s.ChildrenPending, Running: s.ChildrenRunning, Dead: s.ChildrenDead},
		CreateIndex: uint64(s.CreateIndex), ModifyIndex: uint64(s.ModifyIndex),
	}
	for g, v := range s.Groups {
		out.Summary[string(g)] = wire.TaskGroupSummary(v)
	}
	for _, r := range s.Ended {
		out.Ended = append(out.Ended, wire.IndexRange(r))
	}
	return out
}

// jobBody decodes a body with a job, converts the job and checks that it is the one in the path. Mistakes in the job
// are problems, not an error.
func (c *call) jobBody(body any, job func() *wire.Job) (*structs.Job, wire.Problems, error) {
	raw, err := c.rawBody(BodyMax)
	if err != nil {
		return nil, wire.Problems{}, err
	}
	unknown, err := wire.Decode(raw, body)
	if err != nil {
		return nil, wire.Problems{}, err
	}
	j := job()
	if j == nil {
		return nil, wire.Problems{}, structs.Errorf(structs.CodeInvalid, "Job must be specified")
	}
	if id := c.params["id"]; id != "" && (j.ID == nil || *j.ID != id) {
		return nil, wire.Problems{}, structs.Errorf(structs.CodeInvalid, "Job ID does not match")
	}
	// A namespace in the query applies to a job without one. A job with a namespace must be allowed there.
	if q := c.r.URL.Query().Get("namespace"); q != "" && (j.Namespace == nil || *j.Namespace == "") {
		j.Namespace = &q
	}
	if j.Namespace != nil && *j.Namespace != "" {
		c.hdr.Namespace = *j.Namespace
	}
	if j.Region != nil && *j.Region != "" && c.hdr.Region == "" && *j.Region != structs.RegionDefault {
		c.hdr.Region = *j.Region
	}
	out, problems := wire.Prepare(j)
	for _, u := range unknown {
		problems.Warnings = append(problems.Warnings, "ignored: "+u)
	}
	return out, problems, nil
}

func jobRegister(c *call) (any, error) {
	var body wire.JobRegisterRequest
	job, problems, err := c.jobBody(&body, func() *wire.Job { return body.Job })
	if err := cmp.Or(err, problems.Err()); err != nil {
		return nil, err
	}
	req := &methods.JobRegisterRequest{
		Job: job, EnforceIndex: body.EnforceIndex, JobModifyIndex: structs.Index(body.JobModifyIndex),
		PreserveCounts: body.PreserveCounts, PreserveResources: body.PreserveResources, EvalPriority: body.EvalPriority, Submission: submissionOf(body.Submission),
		IdempotencyKey: c.r.Header.Get("Idempotency-Key"),
	}
	resp, err := invoke(c, methods.JobRegister, req)
	if err != nil {
		return nil, err
	}
	return c.registered(resp, problems.Warnings), nil
}

func submissionOf(s *wire.JobSubmission) *structs.JobSubmission {
	if s == nil {
		return nil
	}
	return &structs.JobSubmission{Source: s.Source, Format: s.Format, VariableFlags: s.VariableFlags, Variables: s.Variables}
}

func (c *call) registered(resp *methods.JobRegisterResponse, warnings []string) *wire.JobRegisterResponse {
	c.index(resp.Index)
	return &wire.JobRegisterResponse{
		EvalID: resp.EvalID.String(), EvalCreateIndex: uint64(resp.EvalIndex), JobModifyIndex: uint64(resp.JobModifyIndex),
		Warnings: joinWarnings(warnings, resp.Warnings), Index: uint64(resp.Index),
		QueryMeta: wire.QueryMeta{LastIndex: uint64(resp.Index)},
	}
}

// joinWarnings formats the warnings of the API and, one a line, those of a server.
func joinWarnings(ws []string, server string) string {
	ws = slices.DeleteFunc(append(ws, strings.Split(server, "\n")...), func(s string) bool { return s == "" })
	return wire.Problems{Warnings: ws}.WarningText()
}

func jobParse(c *call) (any, error) {
	raw, err := c.rawBody(ParseMax + 64<<10)
	if err != nil {
		return nil, err
	}
	var body wire.JobsParseRequest
	if _, err := wire.Decode(raw, &body); err != nil {
		return nil, err
	}
	if strings.TrimSpace(body.JobHCL) == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "Job spec is empty")
	}
	if len(body.JobHCL)+len(body.Variables) > ParseMax {
		return nil, structs.Errorf(structs.CodeTooLarge, "the job file is %d bytes; at most %d are parsed by a server", len(body.JobHCL)+len(body.Variables), ParseMax)
	}
	if err := c.authorizeParse(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), 15*time.Second)
	defer cancel()
	resp, err := jobspec.ParseInChild(ctx, jobspec.Request{Source: body.JobHCL, Variables: body.Variables})
	if err != nil {
		return nil, err
	}
	if resp.Diagnostics.HasErrors() {
		return nil, structs.Errorf(structs.CodeInvalid, "%s", resp.Diagnostics.String())
	}
	if body.Canonicalize {
		resp.Job.Canonicalize()
	}
	return resp.Job, nil
}

// authorizeParse asks a server whether the token may parse jobs in the namespace.
func (c *call) authorizeParse() error {
	return c.cfg.Agent.Authorize(c.r.Context(), c.hdr.Token, "namespace:"+c.hdr.Namespace, "parse-job")
}

func jobValidate(c *call) (any, error) {
	var body wire.JobValidateRequest
	job, problems, err := c.jobBody(&body, func() *wire.Job { return body.Job })
	if err != nil {
		return nil, err
	}
	if err := problems.Err(); err != nil {
		return &wire.JobValidateResponse{DriverConfigValidated: true, ValidationErrors: problems.Errors, Error: err.Error(), Warnings: problems.WarningText()}, nil
	}
	resp, err := invoke(c, methods.JobValidate, &methods.JobRegisterRequest{Job: job})
	if err != nil {
		return nil, err
	}
	c.index(1) // nothing was written
	problems.Errors = resp.Errors
	out := &wire.JobValidateResponse{DriverConfigValidated: true, ValidationErrors: resp.Errors, Warnings: joinWarnings(problems.Warnings, resp.Warnings)}
	if err := problems.Err(); err != nil {
		out.Error = err.Error()
	}
	return out, nil
}

func (c *call) getJob() (*structs.Job, error) {
	resp, err := invoke(c, methods.JobGet, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	if resp.Job == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "job not found")
	}
	return resp.Job, nil
}

func jobGet(c *call) (any, error) {
	job, err := c.getJob()
	if err != nil {
		return nil, err
	}
	return wire.JobFromStructs(job), nil
}

func jobStop(c *call) (any, error) {
	req := &methods.JobDeregisterRequest{JobID: c.params["id"]}
	var err error
	if req.Purge, err = c.flag("purge"); err != nil {
		return nil, err
	}
	if req.NoShutdownDelay, err = c.flag("no_shutdown_delay"); err != nil {
		return nil, err
	}
	prio, _, err := c.uint("eval_priority")
	if err != nil {
		return nil, err
	}
	req.EvalPriority = int(min(prio, 1<<20))
	resp, err := invoke(c, methods.JobDeregister, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.JobDeregisterResponse{
		EvalID: resp.EvalID.String(), EvalCreateIndex: uint64(resp.EvalIndex), JobModifyIndex: uint64(resp.JobModifyIndex),
		QueryMeta: wire.QueryMeta{LastIndex: uint64(resp.Index)},
	}, nil
}

func jobPlan(c *call) (any, error) {
	var body wire.JobPlanRequest
	job, problems, err := c.jobBody(&body, func() *wire.Job { return body.Job })
	if err := cmp.Or(err, problems.Err()); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.JobPlan, &methods.JobPlanRequest{Job: job, Diff: body.Diff})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	out := &Plan{JobPlanResponse: wire.JobPlanResponse{
		JobModifyIndex: uint64(resp.JobModifyIndex), NextPeriodicLaunch: resp.NextPeriodicLaunch.Time(),
		Warnings:    joinWarnings(problems.Warnings, resp.Warnings),
		Annotations: &wire.PlanAnnotations{DesiredTGUpdates: map[string]*wire.DesiredUpdates{}},
	}}
	if resp.Why != nil {
		out.Why = whyOf(resp.Why)
	}
	if a := resp.Advice; a != nil {
		out.NeverFits = a.Never
		for _, ch := range a.Changes {
			out.Suggestions = append(out.Suggestions, ch.Text)
		}
	}
	for _, g := range slices.Sorted(maps.Keys(resp.Desired)) {
		d := resp.Desired[g]
		out.Annotations.DesiredTGUpdates[string(g)] = &wire.DesiredUpdates{
			Ignore: d.Ignore, Place: d.Place, Migrate: d.Migrate, Stop: d.Stop, InPlaceUpdate: d.InPlaceUpdate,
			DestructiveUpdate: d.DestructiveUpdate, Canary: d.Canary, Preemptions: d.Preemptions, Disconnect: d.Disconnect,
			Reconnect: d.Reconnect, RescheduleNow: d.RescheduleNow, RescheduleLater: d.RescheduleLater,
		}
	}
	out.LostGPUSeconds = resp.Lost
	if r := resp.Risk; r != nil {
		out.Risk = &PlanRisk{AllocTime: int64(r.AllocTime), Lost: r.Lost, JobTime: int64(r.JobTime), Preempted: r.Preempted}
		for _, g := range r.Groups {
			worst := (*WorstNode)(nil)
			if w := g.Worst; w != nil {
				worst = &WorstNode{NodeID: w.Node.String(), NodeName: w.Name, NodeReliability: *wire.NodeReliabilityOf(w)}
			}
			out.Risk.Groups = append(out.Risk.Groups, GroupRisk{WorstNode: worst, Group: string(g.Group), ExpectedRun: int64(g.Run), NodeLosses: float64(g.NodeLosses) / 1e6, Preemptions: float64(g.Preemptions) / 1e6,
				LostGPUSeconds: g.LostGPUSeconds, CheckpointInterval: int64(g.Interval), BestInterval: int64(g.Best)})
		}
	}
	out.MorePlaces = resp.MorePlaces
	for _, p := range resp.Places {
		place := PlannedPlace{Group: string(p.Group), Index: p.Index, NodeID: p.NodeID.String(), NodeName: p.NodeName}
		for _, g := range p.GPUs {
			place.GPUs = append(place.GPUs, PlannedGPU(g))
		}
		out.Places = append(out.Places, place)
	}
	for _, u := range resp.Use {
		out.Use = append(out.Use, PlannedUse{Kind: u.Kind, Name: u.Name, Before: wire.AmountFromStructs(u.Before), After: wire.AmountFromStructs(u.After), Limit: wire.AmountFromStructs(u.Limit)})
	}
	for _, a := range resp.Preempted {
		out.Annotations.PreemptedAllocs = append(out.Annotations.PreemptedAllocs, wire.AllocStubFromStructs(a, false, false))
	}
	for _, r := range resp.Failed {
		if out.FailedTGAllocs == nil {
			out.FailedTGAllocs = map[string]*wire.AllocationMetric{}
		}
		out.FailedTGAllocs[string(r.Group)] = wire.MetricFromStructs(r, job.NodePool)
	}
	for _, e := range resp.CreatedEvals {
		out.CreatedEvals = append(out.CreatedEvals, wire.EvalFromStructs(e, job.NodePool, nil))
	}
	if len(resp.Diff) > 0 {
		out.Diff = new(wire.JobDiff)
		if err := json.Unmarshal(resp.Diff, out.Diff); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func jobEvaluate(c *call) (any, error) {
	var body wire.JobEvaluateRequest
	raw, err := c.rawBody(BodyMax)
	if err != nil {
		return nil, err
	}
	if len(raw) > 0 {
		if _, err := wire.Decode(raw, &body); err != nil {
			return nil, err
		}
	}
	resp, err := invoke(c, methods.JobEvaluate, &methods.JobEvaluateRequest{JobID: c.params["id"], ForceReschedule: body.EvalOptions.ForceReschedule})
	if err != nil {
		return nil, err
	}
	return c.registered(resp, nil), nil
}

// jobWorkload serves PUT /v1/job/:id/hold, release, requeue and retry. They have no body.
func jobWorkload(action string) func(*call) (any, error) {
	return func(c *call) (any, error) {
		resp, err := invoke(c, methods.JobWorkload, &methods.JobWorkloadRequest{JobID: c.params["id"], Action: action})
		if err != nil {
			return nil, err
		}
		return c.registered(resp, nil), nil
	}
}

// jobPriority serves PUT /v1/job/:id/priority: {"Priority": N}.
func jobPriority(c *call) (any, error) {
	var body wire.JobPriorityRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if body.Priority == nil {
		return nil, structs.Errorf(structs.CodeInvalid, "Priority is missing; want a number from %d to %d", structs.JobPriorityMin, structs.JobPriorityMax)
	}
	resp, err := invoke(c, methods.JobPriority, &methods.JobPriorityRequest{JobID: c.params["id"], Priority: *body.Priority})
	if err != nil {
		return nil, err
	}
	return c.registered(resp, nil), nil
}

func jobAllocs(c *call) (any, error) {
	all, err := c.flag("all")
	if err != nil {
		return nil, err
	}
	return invokeList(c, methods.JobAllocs, &methods.JobAllocsRequest{JobID: c.params["id"], All: all}, func(resp *methods.AllocListResponse) []*wire.AllocationListStub {
		return allocStubs(resp, true, true)
	})
}

func jobEvals(c *call) (any, error) {
	return invokeList(c, methods.JobEvals, &methods.JobGetRequest{JobID: c.params["id"]}, evalsOf)
}

func evalsOf(resp *methods.EvalListResponse) []*wire.Evaluation {
	return each(resp.Evals, func(e *structs.Evaluation) *wire.Evaluation { return wire.EvalFromStructs(e, "", nil) })
}

func jobSummary(c *call) (any, error) {
	resp, err := invoke(c, methods.JobSummary, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	if resp.Summary == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "job not found")
	}
	return summaryOf(resp.Summary), nil
}

func jobVersions(c *call) (any, error) {
	req := &methods.JobGetRequest{JobID: c.params["id"], DiffTag: c.r.URL.Query().Get("diff_tag")}
	var err error
	if req.Diffs, err = c.flag("diffs"); err != nil {
		return nil, err
	}
	if v, ok, err := c.uint("diff_version"); err != nil {
		return nil, err
	} else if ok {
		req.DiffVersion = &v
	}
	resp, err := invoke(c, methods.JobVersions, req)
	if err != nil {
		return nil, err
	}
	if len(resp.Versions) == 0 {
		return nil, structs.Errorf(structs.CodeNotFound, "job versions not found")
	}
	out := &wire.JobVersionsResponse{}
	for _, j := range resp.Versions {
		out.Versions = append(out.Versions, wire.JobFromStructs(j))
	}
	for _, d := range resp.Diffs {
		jd := new(wire.JobDiff)
		if err := json.Unmarshal(d, jd); err != nil {
			return nil, err
		}
		out.Diffs = append(out.Diffs, jd)
	}
	return out, nil
}

func jobTag(c *call) (any, error) {
	req := &methods.JobTagRequest{JobID: c.params["id"], Name: c.params["tag"], Unset: c.r.Method == "DELETE"}
	if !req.Unset {
		var body wire.TagVersionRequest
		if err := c.body(&body); err != nil {
			return nil, err
		}
		req.Description = body.Description
		if !body.Latest {
			req.Version = &body.Version
		}
	}
	resp, err := invoke(c, methods.JobTag, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return map[string]any{"Name": req.Name, "Description": req.Description, "TaggedTime": time.Now().UnixNano()}, nil
}

func jobSubmission(c *call) (any, error) {
	v, ok, err := c.uint("version")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, structs.Errorf(structs.CodeInvalid, "Failed to parse value of \"version\" (\"\") as a whole number")
	}
	resp, err := invoke(c, methods.JobSubmission, &methods.JobSubmissionRequest{JobID: c.params["id"], Version: v})
	if err != nil {
		return nil, err
	}
	if resp.Submission == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "job source not found")
	}
	s := resp.Submission
	return &wire.JobSubmission{Source: s.Source, Format: s.Format, VariableFlags: s.VariableFlags, Variables: s.Variables}, nil
}

func jobRevert(c *call) (any, error) {
	var body wire.JobRevertRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if body.JobID != "" && body.JobID != c.params["id"] {
		return nil, structs.Errorf(structs.CodeInvalid, "Job ID does not match")
	}
	resp, err := invoke(c, methods.JobRevert, &methods.JobRevertRequest{JobID: c.params["id"], Version: body.JobVersion, EnforcePriorVersion: body.EnforcePriorVersion})
	if err != nil {
		return nil, err
	}
	return c.registered(resp, nil), nil
}

func jobStable(c *call) (any, error) {
	var body wire.JobStabilityRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.JobStable, &methods.JobStableRequest{JobID: c.params["id"], Version: body.JobVersion, Stable: body.Stable})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.JobStabilityResponse{JobModifyIndex: uint64(resp.Index), Index: uint64(resp.Index)}, nil
}

func jobDispatch(c *call) (any, error) {
	var body wire.JobDispatchRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	return dispatch(c, &methods.JobDispatchRequest{
		JobID: c.params["id"], Payload: body.Payload, Meta: body.Meta, IDPrefixTemplate: body.IdPrefixTemplate, Priority: body.Priority,
	})
}

func jobDispatchPayload(c *call) (any, error) {
	raw, err := c.rawBody(64 << 10)
	if err != nil {
		return nil, err
	}
	return dispatch(c, &methods.JobDispatchRequest{JobID: c.params["id"], Payload: raw})
}

func dispatch(c *call, req *methods.JobDispatchRequest) (any, error) {
	req.IdempotencyToken = c.r.URL.Query().Get("idempotency_token")
	if req.IdempotencyToken == "" {
		req.IdempotencyToken = c.r.Header.Get("Idempotency-Key")
	}
	resp, err := invoke(c, methods.JobDispatch, req)
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.JobDispatchResponse{
		DispatchedJobID: resp.DispatchedJobID, EvalID: resp.EvalID.String(), EvalCreateIndex: uint64(resp.EvalIndex),
		JobCreateIndex: uint64(resp.JobCreateIndex), Index: uint64(resp.Index),
	}, nil
}

func jobPeriodicForce(c *call) (any, error) {
	resp, err := invoke(c, methods.JobPeriodic, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	c.index(resp.Index)
	return &wire.PeriodicForceResponse{EvalID: resp.EvalID.String(), EvalCreateIndex: uint64(resp.EvalIndex), Index: uint64(resp.Index)}, nil
}

func jobScaleStatus(c *call) (any, error) {
	resp, err := invoke(c, methods.JobScaleStatus, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	if resp.Groups == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "job not found")
	}
	out := &wire.JobScaleStatusResponse{
		JobID: resp.JobID, Namespace: resp.Namespace, JobCreateIndex: uint64(resp.JobCreateIndex),
		JobModifyIndex: uint64(resp.JobModifyIndex), JobStopped: resp.JobStopped, TaskGroups: map[string]wire.TaskGroupScaleStatus{},
	}
	for name, g := range resp.Groups {
		st := wire.TaskGroupScaleStatus{Desired: g.Desired, Placed: g.Placed, Running: g.Running, Healthy: g.Healthy, Unhealthy: g.Unhealthy, Events: []wire.ScalingEvent{}}
		for _, e := range g.Events {
			st.Events = append(st.Events, scalingEvent(e))
		}
		out.TaskGroups[string(name)] = st
	}
	return out, nil
}

func scalingEvent(e structs.ScalingEvent) wire.ScalingEvent {
	out := wire.ScalingEvent{
		Count: e.Count, PreviousCount: e.PreviousCount, Error: e.Error, Message: e.Message, Time: uint64(e.Time), CreateIndex: uint64(e.CreateIndex),
	}
	if len(e.Meta) > 0 {
		_ = json.Unmarshal(e.Meta, &out.Meta) // it was canonical JSON when it was stored
	}
	if !e.EvalID.IsZero() {
		id := e.EvalID.String()
		out.EvalID = &id
	}
	return out
}

func jobScale(c *call) (any, error) {
	var body wire.ScalingRequest
	if err := c.body(&body); err != nil {
		return nil, err
	}
	if ns := body.Namespace; ns != "" && c.r.URL.Query().Get("namespace") == "" {
		c.hdr.Namespace = ns
	}
	req := &methods.JobScaleRequest{
		JobID: c.params["id"], Group: structs.GroupName(body.Target["Group"]), Count: body.Count, Message: body.Message, Error: body.Error,
		PolicyOverride: body.PolicyOverride, JobModifyIndex: structs.Index(body.JobModifyIndex), EnforceIndex: body.JobModifyIndex != 0,
	}
	if req.Group == "" {
		return nil, structs.Errorf(structs.CodeInvalid, "missing task group name for scaling action: Target.Group must name a group")
	}
	if len(body.Meta) > 0 {
		b, err := json.Marshal(body.Meta)
		if err != nil {
			return nil, err
		}
		req.Meta = b
	}
	resp, err := invoke(c, methods.JobScale, req)
	if err != nil {
		return nil, err
	}
	return c.registered(resp, nil), nil
}

func jobActions(c *call) (any, error) {
	job, err := c.getJob()
	if err != nil {
		return nil, err
	}
	out := []map[string]string{}
	for _, g := range job.Groups {
		for _, t := range g.Tasks {
			for _, a := range t.Actions {
				out = append(out, map[string]string{"Name": a.Name, "TaskName": t.Name, "TaskGroupName": string(g.Name)})
			}
		}
	}
	return out, nil
}

func jobGangs(c *call) (any, error) {
	resp, err := invoke(c, methods.JobGangs, &methods.JobGetRequest{JobID: c.params["id"]})
	if err != nil {
		return nil, err
	}
	return gangsOf(resp), nil
}

func jobWhy(c *call) (any, error) {
	nodes, err := c.flag("nodes")
	if err != nil {
		return nil, err
	}
	resp, err := invoke(c, methods.JobWhy, &methods.JobGetRequest{JobID: c.params["id"], All: nodes})
	if err != nil {
		return nil, err
	}
	if resp.Job == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "job not found")
	}
	return whyOf(resp), nil
}

func queueList(c *call) (any, error) {
	return invokeList(c, methods.QueueList, &methods.ListRequest{}, func(resp *methods.QueueListResponse) []QueueItem { return queueOf(resp.Items) })
}

// jobStatuses returns the bulk status that dashboards poll: the named jobs, or all, with what their allocations do.
func jobStatuses(c *call) (any, error) {
	var body wire.JobStatusesRequest
	if c.r.Method != "GET" {
		if err := c.optionalBody(&body); err != nil {
			return nil, err
		}
	}
	wanted := map[structs.JobKey]bool{}
	for _, k := range body.Jobs {
		wanted[structs.JobKey{Namespace: k.Namespace, ID: k.ID}] = true
	}
	return invokeList(c, methods.JobList, &methods.ListRequest{}, func(resp *methods.JobListResponse) []jobBulkStatus {
		out := []jobBulkStatus{}
		for _, it := range resp.Jobs {
			if j := it.Job; len(wanted) == 0 && (body.IncludeChildren || j.ParentID == "") || wanted[j.Key()] {
				out = append(out, bulkStatusOf(it))
			}
		}
		return out
	})
}

// jobBulkStatus is one row of jobStatuses.
type jobBulkStatus struct {
	ID, Namespace, Name, Type, Status, NodePool, ParentID string
	Datacenters                                           []string
	Priority                                              int
	Version, CreateIndex, ModifyIndex                     uint64
	SubmitTime                                            int64
	Stop                                                  bool
	GroupCountSum                                         int
	Allocs                                                []any
	Summary                                               *wire.JobSummary
}

func bulkStatusOf(it methods.JobListItem) jobBulkStatus {
	j := it.Job
	s := jobBulkStatus{
		ID: j.ID, Namespace: j.Namespace, Name: j.Name, Type: string(j.Type), Status: string(j.Status), NodePool: string(j.NodePool),
		ParentID: j.ParentID, Datacenters: j.Datacenters, Priority: j.Priority, Version: j.Version, CreateIndex: uint64(j.CreateIndex),
		ModifyIndex: uint64(j.ModifyIndex), SubmitTime: int64(j.SubmitTime), Stop: j.Stop, Allocs: []any{}, Summary: summaryOf(it.Summary),
	}
	for _, g := range j.Groups {
		s.GroupCountSum += g.Count
	}
	return s
}
