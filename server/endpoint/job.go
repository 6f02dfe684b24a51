package endpoint

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/muster-sched/muster/internal/methods"
	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/server/acl"
	"github.com/muster-sched/muster/server/auth"
	"github.com/muster-sched/muster/server/duty"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Limits of dispatching.
const (
	PayloadMax     = 16 << 10
	dispatchSuffix = "/dispatch-"
)

func (s *Set) registerJobs() {
	handle(s, methods.JobRegister, s.jobRegister)
	handle(s, methods.JobValidate, s.jobValidate)
	handle(s, methods.JobPlan, s.jobPlan)
	handle(s, methods.JobDeregister, s.jobDeregister)
	handle(s, methods.JobEvaluate, s.jobEvaluate)
	handle(s, methods.JobWorkload, s.jobWorkload)
	handle(s, methods.JobPriority, s.jobPriority)
	handle(s, methods.JobSuspend, s.jobSuspend)
	handle(s, methods.JobCheckpoint, s.jobCheckpoint)
	handle(s, methods.JobRevert, s.jobRevert)
	handle(s, methods.JobStable, s.jobStable)
	handle(s, methods.JobTag, s.jobTag)
	handle(s, methods.JobDispatch, s.jobDispatch)
	handle(s, methods.JobPeriodic, s.jobPeriodicForce)
	handle(s, methods.JobScale, s.jobScale)
	s.registerJobReads()
	s.registerAcct()
}

func (s *Set) jobRegister(ctx context.Context, c *rpc.Call, req *methods.JobRegisterRequest) (*methods.JobRegisterResponse, error) {
	j, errs, err := s.prepareJob(ctx, c, req.Job, acl.CapSubmitJob)
	if err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		return nil, structs.InvalidAll(errs, 0)
	}
	if err := s.mayRegister(auth.Who(ctx)); err != nil {
		return nil, err
	}
	if j.Dispatched {
		return nil, structs.Errorf(structs.CodeInvalid, "job can't be submitted with 'Dispatched'")
	}
	if err := s.checkBundles(ctx, j); err != nil {
		return nil, err
	}
	warnings := s.normalize(j)
	sub := req.Submission
	if sub != nil && len(sub.Source)+len(sub.Variables) > structs.JobSizeMax {
		warnings = append(warnings, fmt.Sprintf("job source of %d bytes is over the limit of %d and was not kept", len(sub.Source)+len(sub.Variables), structs.JobSizeMax))
		sub = nil
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.JobRegisterCommand{
		Job: j, Eval: j.Placeable(), EvalPriority: req.EvalPriority, EnforceIndex: req.EnforceIndex, SpecIndex: req.JobModifyIndex,
		PreserveCounts: req.PreserveCounts, PreserveResources: req.PreserveResources, Submission: sub,
	}})
	if err != nil {
		return nil, err
	}
	return registered(res, warnings), nil
}

func (s *Set) jobValidate(ctx context.Context, c *rpc.Call, req *methods.JobRegisterRequest) (*methods.JobValidateResponse, error) {
	j, errs, err := s.prepareJob(ctx, c, req.Job, acl.CapReadJob)
	if err != nil {
		return nil, err
	}
	resp := &methods.JobValidateResponse{Errors: errs}
	if j == nil {
		return resp, nil
	}
	warnings := s.normalize(j)
	if err := s.checkBundles(ctx, j); structs.CodeOf(err) == structs.CodeInvalid || structs.CodeOf(err) == structs.CodeUnsupported {
		resp.Errors = append(resp.Errors, err.Error())
	} else if err != nil { // no server answers just now
		warnings = append(warnings, err.Error())
	}
	resp.Warnings = strings.Join(warnings, "\n")
	return resp, nil
}

// jobDeregister stops a job. If it does not exist, nothing is written.
func (s *Set) jobDeregister(ctx context.Context, c *rpc.Call, req *methods.JobDeregisterRequest) (*methods.JobRegisterResponse, error) {
	k, _, err := s.jobOf(c, req.JobID)
	if structs.CodeOf(err) == structs.CodeNotFound {
		return &methods.JobRegisterResponse{Index: s.published().Index}, nil
	}
	if err != nil {
		return nil, err
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.JobDeregisterCommand{
		Namespace: k.Namespace, JobID: k.ID, Purge: req.Purge, NoShutdownDelay: req.NoShutdownDelay, EvalPriority: req.EvalPriority,
	}})
	if err != nil {
		return nil, err
	}
	return registered(res, nil), nil
}

