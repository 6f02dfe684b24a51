// Package runner runs one allocation on a node: its hooks, the order of its tasks, and each task through start, wait,
// restart and kill. An allocation survives the end of the agent: what must be remembered is in an agentstore.Store before
// it matters, and a Runner that is made from the record continues where the last one was.
//
// The states of a Runner are drawn in state.go, those of a task in task.go. A Runner has one goroutine while something
// changes (Runner.drive), and each started task has one (task.run). The first decides which tasks may start and which must
// end. The second alone talks to the driver about starting, waiting and stopping.
package runner
