// Command muster is the whole of Muster: agent, command line and the small processes that agents start.
package main

import (
	"os"

	"github.com/muster-sched/muster/client/artifact"
	"github.com/muster-sched/muster/client/gpu"
	"github.com/muster-sched/muster/client/ranks"
	"github.com/muster-sched/muster/client/supervisor"
	"github.com/muster-sched/muster/nomadlike/jobspec"
)

func main() {
	supervisor.MaybeRun()    // hidden verbs: the supervisor of a node and the first stage of a task
	ranks.MaybeRun()         // hidden verb: the ranks of a task
	gpu.MaybeRun()           // hidden verb: ask the NVIDIA driver
	jobspec.MaybeRunChild()  // hidden verb: parse a job file under limits
	artifact.MaybeRunChild() // hidden verb: fetch an artifact for a task
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}
