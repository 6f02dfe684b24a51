package notify

import (
	"context"
	"fmt"
	"strconv"

	"github.com/muster-sched/muster/client/runner"
)

// Command is a Target that runs a program of the operator with the notice in its environment. A failed run is not
// repeated.
type Command struct{ Program *runner.Command }

// Name implements Target.
func (c *Command) Name() string { return "command " + c.Program.Argv[0] }

// Deliver implements Target.
func (c *Command) Deliver(ctx context.Context, n Notice) error {
	out, err := c.Program.Run(ctx,
		"MUSTER_HOOK="+n.Kind, "MUSTER_NOTICE_ID="+n.ID, "MUSTER_STATE="+n.State, "MUSTER_SCOPE="+n.Scope,
		"MUSTER_THRESHOLD="+strconv.Itoa(n.Threshold), "MUSTER_PERCENT="+strconv.Itoa(n.Percent), "MUSTER_USED_MIB="+strconv.FormatInt(n.UsedMiB, 10),
		"MUSTER_TOTAL_MIB="+strconv.FormatInt(n.TotalMiB, 10), "MUSTER_GPU="+n.GPU, "MUSTER_NODE_ID="+n.NodeID, "MUSTER_NODE_NAME="+n.NodeName,
		"MUSTER_ALLOC_ID="+n.AllocID, "MUSTER_NAMESPACE="+n.Namespace, "MUSTER_JOB_ID="+n.JobID, "MUSTER_GROUP_NAME="+n.Group, "MUSTER_TASK_NAME="+n.Task)
	if err != nil && out != "" {
		return fmt.Errorf("%w: %s", err, out)
	}
	return err
}
