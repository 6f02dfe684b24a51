package gpu

import "fmt"

// XIDAction is the effect of an error number on its GPU.
type XIDAction int

// The actions. The GPU's own counters and the driver's recovery requests count in addition.
const (
	XIDQuarantine XIDAction = iota // the GPU takes no new work for a while: the default of unknown numbers
	XIDDegrade                     // it takes work and is reported as degraded
	XIDProgram                     // a program's fault: only the tasks on the GPU get an event
	XIDIgnore                      // only in the agent's log and in the metrics
)

// recoveryXID announces that the driver's recovery request has changed; the next sample has it.
const recoveryXID = 154

// xidActions are the defaults: errors that programs cause, and errors that the device has handled.
var xidActions = map[int64]XIDAction{
	13: XIDProgram, 31: XIDProgram, 43: XIDProgram, 45: XIDProgram, 68: XIDProgram, 109: XIDProgram, recoveryXID: XIDProgram,
	63: XIDDegrade, 92: XIDDegrade, 94: XIDDegrade,
}

// xidFailures are the errors that no program causes: of the GPU's memory, firmware, NVLink and bus. Other numbers that
// quarantine, such as unknown ones, may be a program's, and so do not count against the node.
var xidFailures = map[int64]bool{48: true, 61: true, 62: true, 64: true, 74: true, 79: true, 95: true, 119: true, 120: true, 140: true}

// xidNames are the common ones.
var xidNames = map[int64]string{
	13: "graphics engine exception", 31: "memory page fault", 43: "the GPU stopped processing", 45: "preemptive cleanup", 68: "video processor exception",
	109: "context switch timeout", 48: "double-bit memory error", 61: "internal microcontroller halt", 62: "internal microcontroller halt", 63: "memory row remapped",
	64: "memory row remapping failed", 74: "NVLink error", 79: "fell off the bus", 92: "many single-bit memory errors",
	94: "contained memory error", 95: "uncontained memory error", 119: "GSP timeout", 120: "GSP error", 140: "unrecovered memory error",
}

func xidText(code int64) string {
	if n := xidNames[code]; n != "" {
		return fmt.Sprintf("XID %d (%s)", code, n)
	}
	return fmt.Sprintf("XID %d", code)
}

// xidAction returns the action of an error: the operator's, or the default.
func (c *Config) xidAction(code int64) XIDAction {
	if a, ok := c.XIDs[code]; ok {
		return a
	}
	return xidActions[code]
}

// xidFails reports whether an error is a failure of the GPU itself: by default, or because the operator lists it as one that
// quarantines. Other lists of the operator say that it is not.
func (c *Config) xidFails(code int64) bool {
	if a, ok := c.XIDs[code]; ok {
		return a == XIDQuarantine
	}
	return xidFailures[code]
}
