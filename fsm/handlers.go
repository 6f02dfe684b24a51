package fsm

import (
	"github.com/muster-sched/muster/fsm/state"
	"github.com/muster-sched/muster/structs"
)

// stateVersion is the format of the state that this version of the program keeps.
const stateVersion = state.Version

// handlers carries out each type of command.
var handlers map[structs.CommandType]handler

func init() { // not a literal, because applyBatch refers to the table
	handlers = map[structs.CommandType]handler{
		structs.CmdJobRegister:     applyJobRegister,
		structs.CmdJobDeregister:   applyJobDeregister,
		structs.CmdJobStable:       applyJobStable,
		structs.CmdJobTag:          applyJobTag,
		structs.CmdEvalUpsert:      applyEvalUpsert,
		structs.CmdPlan:            applyPlan,
		structs.CmdNodeRegister:    applyNodeRegister,
		structs.CmdNodePurge:       applyNodePurge,
		structs.CmdNodeStatus:      applyNodeStatus,
		structs.CmdNodeEligibility: applyNodeEligibility,
		structs.CmdNodeDrain:       applyNodeDrain,
		structs.CmdNodeTaint:       applyNodeTaint,
		structs.CmdAllocObserved:   applyAllocObserved,
		structs.CmdAllocTransition: applyAllocTransition,
		structs.CmdPoolUpsert:      applyPoolUpsert,
		structs.CmdPoolDelete:      applyPoolDelete,
		structs.CmdNamespaceUpsert: applyNamespaceUpsert,
		structs.CmdNamespaceDelete: applyNamespaceDelete,
		structs.CmdPolicyUpsert:    applyPolicyUpsert,
		structs.CmdPolicyDelete:    applyPolicyDelete,
		structs.CmdTokenUpsert:     applyTokenUpsert,
		structs.CmdTokenDelete:     applyTokenDelete,
		structs.CmdACLBootstrap:    applyACLBootstrap,
		structs.CmdRoleUpsert:      applyRoleUpsert,
		structs.CmdRoleDelete:      applyRoleDelete,
		structs.CmdOneTimeUpsert:   applyOneTimeUpsert,
		structs.CmdOneTimeDelete:   applyOneTimeDelete,
		structs.CmdSchedulerConfig: applySchedulerConfig,
		structs.CmdAutopilotConfig: applyAutopilotConfig,
		structs.CmdPeriodicLaunch:  applyPeriodicLaunch,
		structs.CmdScale:           applyScale,
		structs.CmdCollect:         applyCollect,
		structs.CmdClusterInit:     applyClusterInit,
		structs.CmdRestored:        applyRestored,
		structs.CmdSigningKey:      applySigningKey,
		structs.CmdNodeEvent:       applyNodeEvent,
		structs.CmdEvalDelete:      applyEvalDelete,
		structs.CmdBatch:           applyBatch,
		structs.CmdPlans:           applyPlans,
		structs.CmdWorkload:        applyWorkload,
		structs.CmdRoster:          applyRoster,
		structs.CmdAcctCollect:     applyAcctCollect,
		structs.CmdQueueUpsert:     applyQueueUpsert,
		structs.CmdQueueDelete:     applyQueueDelete,
		structs.CmdReserve:         applyReserve,
		structs.CmdUnreserve:       applyUnreserve,
		structs.CmdQuotaUpsert:     applyQuotaUpsert,
		structs.CmdQuotaDelete:     applyQuotaDelete,
		structs.CmdVariableSet:     applyVariableSet,
		structs.CmdVariableDelete:  applyVariableDelete,
		structs.CmdSealKey:         applySealKey,
		structs.CmdServiceDelete:   applyServiceDelete,
		structs.CmdJobPriority:     applyJobPriority,
		structs.CmdSealRekey:       applySealKey,
		structs.CmdSealKeyDelete:   applySealKeyDelete,
		structs.CmdVariableReseal:  applyVariableReseal,
		structs.CmdSuspend:         applySuspend,
	}
}
