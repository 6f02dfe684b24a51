package server

import (
	"crypto/rand"

	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Speculative placement (D25). Registering a job and placing it are two log entries. Waiting for the first before the
// second is decided costs two commits one after the other; instead the leader decides about the job while its
// registration is still being written, and the plan follows it in the log. Nothing is risked: the plan names a version
// and an evaluation that only this very registration makes, and Apply refuses it where they are absent. When anything is
// unusual (the job exists, the queue is not empty) the committed path decides, as it does after a refusal.

// speculation is a registration on its way.
type speculation struct {
	job  *structs.Job
	eval *structs.Evaluation
}

// ProposeJob is Propose for a command that registers a job: the decision about a new job begins at once.
func (s *Server) ProposeJob(lane replica.Lane, cmd structs.Command) *replica.Proposal {
	if cmd.Seed == (structs.Seed{}) {
		rand.Read(cmd.Seed[:])
	}
	p := s.decide.decider.Load()
	c, ok := cmd.Body.(*structs.JobRegisterCommand)
	if p == nil || !ok || !p.idle.Load() || !c.Eval || c.EnforceIndex && c.SpecIndex != 0 || c.Job == nil || !c.Job.Placeable() ||
		s.Published().Snapshot.JobByKey(c.Job.Key()) != nil {
		return s.Propose(lane, cmd)
	}
	// The plan goes through the priority lane, and so must what it follows. Only a server with nothing to do comes here,
	// so nobody is overtaken who would mind.
	prop := s.Propose(replica.LanePriority, cmd)
	j := *c.Job
	if j.Namespace == "" {
		j.Namespace = structs.NamespaceDefault
	}
	if j.NodePool == "" {
		j.NodePool = structs.NodePoolDefault
	}
	j.Version, j.CreateIndex, j.SpecIndex, j.Status, j.Submitter = 0, 0, 0, structs.JobPending, cmd.By
	e := &structs.Evaluation{
		ID: structs.DeriveID[structs.EvalID](cmd.Seed, "eval", j.Key().String(), 0), Namespace: j.Namespace, JobID: j.ID,
		Type: j.Type, Priority: j.Priority, Trigger: c.EvalTrigger, Status: structs.EvalPending,
	}
	if e.Trigger == "" {
		e.Trigger = structs.TriggerJobRegister
	}
	if c.EvalPriority > 0 {
		e.Priority = c.EvalPriority
	}
	select {
	case p.specs <- speculation{&j, e}:
	default: // the owner is busy: then nothing is gained by hurrying
	}
	return prop
}

// speculate makes the job ready when it is new and nothing is ahead of it.
func (p *decider) speculate(sp speculation) {
	key := sp.job.Key()
	snap := p.pub.Snapshot
	entries, queued := p.planner.Depth()
	if entries+queued+p.running > 0 || snap.JobByKey(key) != nil || len(snap.JobVersions(key)) > 0 ||
		snap.Pool(sp.job.NodePool) == nil || len(snap.AllocsByJob(key)) > 0 {
		return
	}
	now := p.now()
	sp.eval.CreateTime, sp.eval.CreateIndex = now, p.pub.Index+1
	p.broker.Speculate(&structs.Workload{
		Namespace: key.Namespace, JobID: key.ID, Domain: sp.job.NodePool, SubmitIndex: p.pub.Index + 1, SubmitTime: now,
		Priority: sp.job.Priority, Queue: sp.job.Queue, Held: sp.job.Hold,
	}, broker.Speculation{Job: sp.job, Eval: sp.eval}, now)
}