// jobEvaluate requests a new decision about a job.
func (s *Set) jobEvaluate(ctx context.Context, c *rpc.Call, req *methods.JobEvaluateRequest) (*methods.JobRegisterResponse, error) {
	k, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	if j.IsPeriodic() {
		return nil, structs.Errorf(structs.CodeInvalid, "can't evaluate periodic job")
	}
	if j.IsParameterized() {
		return nil, structs.Errorf(structs.CodeInvalid, "can't evaluate parameterized job")
	}
	if req.ForceReschedule {
		var failed []structs.AllocID
		for _, a := range s.published().Snapshot.AllocsByJob(k) {
			if a.Client == structs.ClientFailed && a.Desired == structs.DesiredRun && a.Lineage().Next.IsZero() {
				failed = append(failed, a.ID)
			}
		}
		if len(failed) > 0 {
			res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.AllocTransitionCommand{
				IDs: failed, Transition: structs.Transition{ForceReschedule: true}, Trigger: structs.TriggerJobRegister,
			}})
			if err != nil {
				return nil, err
			}
			return registered(structs.Result{Index: res.Index, EvalID: res.EvalID, SpecIndex: j.SpecIndex, Version: j.Version}, nil), nil
		}
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.EvalUpsertCommand{
		Evals: []*structs.Evaluation{NewEvalOf(j, structs.TriggerJobRegister)},
	}})
	if err != nil {
		return nil, err
	}
	return registered(structs.Result{Index: res.Index, EvalID: res.EvalID, SpecIndex: j.SpecIndex, Version: j.Version}, nil), nil
}

// jobRevert registers an earlier version again.
func (s *Set) jobRevert(ctx context.Context, c *rpc.Call, req *methods.JobRevertRequest) (*methods.JobRegisterResponse, error) {
	k, cur, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	snap := s.published().Snapshot
	switch {
	case req.Version == cur.Version:
		return nil, structs.Errorf(structs.CodeInvalid, "can't revert to current version %d; job %q %s", cur.Version, k.ID, versionsBeside(snap.JobVersions(k), cur.Version))
	case req.EnforcePriorVersion != nil && *req.EnforcePriorVersion != cur.Version:
		return nil, structs.Errorf(structs.CodeConflict, "current job has version %d; enforcing version %d", cur.Version, *req.EnforcePriorVersion)
	}
	old := snap.JobVersion(k, req.Version)
	if old == nil {
		return nil, structs.Errorf(structs.CodeNotFound, "job %q at version %d not found; it runs version %d and %s", k.ID, req.Version, cur.Version, versionsBeside(snap.JobVersions(k), cur.Version))
	}
	j := *old
	id := auth.Who(ctx)
	j.Stop, j.VersionTag, j.Submitter = false, nil, id.By
	if err := s.mayRegister(id); err != nil {
		return nil, err
	}
	if err := s.maySubmit(id, &j); err != nil {
		return nil, err
	}
	if err := s.NamespaceRefuses(snap, &j); err != nil {
		return nil, err
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.JobRegisterCommand{
		Job: &j, Eval: j.Placeable(), EnforceIndex: true, SpecIndex: cur.SpecIndex, Submission: snap.JobSubmission(k, req.Version),
	}})
	if err != nil {
		return nil, err
	}
	return registered(res, nil), nil
}

// versionsBeside names the versions that a job may go back to.
func versionsBeside(versions []*structs.Job, current uint64) string {
	var have []string
	for _, j := range versions {
		if j.Version == current {
			continue
		}
		text := strconv.FormatUint(j.Version, 10)
		if j.VersionTag != nil {
			text += " (" + j.VersionTag.Name + ")"
		}
		have = append(have, text)
	}
	if len(have) == 0 {
		return "has no other version"
	}
	more := ""
	if n := len(have) - versionsShown; n > 0 {
		have, more = have[:versionsShown], fmt.Sprintf(" and %d more", n)
	}
	return "can go back to " + strings.Join(have, ", ") + more
}

// versionsShown bounds the versions that an error names.
const versionsShown = 12

func (s *Set) jobStable(ctx context.Context, c *rpc.Call, req *methods.JobStableRequest) (*methods.WriteResponse, error) {
	k, _, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	return s.write(ctx, &structs.JobStableCommand{Namespace: k.Namespace, JobID: k.ID, Version: req.Version, Stable: req.Stable})
}

