package runner

import (
	"fmt"
	"strconv"
	"time"

	"github.com/muster-sched/muster/client/driver"
	"github.com/muster-sched/muster/structs"
)

// The types of task events, as Nomad's clients know them.
const (
	EventReceived       = "Received"
	EventSetup          = "Task Setup"
	EventSetupFailure   = "Setup Failure"
	EventValidation     = "Failed Validation"
	EventDriver         = "Driver"
	EventArtifacts      = "Downloading Artifacts"
	EventTemplate       = "Template"
	EventIdentity       = "Identity"
	EventDriverFailure  = "Driver Failure"
	EventStarted        = "Started"
	EventTerminated     = "Terminated"
	EventRestarting     = "Restarting"
	EventNotRestarting  = "Not Restarting"
	EventRestartSignal  = "Restart Signaled"
	EventGang           = "Gang Changed"
	EventSignaling      = "Signaling"
	EventKilling        = "Killing"
	EventKilled         = "Killed"
	EventSiblingFailed  = "Sibling Task Failed"
	EventLeaderDead     = "Leader Task Dead"
	EventMainDead       = "Main Tasks Dead"
	EventDisk           = "Disk Resources Exceeded"
	EventGPUMemory      = "GPU Memory Exceeded"
	EventGPUWait        = "GPU Memory Held"
	EventRecovered      = "Reattached"
	EventWaitingShut    = "Waiting for shutdown delay"
	EventCheckpoint     = "Checkpoint"
	EventServices       = "Services"
	EventRDMA           = "RDMA"
	EventSuspended      = "Suspended"
	EventResumed        = "Resumed"
	detailRestartReason = "restart_reason"
)

// event makes an event with a human-readable message. details are pairs of key and value.
func event(kind, message string, details ...string) structs.TaskEvent {
	e := structs.TaskEvent{Type: kind, Time: now(), Message: message}
	if len(details) > 0 {
		e.Details = make(map[string]string, len(details)/2)
		for i := 0; i+1 < len(details); i += 2 {
			e.Details[details[i]] = details[i+1]
		}
	}
	return e
}

func now() structs.LogTime { return structs.LogTimeOf(time.Now()) }

func failing(e structs.TaskEvent) structs.TaskEvent {
	e.Fails = true
	return e
}

func terminated(res *driver.ExitResult) structs.TaskEvent {
	msg := "Exit Code: " + strconv.Itoa(res.ExitCode)
	if res.Signal != 0 {
		msg += ", Signal: " + strconv.Itoa(res.Signal)
	}
	if res.OOMKilled {
		msg += ", Exit Message: \"OOM Killed\""
	}
	if res.Err != "" {
		msg += fmt.Sprintf(", Exit Message: %q", res.Err)
	}
	e := event(EventTerminated, msg,
		"exit_code", strconv.Itoa(res.ExitCode), "signal", strconv.Itoa(res.Signal), "oom_killed", strconv.FormatBool(res.OOMKilled))
	if res.Err != "" {
		e.Details["exit_message"] = res.Err
	}
	if res.LostStatus {
		e.Details["lost"] = "true"
	}
	e.ExitCode, e.Signal = int64(res.ExitCode), int64(res.Signal)
	if !res.EndedAt.IsZero() {
		e.Time = structs.LogTimeOf(res.EndedAt)
	}
	return e
}

func restarting(delay time.Duration, reason string) structs.TaskEvent {
	return event(EventRestarting, fmt.Sprintf("%s - Task restarting in %s", reason, delay.Round(time.Millisecond)),
		detailRestartReason, reason, "start_delay", strconv.FormatInt(int64(delay), 10))
}

// killing describes how a task is killed, and also why if the request was a plain kill.
func killing(timeout time.Duration, why structs.TaskEvent) structs.TaskEvent {
	e := event(EventKilling, fmt.Sprintf("Sent interrupt. Waiting %s before force killing", timeout), "kill_timeout", timeout.String())
	if why.Type == EventKilling {
		e.Details["kill_reason"] = why.Message
		e.Fails = why.Fails
	}
	return e
}
