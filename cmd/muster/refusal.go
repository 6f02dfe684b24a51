package main

import (
	"fmt"
	"slices"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/structs"
)

// refusalLine says how many nodes were refused, why, and by how much the nearest falls short.
func refusalLine(r structs.Refusal) string {
	if r.Nodes == 0 {
		return preconditionText(r)
	}
	s := plural(r.Nodes, "node") + ": " + refusedFor(r)
	if r.Short > 0 && r.Holder.Kind != structs.HolderReservation && r.Code != structs.ReasonQuota {
		s += ", short by " + r.ShortText()
		if r.Nodes > 1 {
			s += " on the nearest"
		}
	}
	return s
}

// refusedFor says why nodes cannot be used.
func refusedFor(r structs.Refusal) string {
	text := r.Text()
	if what, missing := r.Missing(); missing {
		return "without " + what + r.Hint()
	}
	switch {
	case r.Holder.Kind == structs.HolderReservation:
		return "kept by " + text
	case r.Dimension == structs.DimensionPort:
		return text + " is taken"
	case r.Dimension == structs.DimensionUnhealthyDriver:
		return "with " + text
	}
	switch r.Code {
	case structs.ReasonResources, structs.ReasonPower:
		return "too little " + text
	case structs.ReasonConstraint:
		return "excluded by constraint " + text
	case structs.ReasonNodeIneligible:
		return "not eligible (" + text + ")"
	case structs.ReasonDeviceUnhealthy:
		return "with unhealthy " + text
	case structs.ReasonFragmentation:
		return text + " left only in pieces"
	case structs.ReasonTopology:
		return "not enough " + text
	case structs.ReasonPriority:
		return "held by work of higher priority"
	case structs.ReasonQuota:
		return fmt.Sprintf("%s: its limit of %s is reached", r.Limit(), r.What())
	}
	return text
}

// gated reports whether a group waits for something unrelated to nodes.
func gated(g *nomadlike.WhyGroup) bool {
	return len(g.Refusals) > 0 && g.Considered == 0 && !slices.ContainsFunc(g.Refusals, func(r nomadlike.Refusal) bool { return r.Nodes > 0 || r.CuredBy == structs.EventNodeJoined })
}

// preconditionText describes a reason that no single node can satisfy.
func preconditionText(r structs.Refusal) string {
	switch r.Dimension {
	case structs.DimensionStandbys:
		return fmt.Sprintf("it runs, and is short of %s, for which nothing is free", r.ShortText())
	case structs.DimensionGrowth:
		text := fmt.Sprintf("it has its minimum and may grow by %s, ", r.ShortText())
		switch r.Code {
		case structs.ReasonPriority:
			if r.Count > 0 {
				return text + fmt.Sprintf("but growth restarts it: %d %s would be lost, and %d gained until its expected end", r.Count, r.Detail, r.Of)
			}
			return text + "but others come first"
		case structs.ReasonBeginTime:
			return text + "but not before " + r.Detail + ": each resize restarts it, so it waits for preempt_min_runtime after its start or last resize, and after the room became free"
		}
		return text + "for which nothing is free"
	case structs.DimensionOwnReservation:
		return r.Text() + " is reserved for it"
	case structs.DimensionPreemptCost, structs.DimensionPreemptYoung, structs.DimensionPreemptSlow:
		return r.Text() // with figures
	case structs.DimensionPreemptRate:
		return fmt.Sprintf("others would make room, but %s are limited to so many an hour", r.Text())
	case structs.DimensionRunningJobs, structs.DimensionGPUMinutes:
		return fmt.Sprintf("%s: it would exceed the cap on %s by %d", r.Limit(), r.What(), r.Short)
	case structs.DimensionGPUHours:
		return fmt.Sprintf("%s: %d of %d GPU hours are used, and with those that running jobs may still use it would exceed them by %d; a new period begins at %s", r.Limit(), r.Count, r.Of, r.Short, r.Detail)
	}
	switch r.Code {
	case structs.ReasonReservation:
		if r.Holder.Kind == structs.HolderQueue {
			return fmt.Sprintf("%s is guaranteed %s that it does not lend to work that is not preemptible: short by %s", r.Limit(), r.What(), r.ShortText())
		}
	case structs.ReasonQuota:
		return fmt.Sprintf("%s: it would exceed the limit of %s by %s", r.Limit(), r.What(), r.ShortText())
	case structs.ReasonBeginTime:
		return "it " + r.Text()
	case structs.ReasonHeld:
		return "it is " + r.Text()
	case structs.ReasonPreemptionPending:
		return fmt.Sprintf("%s (%s)", r.Text(), r.ShortText())
	case structs.ReasonGang, structs.ReasonTopology, structs.ReasonPriority, structs.ReasonDependency, structs.ReasonConstraint:
		return r.Text()
	}
	if r.Short > 0 {
		return fmt.Sprintf("%s, short by %s", r.Text(), r.ShortText())
	}
	return r.Text()
}