func (s *Set) jobTag(ctx context.Context, c *rpc.Call, req *methods.JobTagRequest) (*methods.WriteResponse, error) {
	k, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	cmd := &structs.JobTagCommand{Namespace: k.Namespace, JobID: k.ID, Name: req.Name}
	if !req.Unset {
		if req.Name == "" || len(req.Name) > 128 || len(req.Description) > 1000 {
			return nil, structs.Errorf(structs.CodeInvalid, "a tag has a name of 1 to 128 characters and a description of at most 1,000")
		}
		cmd.Version = j.Version
		if req.Version != nil {
			cmd.Version = *req.Version
		}
		cmd.Tag = &structs.JobVersionTag{Name: req.Name, Description: req.Description}
	}
	return s.write(ctx, cmd)
}

// jobDispatch launches a child of a parameterized job.
func (s *Set) jobDispatch(ctx context.Context, c *rpc.Call, req *methods.JobDispatchRequest) (*methods.JobDispatchResponse, error) {
	k, parent, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	if !parent.IsParameterized() {
		return nil, structs.Errorf(structs.CodeInvalid, "Specified job %q is not a parameterized job", k.ID)
	}
	if parent.Stop {
		return nil, structs.Errorf(structs.CodeInvalid, "Specified job %q is stopped", k.ID)
	}
	if err := checkDispatch(parent.Parameterized, req); err != nil {
		return nil, err
	}
	if err := s.mayRegister(auth.Who(ctx)); err != nil {
		return nil, err
	}
	if err := s.mayUseQueue(auth.Who(ctx), parent); err != nil {
		return nil, err
	}
	if t := req.IDPrefixTemplate; t != "" {
		if err := validName("dispatch id prefix", t, 64); err != nil {
			return nil, err
		}
	}
	now := s.env.Replica.Now().Time()
	var rnd [4]byte
	rand.Read(rnd[:])
	id := fmt.Sprintf("%s%s%d-%s", parent.ID, dispatchSuffix, now.Unix(), hex.EncodeToString(rnd[:]))
	if req.IDPrefixTemplate != "" {
		id = fmt.Sprintf("%s%s%s-%d-%s", parent.ID, dispatchSuffix, req.IDPrefixTemplate, now.Unix(), hex.EncodeToString(rnd[:]))
	}
	child := *parent
	child.ID, child.Name, child.ParentID = id, id, parent.ID
	child.Dispatched, child.DispatchIdempotencyToken = true, req.IdempotencyToken
	child.Payload = req.Payload
	child.Stop, child.Stable, child.VersionTag, child.Submitter = false, false, nil, auth.Who(ctx).By
	if req.Priority != 0 {
		if req.Priority < structs.JobPriorityMin || req.Priority > structs.JobPriorityMax {
			return nil, structs.Errorf(structs.CodeInvalid, "priority is %d; want %d to %d", req.Priority, structs.JobPriorityMin, structs.JobPriorityMax)
		}
		child.Priority = req.Priority
	}
	if err := s.NamespaceRefuses(s.published().Snapshot, &child); err != nil {
		return nil, err
	}
	child.Meta = map[string]string{}
	for key, v := range parent.Meta {
		child.Meta[key] = v
	}
	for key, v := range req.Meta {
		child.Meta[key] = v
	}
	var bad problems
	bad.texts("Dispatch meta", req.Meta)
	bad.texts("Meta of job and dispatch", child.Meta)
	if len(bad.list) > 0 {
		return nil, structs.Errorf(structs.CodeInvalid, "%s", bad.list[0])
	}
	if n := len(req.IdempotencyToken); n > 256 {
		return nil, structs.Errorf(structs.CodeInvalid, "the idempotency token has %d bytes; the limit is 256", n)
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.JobRegisterCommand{Job: &child, Eval: child.Placeable()}})
	if err != nil {
		return nil, err
	}
	resp := &methods.JobDispatchResponse{Index: res.Index, DispatchedJobID: res.ChildID, EvalID: res.EvalID, JobCreateIndex: res.SpecIndex}
	if !res.EvalID.IsZero() {
		resp.EvalIndex = res.Index
	}
	if existing := s.published().Snapshot.JobByKey(structs.JobKey{Namespace: k.Namespace, ID: res.ChildID}); existing != nil {
		resp.JobCreateIndex = existing.CreateIndex
	}
	return resp, nil
}

