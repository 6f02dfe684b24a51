package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
)

type gpuReleaseOptions struct {
	*env
	self bool
	span time.Duration
}

func newGPURelease(e *env) *cobra.Command {
	o := &gpuReleaseOptions{env: e}
	c := e.verb("release [options] <node>", "Release a node's GPU driver for a while", "Release a node's GPU driver, so that a GPU can be reset, a MIG mode changed or the driver replaced: the agent ends the process through which it asks the driver, and starts another when the time is over. Tasks are not touched, and what was known of the GPUs stays; shares are not watched meanwhile. Drain the node first when its tasks must go.", `
muster gpu release gpu-01
muster gpu release -for 1h -self`, 0, 1, o.run)
	c.Flags().BoolVar(&o.self, "self", false, "the node of the agent that is asked")
	c.Flags().DurationVar(&o.span, "for", 10*time.Minute, "how long")
	return c
}

func (o *gpuReleaseOptions) run(ctx context.Context, args []string) error {
	arg, err := oneOrSelf(args, o.self)
	if err != nil {
		return err
	}
	if o.span <= 0 {
		return fmt.Errorf("-for must be above 0, got %s", o.span)
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	n, err := a.node(ctx, arg, o.self)
	if err != nil {
		return err
	}
	if _, err := a.put(ctx, "/v1/client/gpu/release", url.Values{"node_id": {n.ID}, "for": {o.span.String()}}, nil, nil); err != nil {
		return fmt.Errorf("release the GPU driver of node %s: %w", n.Name, err)
	}
	o.printf("Node %s lets its GPU driver go for %s\n", n.Name, o.span)
	return nil
}