// slotText describes the largest free amount on one GPU; "" for none.
func slotText(r structs.Refusal) string {
	switch {
	case r.Largest <= 0:
		return ""
	case r.Unit == structs.UnitMiB:
		return "; the largest free slot is " + mib(r.Largest)
	}
	return fmt.Sprintf("; the most that is free on one GPU is %d%s", r.Largest, r.Unit)
}

// cure says what has to happen before a refusal ends; "" if nothing will. It need not be enough: a node that has the
// memory may be short of GPUs. What is known to be enough is in the advice.
func cure(r structs.Refusal) string {
	switch r.Dimension {
	case structs.DimensionSuspended:
		return "a user resumes it (muster job resume)"
	case structs.DimensionPower:
		return "work on GPUs of the pool ends, or its budget is raised (muster node pool apply -power-budget-w)"
	case structs.DimensionPowerUnknown:
		return "the pool has no budget, or their driver reports a limit"
	case structs.DimensionGrowth:
		if r.Code == structs.ReasonBeginTime || r.Count > 0 {
			return "" // the line has the time, or the figures
		}
	case structs.DimensionOwnReservation, structs.DimensionPreemptCost, structs.DimensionPreemptYoung, structs.DimensionPreemptSlow: // what cures them is not known to be enough
		return ""
	case structs.DimensionGPUHours:
		return "the new period begins, or the budget is raised (muster queue apply)"
	case structs.DimensionQueueOrder:
		return "that job starts or is gone, or the queue's backfill lets others pass (muster queue apply)"
	}
	switch r.Code {
	case structs.ReasonHeld:
		return "a user releases it (muster job release)"
	case structs.ReasonQuota:
		if r.Holder.Kind == structs.HolderQuota {
			return "others of its namespaces end, or the quota is raised (muster quota apply)"
		}
		return "others of the queue end, or its limit is raised (muster queue apply)"
	case structs.ReasonBeginTime:
		return "the time comes"
	case structs.ReasonDependency:
		return "that job gets there"
	case structs.ReasonRateLimit:
		return "an hour has passed since others made room, or preempt_rate is raised (muster queue apply)"
	case structs.ReasonGang, structs.ReasonTopology:
		if r.Unit == structs.UnitMembers {
			return plural(r.Short, "more member") + " would find a place at the same time"
		}
	case structs.ReasonPreemptionPending:
		return "they have ended"
	case structs.ReasonReservation:
		if r.Holder.Kind == structs.HolderQueue {
			return "that queue holds what it is guaranteed, others end, it lends more (muster queue apply), or the job is preemptible"
		}
		if r.Holder.Kind == structs.HolderReservation {
			return r.Text() + " is over, or deleted (muster reservation list)"
		}
		return "it ends before that (a shorter runtime.limit), or the other job has run or is gone"
	}
	return cureByEvent(r)
}