// checkDispatch checks a dispatch against the requirements of its job.
func checkDispatch(p *structs.Parameterized, req *methods.JobDispatchRequest) error {
	switch {
	case len(req.Payload) == 0 && p.Payload == "required":
		return structs.Errorf(structs.CodeInvalid, "Payload is not provided but required by parameterized job")
	case len(req.Payload) > 0 && p.Payload == "forbidden":
		return structs.Errorf(structs.CodeInvalid, "Payload provided but forbidden by parameterized job")
	case len(req.Payload) > PayloadMax:
		return structs.Errorf(structs.CodeTooLarge, "Payload exceeds maximum size; %d > %d", len(req.Payload), PayloadMax)
	}
	var unexpected, missing []string
	for key := range req.Meta {
		if !slices.Contains(p.MetaRequired, key) && !slices.Contains(p.MetaOptional, key) {
			unexpected = append(unexpected, key)
		}
	}
	for _, key := range p.MetaRequired {
		if _, ok := req.Meta[key]; !ok {
			missing = append(missing, key)
		}
	}
	sort.Strings(unexpected)
	sort.Strings(missing)
	if len(unexpected) > 0 {
		return structs.Errorf(structs.CodeInvalid, "Dispatch request included unpermitted metadata keys: %v", unexpected)
	}
	if len(missing) > 0 {
		return structs.Errorf(structs.CodeInvalid, "Dispatch did not provide required meta keys: %v", missing)
	}
	return nil
}

// jobPeriodicForce launches a periodic job for the current second.
func (s *Set) jobPeriodicForce(ctx context.Context, c *rpc.Call, req *methods.JobGetRequest) (*methods.JobRegisterResponse, error) {
	_, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	if !j.IsPeriodic() {
		return nil, structs.Errorf(structs.CodeInvalid, "can't force launch non-periodic job")
	}
	if err := s.mayRegister(auth.Who(ctx)); err != nil {
		return nil, err
	}
	if err := s.mayUseQueue(auth.Who(ctx), j); err != nil {
		return nil, err
	}
	launched := *j
	launched.Submitter = auth.Who(ctx).By
	if err := s.NamespaceRefuses(s.published().Snapshot, &launched); err != nil {
		return nil, err
	}
	at := structs.LogTimeOf(s.env.Replica.Now().Time().Truncate(time.Second))
	res, err := s.applyIn(ctx, replica.LanePriority, structs.Command{By: auth.Who(ctx).By, Body: duty.Launch(j, at, true)})
	if err != nil {
		return nil, err
	}
	return registered(res, nil), nil
}

// jobScale changes a group's count, or records a scaling event without a change.
func (s *Set) jobScale(ctx context.Context, c *rpc.Call, req *methods.JobScaleRequest) (*methods.JobRegisterResponse, error) {
	k, j, err := s.jobOf(c, req.JobID)
	if err != nil {
		return nil, err
	}
	if req.Count != nil {
		if err := s.mayRegister(auth.Who(ctx)); err != nil {
			return nil, err
		}
		if err := s.mayUseQueue(auth.Who(ctx), j); err != nil {
			return nil, err
		}
	}
	switch {
	case req.Group == "" || j.Group(req.Group) == nil:
		return nil, structs.Errorf(structs.CodeInvalid, "task group %q specified for scaling does not exist in job", req.Group)
	case req.Count != nil && *req.Count < 0:
		return nil, structs.Errorf(structs.CodeInvalid, "scaling action count can't be negative")
	case req.Count != nil && req.Error:
		return nil, structs.Errorf(structs.CodeInvalid, "scaling action should not contain count if error is true")
	case req.Count == nil && req.Message == "" && !req.Error:
		return nil, structs.Errorf(structs.CodeInvalid, "a scaling action needs a count or a message")
	case len(req.Message) > 4096 || len(req.Meta) > 64<<10:
		return nil, structs.Errorf(structs.CodeTooLarge, "the message of a scaling action has at most 4,096 bytes, its meta 65,536")
	case req.Count != nil && (j.Type == structs.JobSystem || j.Type == structs.JobSysBatch) && *req.Count > 1:
		return nil, structs.Errorf(structs.CodeInvalid, "%s jobs can only be scaled between 0 and 1", j.Type)
	}
	res, err := s.apply(ctx, structs.Command{By: auth.Who(ctx).By, Body: &structs.ScaleCommand{
		Namespace: k.Namespace, JobID: k.ID, Group: req.Group, Count: req.Count, EnforceIndex: req.EnforceIndex, SpecIndex: req.JobModifyIndex,
		Event: structs.ScalingEvent{Message: req.Message, Error: req.Error, Meta: req.Meta},
	}})
	if err != nil {
		return nil, err
	}
	return registered(res, nil), nil
}
