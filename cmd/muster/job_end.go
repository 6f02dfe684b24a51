package main

import (
	"fmt"
	"time"

	"github.com/muster-sched/muster/nomadlike/wire"
	"github.com/muster-sched/muster/structs"
)

// jobState is the state of a job in one or two words: of one that has ended, how. A Nomad state "dead" says neither.
func jobState(j *wire.JobListStub) string {
	if j.Status != "dead" {
		if j.Stop {
			return j.Status + " (stopped)"
		}
		return j.Status
	}
	switch e := j.End; {
	case e == nil && j.Stop:
		return "stopped"
	case e == nil && failures(j) > 0:
		return "failed"
	case e == nil, e.Exit == structs.ExitSuccess:
		return "complete"
	case e.Exit == structs.ExitStopped:
		return "stopped"
	case e.Exit == structs.ExitFailed && e.ExitCode != 0:
		return fmt.Sprintf("failed (exit %d)", e.ExitCode)
	case e.Exit == structs.ExitFailed, e.Exit == structs.ExitLost, e.Exit == structs.ExitPreempted:
		return e.Exit
	default:
		return fmt.Sprintf("failed (%s)", e.Exit)
	}
}

// sumOf adds up the summaries of a job's groups.
func sumOf(j *wire.JobListStub) (n wire.TaskGroupSummary) {
	if j.JobSummary == nil {
		return n
	}
	for _, g := range j.JobSummary.Summary {
		n.Queued, n.Starting, n.Running, n.Unknown = n.Queued+g.Queued, n.Starting+g.Starting, n.Running+g.Running, n.Unknown+g.Unknown
		n.Failed, n.Complete, n.Lost = n.Failed+g.Failed, n.Complete+g.Complete, n.Lost+g.Lost
	}
	return n
}

// failures counts the allocations of a job that failed or were lost.
func failures(j *wire.JobListStub) int {
	n := sumOf(j)
	return n.Failed + n.Lost
}

// endCode returns the exit code that stands for how a job ended.
func endCode(j *wire.JobListStub) int {
	switch e := j.End; {
	case e == nil && !j.Stop && failures(j) == 0, e != nil && e.Exit == structs.ExitSuccess:
		return exitOK
	case e != nil && e.Exit == structs.ExitFailed && e.ExitCode > 0 && e.ExitCode < 256:
		return int(e.ExitCode)
	}
	return exitFailed
}

// endText says how a job ended and how long ago.
func endText(j *wire.JobListStub, now time.Time) string {
	text := jobState(j)
	if j.StatusDescription != "" {
		text += ": " + j.StatusDescription
	}
	if j.End != nil {
		if took := time.Duration(j.End.Time - j.SubmitTime); took > 0 {
			text += fmt.Sprintf(", %s after it was submitted", span(took))
		}
	}
	return text
}