// cureByEvent says which event would provide what nodes lack.
func cureByEvent(r structs.Refusal) string {
	text := r.Text()
	switch r.Dimension {
	case structs.DimensionNear:
		return "some of them run there: " + text
	case structs.DimensionAway, structs.DimensionKeptAway:
		return "those end, or the job may lie beside them: " + text
	}
	switch r.CuredBy {
	case structs.EventAllocStopped:
		return cureByEnd(r)
	case structs.EventNodeJoined:
		return cureByNode(r)
	case structs.EventJobChanged:
		return "the job asks for less or other " + text
	}
	if c := eventCure(r.CuredBy); c != "" {
		return c + ": " + text
	}
	return ""
}

// cureByEnd says how much other work would have to release.
func cureByEnd(r structs.Refusal) string {
	where := "that node"
	if r.Nodes > 1 {
		where = fmt.Sprintf("one of those %d nodes", r.Nodes)
	}
	amount, come := fmt.Sprintf("%d %s of %s", r.Short, r.Unit, r.Text()), "comes"
	switch r.Unit {
	case structs.UnitMiB:
		amount = mib(r.Short) + " of " + r.Text()
		if r.Largest > 0 {
			return fmt.Sprintf("another %s comes free on one GPU that has %s free now, or the job asks for %s less", amount, mib(r.Largest), mib(r.Short))
		}
	case structs.UnitDevices, structs.UnitNone:
		amount = fmt.Sprintf("%d %s", r.Short, r.Text())
		if r.Short > 1 {
			come = "come"
		}
	}
	if r.Short > 0 {
		return fmt.Sprintf("another %s %s free on %s", amount, come, where)
	}
	return fmt.Sprintf("%s comes free on %s", r.Text(), where)
}

// cureByNode describes a node that would help.
func cureByNode(r structs.Refusal) string {
	if what, missing := r.Missing(); missing {
		text := "a node with " + what + " becomes ready"
		if r.Dimension == structs.DimensionMissingDriver && r.Subject == "raw_exec" { // off by default, because its tasks are not isolated
			text += "; an operator enables it on a node with plugin \"raw_exec\" { config { enabled = true } } in the agent's configuration, and restarts the agent"
		}
		if r.Dimension == structs.DimensionMissingMIG && r.Count > 0 {
			text = "an operator makes such an instance, or " + text
		}
		return text
	}
	switch {
	case r.Unit == structs.UnitMiB && r.Largest > 0:
		return fmt.Sprintf("a node with GPUs of at least %s joins, or the job asks for %s less", mib(r.Largest+r.Short), mib(r.Short))
	case r.Code == structs.ReasonNodeIneligible:
		return "a node becomes ready"
	case r.Dimension == structs.DimensionNoNode:
		return fmt.Sprintf("a node in pool %s and one of the job's datacenters becomes ready, or the job names others (muster node status lists them)", r.Subject)
	case r.Dimension == structs.DimensionTaint:
		return fmt.Sprintf("a node without %s becomes ready, or the job has a toleration { key = %q }", r.Text(), r.Subject)
	}
	return "a node with " + r.Text() + " becomes ready"
}

// cureOf is cure for a job that may never fit, even on an empty cluster: then nothing that is released would help.
func cureOf(r structs.Refusal, never bool) string {
	if never && r.CuredBy != structs.EventNodeJoined {
		return ""
	}
	return cure(r)
}

// eventCure says which event would help where a refusal has no more to say.
func eventCure(kind structs.EventKind) string {
	switch kind {
	case structs.EventNodeEligible:
		return "the node is made eligible (muster node eligibility -enable)"
	case structs.EventDeviceHealthy:
		return "a device becomes healthy"
	case structs.EventDriverHealthy:
		return "a driver becomes healthy"
	case structs.EventConfigChanged:
		return "the configuration of queue, pool or scheduler changes"
	case structs.EventTime:
		return "time passes"
	case structs.EventQueueUsage:
		return "others of the queue end, or its limit is raised"
	case structs.EventJobEnded:
		return "that job gets there"
	}
	return ""
}
