package main

import "github.com/spf13/cobra"

func newJob(e *env) *cobra.Command {
	return e.group("job", "Submit jobs and look at them",
		"Submit jobs, look at them, change and stop them.", `
muster job init                      # write an example job file
muster job plan example.muster.hcl   # what would happen
muster job run example.muster.hcl    # submit it and follow it
muster job status example            # how it is
muster job why example               # why it waits`,
		newJobInit, newJobValidate, newJobPlan, newJobRun, newJobStatus, newJobWait, newJobWhy, newEff, newJobAllocs, newJobLogs, newJobExec, newJobStop, newJobStart, newJobRestart,
		newJobHistory, newJobRevert, newJobInspect, newJobScale, newJobDispatch, newJobEval, newJobHold, newJobRelease, newJobSuspend, newJobResume, newJobRequeue, newJobRetry, newJobPriority, newJobCheckpoint, newJobPeriodic, newJobTag,
		newJobDeployments, newJobPromote)
}
