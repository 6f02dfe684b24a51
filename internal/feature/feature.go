// Package feature declares the versions that this build speaks, and the gates: what servers may write only when every
// server of the cluster understands it (ADR 0024).
//
// A cluster has a format in force (structs.ClusterMeta.Format). The leader writes no command, no field and no table that
// is newer. A new cluster starts with the newest format that all its servers speak; `muster operator upgrade finish`
// raises it.
package feature

import (
	"fmt"

	"github.com/muster-sched/muster/internal/version"
	"github.com/muster-sched/muster/structs"
)

// The formats that this build reads and writes. Newest rises by one for the first gate after a release; Oldest rises
// only when no supported upgrade path needs the old format any more.
const (
	Oldest structs.Format = 1
	Newest structs.Format = 2
)

// RPC is the version of the calls between agents. Servers and agents accept callers with a version one lower or one
// higher. Unknown fields of requests and responses are ignored, so only a change of meaning raises it.
const RPC = 1

// Gate is one thing that needs a format. Commands, tables and the code of Apply refer to it; fields of commands carry
// the number of the format in the tag `since`.
type Gate struct {
	Name   string         // for users, as in `muster operator upgrade status`
	Format structs.Format // in which it works
	Allows string         // what users can do then
}

// The gates. A gate of a field is only listed: the field has its format as a tag. So is one of a value: its type has the method Since.
var (
	// QueueBorrowing is the fields Borrow and Lend of queues.
	QueueBorrowing = Gate{Name: "queue-borrowing", Format: 2, Allows: "Queues can limit what they borrow from others and what they lend."}
	// QueueLimits is the fields Ends and PriorityMax of queues.
	QueueLimits = Gate{Name: "queue-limits", Format: 2, Allows: "Queues can count on the time limits of their work alone, and limit its priority."}
	// PriorityDefaults is the fields PriorityDefault of queues and DefaultPriority of namespaces.
	PriorityDefaults = Gate{Name: "priority-defaults", Format: 2, Allows: "Queues and namespaces can have a default priority."}
	// UserPriorities is the fields UserPriorityMax and UserPriorityDefault of queues.
	UserPriorities = Gate{Name: "user-priorities", Format: 2, Allows: "Queues can have a highest and a default priority for the jobs of particular submitters."}
	// QueueBudgets is the fields GPUHoursMax, GPUHoursUserMax and GPUHoursPeriod of queues.
	QueueBudgets = Gate{Name: "queue-budgets", Format: 2, Allows: "Queues can have budgets of GPU hours by day, week or month."}
	// QueueUserLimits is the field UserLimit of queues.
	QueueUserLimits = Gate{Name: "queue-user-limits", Format: 2, Allows: "Queues can limit what each submitter holds."}
	// ModelLimits is the fields LimitModels, UserLimitModels and SoftLimitModels of queues, HardModels and SoftModels of
	// quotas, and ByModel and Models of usage.
	ModelLimits = Gate{Name: "gpu-model-limits", Format: 2, Allows: "Queues and quotas can limit the GPUs of a model."}
	// LotteryDraws is the field Draw of usage, which a cluster with the order lottery keeps.
	LotteryDraws = Gate{Name: "lottery-draws", Format: 2, Allows: "A draw of the order lottery holds until work starts, so that `muster queue` shows what was drawn."}
	// DecisionReasons is the fields Policy, Reason, Actor and Victims of the decision log.
	DecisionReasons = Gate{Name: "decision-reasons", Format: 2, Allows: "The decision log keeps the policy, the reason, the submitter and who was preempted."}
	// DecisionActors is the field By of evaluations and of records of drains.
	DecisionActors = Gate{Name: "decision-actors", Format: 2, Allows: "The decision log names who stopped, drained, held, scaled or changed the priority of work, where that was not its submitter."}
	// DecisionLoss is the field Lost of the victims in the decision log.
	DecisionLoss = Gate{Name: "decision-loss", Format: 2, Allows: "The decision log has the GPU-seconds that each preempted job lost."}
	// QueueLosses is the field Lost of preemptions.
	QueueLosses = Gate{Name: "queue-losses", Format: 2, Allows: "The GPU time that each queue loses by preemptions, drains and lost nodes is counted."}
	// DecisionSuspensions is structs.DecidedSuspend and DecidedResume in the decision log, and the field Saving of its victims.
	DecisionSuspensions = Gate{Name: "decision-suspensions", Format: 2, Allows: "The decision log has the suspensions of running work, and how many of the preempted allocations save their state first."}
	// FairWeek is structs.HalfLifeDefault in place of a day.
	FairWeek = Gate{Name: "fair-share-week", Format: 2, Allows: "Fair share remembers use with a half-life of a week where queues set none."}
	// GangResizes is the field Resizes of rosters, and structs.DecidedResize in the decision log.
	GangResizes = Gate{Name: "gang-resizes", Format: 2, Allows: "Resizes of elastic gangs are counted, shown and kept in the decision log."}
	// TopologyLevels is the field TopologyLevels of the scheduler configuration.
	TopologyLevels = Gate{Name: "topology-levels", Format: 2, Allows: "Operators can declare the levels of the network in which gangs are placed."}
	// GPUAdapters is the field Adapters of devices.
	GPUAdapters = Gate{Name: "gpu-adapters", Format: 2, Allows: "Jobs can ask for GPUs that are near an RDMA adapter."}
	// EventSaved is the event structs.EventSaved in refusals.
	EventSaved = Gate{Name: "checkpoint-unblocks", Format: 2, Allows: "A new checkpoint of running work unblocks jobs that waited because preempting it would have lost too much."}
	// JointJobs is the field Joint of groups.
	JointJobs = Gate{Name: "joint-jobs", Format: 2, Allows: "The groups of an all_at_once job are preempted, fail and start again as one."}
	// GangCheckpoints is the field Checkpoint of rosters, and Members of checkpoint blocks.
	GangCheckpoints = Gate{Name: "gang-checkpoints", Format: 2, Allows: "A gang's checkpoint counts when all members have written theirs."}
	// SaveTimes is the field Took of checkpoints.
	SaveTimes = Gate{Name: "checkpoint-times", Format: 2, Allows: "Saves are timed, and as many have their turn at a time as their storage serves."}
	// RestoreTimes is the field Epoch of structs.RestoredCommand.
	RestoreTimes = Gate{Name: "restore-times", Format: 2, Allows: "Nodes follow a new cluster that was restored from a snapshot of theirs, also where they have seen more of the old one."}
	// AcctLosses is the fields AllocTime and Lost of accounting records.
	AcctLosses = Gate{Name: "accounting-losses", Format: 2, Allows: "Accounting counts the allocations that were lost with their node, and `job plan` says what interruptions are expected to cost."}
	// ReadyPeriods is the field Periods of nodes.
	ReadyPeriods = Gate{Name: "ready-periods", Format: 2, Allows: "The times during which each node was ready, and its losses, are remembered for 30 days: `job plan` and `node status` say how reliable a node is."}
	// GPUFaults is the field GPUFaults of nodes, and Failed of devices.
	GPUFaults = Gate{Name: "gpu-faults", Format: 2, Allows: "A GPU that fails counts as a loss of its node: new work prefers other nodes, and `node status` says how often it happened."}
	// MoveCharges is structs.Moves in the limits that Apply respects.
	MoveCharges = Gate{Name: "move-charges", Format: 2, Allows: "What replaces an allocation on a draining node needs no more of quotas and limits than that one has, so that a used-up quota holds up no drain."}
	// UpdateDeadlines is the field UpdateFailed of jobs, and Failed of the command that marks a version as stable.
	UpdateDeadlines = Gate{Name: "update-deadlines", Format: 2, Allows: "Rolling updates respect healthy_deadline, progress_deadline and auto_revert, and versions that run healthily are marked as stable."}
	// OneRollingUpdate is that a plan's evaluation for a rolling update cancels the earlier ones.
	OneRollingUpdate = Gate{Name: "one-rolling-update", Format: 2, Allows: "A job has one pending evaluation for its rolling update, instead of one for each decision."}
	// KeptSubmitters is that a job that servers stop keeps its submitter.
	KeptSubmitters = Gate{Name: "kept-submitters", Format: 2, Allows: "A job that the servers stop, because what it depends on failed, stays the job of who submitted it."}
	// EndedGangs is the rule of gangs that cannot form because a member has ended well.
	EndedGangs = Gate{Name: "ended-gangs", Format: 2, Allows: "A gang of which a member ends while it grows or shrinks does not wait for that member for ever."}
	// ReturnedNodes is that Apply refuses to take work for lost or out of touch whose node is in touch.
	ReturnedNodes = Gate{Name: "returned-nodes", Format: 2, Allows: "Work on a node that returns while the loss of its work is being committed runs on."}
)

