package main

import "github.com/spf13/cobra"

// commands is every verb, in the order of help.
var commands = []func(*env) *cobra.Command{
	newAgent, newJob, newAlloc, newNode, newEval, newQueue, newQuota, newReservation, newAcct, newEff, newGPU, newTop, newStatus, newRun, newShell, newRsh, newSbatch, newSrun, newSqueue, newScancel, newSinfo, newSacct, newFmt,
	newServer, newOperator, newACL, newNamespace, newVar, newService, newTLS, newConfig, newContext, newSystem,
	newSim, newMonitor, newEvent, newDeployment, newAgentInfo, newVersion, newNodesim, newReference,
	// The short forms of frequent commands.
	short(newJobPlan), short(newJobValidate), short(newJobInit), short(newJobStop), short(newJobInspect), short(newJobWhy),
	short(newAllocLogs), short(newAllocExec), short(newAllocFS),
}

// short adds a command at another level, "muster run" for "muster job run", hidden from help.
func short(add func(*env) *cobra.Command) func(*env) *cobra.Command {
	return func(e *env) *cobra.Command {
		c := add(e)
		c.Hidden = true
		return c
	}
}
