package gpu

import "fmt"

// XIDAction is what an error of a number does to the GPU that has it.
type XIDAction int

// What errors do. What the GPU's own counters say and what the driver asks for counts besides.
const (
	XIDQuarantine XIDAction = iota // the GPU takes no new work for a while: the default of numbers that are not known
	XIDDegrade                     // it takes work, and says so
	XIDProgram                     // a program's fault: the tasks on the GPU are told, and that is all
	XIDIgnore                      // nobody is told: it is in the agent's log and in the metrics
)

// recoveryXID announces that what the driver asks for has changed; the next sample tells.
const recoveryXID = 154

// xidActions are the defaults: what programs cause, and what the device has dealt with.
var xidActions = map[int64]XIDAction{
	13: XIDProgram, 31: XIDProgram, 43: XIDProgram, 45: XIDProgram, 68: XIDProgram, 109: XIDProgram, recoveryXID: XIDProgram,
	63: XIDDegrade, 92: XIDDegrade, 94: XIDDegrade,
}

// xidNames are those that operators meet.
var xidNames = map[int64]string{
	13: "graphics engine exception", 31: "memory page fault", 43: "the GPU stopped processing", 45: "preemptive cleanup", 68: "video processor exception",
	109: "context switch timeout", 48: "double-bit memory error", 61: "internal microcontroller halt", 62: "internal microcontroller halt", 63: "memory row remapped",
	64: "memory row remapping failed", 74: "NVLink error", 79: "fell off the bus", 92: "many single-bit memory errors",
	94: "contained memory error", 95: "uncontained memory error", 119: "GSP timeout", 120: "GSP error",
}

func xidText(code int64) string {
	if n := xidNames[code]; n != "" {
		return fmt.Sprintf("XID %d (%s)", code, n)
	}
	return fmt.Sprintf("XID %d", code)
}

// xidAction returns what an error does: what the operator says of its number, or the default.
func (c *Config) xidAction(code int64) XIDAction {
	if a, ok := c.XIDs[code]; ok {
		return a
	}
	return xidActions[code]
}
