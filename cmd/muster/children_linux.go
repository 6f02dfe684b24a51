package main

import (
	"github.com/muster-sched/muster/client/artifact"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/ranks"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/cmd/agent"
	"github.com/muster-sched/muster/nomadlike/jobspec"
)

// maybeChild runs the small processes that an agent starts, of this program under hidden verbs. It returns if this is none.
func maybeChild() {
	supervisor.MaybeRun(agent.RemoveTemp) // the supervisor of a node and the first stage of a task
	ranks.MaybeRun()                      // the ranks of a task
	gpu.MaybeRun()                        // ask the NVIDIA driver
	jobspec.MaybeRunChild()               // parse a job file under limits
	artifact.MaybeRunChild()              // fetch an artifact for a task
}
