package decide

import (
	"crypto/rand"

	"github.com/muster-sched/muster/server/broker"
	"github.com/muster-sched/muster/server/replica"
	"github.com/muster-sched/muster/structs"
)

// Speculative placement (D25). Registering a job and placing it are two log entries. Naive: decide after the first is
// committed; that costs two commits in a row. Instead the leader decides about the job while its registration is being
// written, and the plan follows it in the log. That is safe: the plan names a version and an evaluation that only this
// registration makes, and Apply refuses it if they are absent. In any unusual case (the job exists, the queue is not
// empty), and after a refusal, the job is decided after its commit. So is a job that runs on every node: a node that becomes
// ready after the decision began and before the commit has no evaluation for it, and would be left out.

// ProposeJob is Replica.Propose that also starts the decision about a new job at once.
func (s *Service) ProposeJob(lane replica.Lane, cmd structs.Command) *replica.Proposal {
	if cmd.Seed == (structs.Seed{}) {
		rand.Read(cmd.Seed[:])
	}
	d := s.decider.Load()
	c, ok := cmd.Body.(*structs.JobRegisterCommand)
	if d == nil || !ok || !s.idle(d.term) || !c.Eval || c.EnforceIndex && c.SpecIndex != 0 || c.Job == nil || !c.Job.Placeable() ||
		c.Job.Type == structs.JobSystem || c.Job.Type == structs.JobSysBatch || s.env.Replica.Published().Snapshot.JobByKey(c.Job.Key()) != nil {
		return s.env.Replica.Propose(lane, cmd)
	}
	// The plan uses the priority lane, so the registration must, too. It overtakes no waiting write, because an idle
	// server has none.
	prop := s.env.Replica.Propose(replica.LanePriority, cmd)
	select {
	case d.inbox.speculations <- speculationOf(&cmd, c):
	default: // the owner is busy, so there is nothing to gain
	}
	return prop
}

// idle reports whether the decider of a term has nothing in flight.
func (s *Service) idle(term uint64) bool {
	m := s.metrics.Load()
	return m != nil && m.Term == term && m.InFlight == 0
}

// speculationOf returns the job and the evaluation that a registration will make.
func speculationOf(cmd *structs.Command, c *structs.JobRegisterCommand) speculation {
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
	return speculation{&j, e}
}

// speculate makes a job ready if it is new and nothing is ahead of it.
func (d *decider) speculate(x speculation) {
	key := x.job.Key()
	snap := d.pub.Snapshot
	entries, queued := d.planner.Depth()
	if entries+queued+d.flight.passes > 0 || snap.JobByKey(key) != nil || len(snap.JobVersions(key)) > 0 ||
		snap.Pool(x.job.NodePool) == nil || len(snap.AllocsByJob(key)) > 0 {
		return
	}
	now := d.now()
	x.eval.CreateTime, x.eval.CreateIndex = now, d.pub.Index+1
	d.broker.Speculate(&structs.Workload{
		Namespace: key.Namespace, JobID: key.ID, Domain: x.job.NodePool, SubmitIndex: d.pub.Index + 1, SubmitTime: now,
		Priority: x.job.Priority, Queue: x.job.Queue, Held: x.job.Hold,
	}, broker.Speculation{Job: x.job, Eval: x.eval}, now)
}
