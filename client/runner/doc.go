// Package runner runs one allocation on a node: its hooks, the order of its tasks, and each task through start, wait,
// restart and kill. A Runner and everything in it survive the death of the agent: what must be remembered is in a
// state.Store before it matters, and a Runner made from the record goes on where the last one was.
//
//	task:  new -> starting -> (running) -> backoff -> starting ...
//	                              \-> dead
//
// Threads: one goroutine per allocation (Runner.Run, the coordinator) and one per started task (task.run). The
// coordinator decides which tasks may start and which must end; the task's goroutine alone talks to the driver about
// starting, waiting and stopping.
package runner
