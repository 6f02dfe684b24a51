package fsm

import "github.com/muster-sched/muster/structs"

// handlers carries out each type of command.
var handlers map[structs.CommandType]handler

func init() { // not a literal: applyBatch refers to the table
	handlers = map[structs.CommandType]handler{
		structs.CmdJobRegister:     applyJobRegister,
		structs.CmdJobDeregister:   applyJobDeregister,
		structs.CmdJobStable:       applyJobStable,
		structs.CmdJobTag:          applyJobTag,
		structs.CmdEvalUpsert:      applyEvalUpsert,
		structs.CmdEvalDelete:      applyEvalDelete,
		structs.CmdPeriodicLaunch:  applyPeriodicLaunch,
		structs.CmdScale:           applyScale,
		structs.CmdPlan:            applyPlan,
		structs.CmdPlans:           applyPlans,
		structs.CmdNodeRegister:    applyNodeRegister,
		structs.CmdNodePurge:       applyNodePurge,
		structs.CmdNodeStatus:      applyNodeStatus,
		structs.CmdNodeEligibility: applyNodeEligibility,
		structs.CmdNodeDrain:       applyNodeDrain,
		structs.CmdNodeEvent:       applyNodeEvent,
		structs.CmdAllocObserved:   applyAllocObserved,
		structs.CmdAllocTransition: applyAllocTransition,
	}
}