// Gates lists every gate of a format that is newer than Oldest.
var Gates = []Gate{QueueLimits, QueueBorrowing, PriorityDefaults, UserPriorities, QueueBudgets, QueueUserLimits, ModelLimits, LotteryDraws, DecisionReasons, DecisionActors, DecisionLoss, QueueLosses, DecisionSuspensions, FairWeek, GangResizes, TopologyLevels, GPUAdapters, EventSaved, JointJobs, GangCheckpoints, SaveTimes, RestoreTimes, AcctLosses, ReadyPeriods, GPUFaults, MoveCharges, UpdateDeadlines, OneRollingUpdate, KeptSubmitters, EndedGangs, ReturnedNodes}

// Here is what this build speaks.
func Here() structs.Speaks {
	return structs.Speaks{Muster: version.Version, Oldest: Oldest, Newest: Newest, RPC: RPC}
}

// CheckCalls returns an error unless this build understands the calls of another agent; who names it, for the sentence. An
// agent that reports no version has the first.
func CheckCalls(who string, theirs uint64) error {
	theirs = max(theirs, 1)
	if theirs+1 >= RPC && theirs <= RPC+1 {
		return nil
	}
	return structs.Errorf(structs.CodeUnprocessable, "%s speaks version %d of the calls between agents, and Muster %s speaks version %d; neighbouring releases work together: upgrade one release after the other, servers first",
		who, theirs, version.Version, RPC)
}

// UnreadableError reports data of a format that this build does not read.
type UnreadableError struct {
	What   string // the data, for example "the snapshot"
	Format structs.Format
	By     string // release of the server that raised the cluster to this format; "": unknown
}

func (e *UnreadableError) Error() string {
	here := Here()
	if e.Format < Oldest {
		return fmt.Sprintf("%s has format %d, and Muster %s reads %s: run a release that reads format %d, run `muster operator upgrade finish` there, then start this release",
			e.What, e.Format, here.Muster, here, e.Format)
	}
	run := "the release that wrote it, or a later one"
	if e.By != "" {
		run = "Muster " + e.By + " or later"
	}
	return fmt.Sprintf("%s has format %d, and this build of Muster %s reads %s: `muster operator upgrade finish` cannot be undone; run %s",
		e.What, e.Format, here.Muster, here, run)
}

// Check returns an UnreadableError unless this build reads a format.
func Check(what string, f structs.Format, by string) error {
	if Here().Reads(f) {
		return nil
	}
	return &UnreadableError{What: what, Format: f, By: by}
}
