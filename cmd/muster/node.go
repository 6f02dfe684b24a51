package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newNode(e *env) *cobra.Command {
	return e.group("node", "Look at nodes and take them in and out of service", "", `
muster node status
muster node status -self
muster node drain -enable -deadline 30m 46f1c6c4
muster node eligibility -disable 46f1c6c4
muster node taint 46f1c6c4 team=nlp:no-schedule`,
		newNodeStatus, newNodeDrain, newNodeEligibility, newNodeTaint, newNodePurge, newNodePool, newNodeMeta, newNodeIntro)
}

type nodeEligibilityOptions struct {
	*env
	form                  format
	enable, disable, self bool
}

func newNodeEligibility(e *env) *cobra.Command {
	o := &nodeEligibilityOptions{env: e}
	c := e.verb("eligibility [options] NODE", "Let a node get new work, or not", "Let a node get new work, or not. Running allocations continue.", `
muster node eligibility -disable 46f1c6c4
muster node eligibility -enable -self`, 0, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.enable, "enable", false, "it gets new work")
	c.Flags().BoolVar(&o.disable, "disable", false, "it gets no new work")
	c.Flags().BoolVar(&o.self, "self", false, "the agent's own node")
	return c
}

func (o *nodeEligibilityOptions) run(ctx context.Context, args []string) error {
	if o.enable == o.disable {
		return errors.New("give -enable or -disable")
	}
	arg, err := oneOrSelf(args, o.self)
	if err != nil {
		return err
	}
	a, err := o.api()
	if err != nil {
		return err
	}
	n, err := a.node(ctx, arg, o.self)
	if err != nil {
		return err
	}
	req := wire.NodeUpdateEligibilityRequest{NodeID: n.ID, Eligibility: "ineligible"}
	if o.enable {
		req.Eligibility = "eligible"
		if n.DrainStrategy != nil {
			return fmt.Errorf("node %q is draining and cannot be made eligible: end that first with  muster node drain -disable %s", n.Name, shortID(n.ID, false))
		}
	}
	var resp wire.NodeUpdateResponse
	if _, err := a.put(ctx, "/v1/node/"+n.ID+"/eligibility", nil, req, &resp); err != nil {
		return fmt.Errorf("set eligibility of node %q: %w", n.Name, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Node %q scheduling eligibility set: %s for scheduling\n", n.ID, req.Eligibility)
	return nil
}

type nodePurgeOptions struct {
	*env
	form format
	yes  bool
}

func newNodePurge(e *env) *cobra.Command {
	o := &nodePurgeOptions{env: e}
	c := e.verb("purge [options] NODE", "Forget a node", "Forget a node that does not come back. What ran there is placed elsewhere. A node that is alive registers again.", `
muster node purge 46f1c6c4
muster node purge -yes old-gpu-07`, 1, 1, o.run)
	o.form.flags(c)
	c.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return c
}

func (o *nodePurgeOptions) run(ctx context.Context, args []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	n, err := a.node(ctx, args[0], false)
	if err != nil {
		return err
	}
	blast, sure, err := o.blast(ctx, a, n.ID)
	if err != nil {
		return err
	}
	if err := sure(ctx, o.yes, "Forget node %q (%s, %s), which has %s?", n.Name, shortID(n.ID, false), n.Status, blast); err != nil {
		return err
	}
	var resp wire.NodePurgeResponse
	if _, err := a.put(ctx, "/v1/node/"+n.ID+"/purge", nil, nil, &resp); err != nil {
		return fmt.Errorf("purge node %q: %w", n.Name, err)
	}
	if done, err := o.form.done(o.env, resp); done || err != nil {
		return err
	}
	o.printf("Node %q purged\n", n.ID)
	return nil
}

// blast describes what the loss of a node would affect: live allocations, their GPUs and jobs. sure is how to ask: a
// node without any needs no -yes where there is no terminal.
func (e *env) blast(ctx context.Context, a *api, nodeID string) (what string, sure func(ctx context.Context, yes bool, question string, args ...any) error, err error) {
	var allocs []*wire.Allocation
	if _, err := a.get(ctx, "/v1/node/"+nodeID+"/allocations", nil, &allocs); err != nil {
		return "", nil, err
	}
	live, gpus, jobs, users := int64(0), int64(0), map[string]bool{}, map[string]bool{}
	for _, al := range allocs {
		if al.ClientStatus != "running" && al.ClientStatus != "pending" {
			continue
		}
		live++
		jobs[al.Namespace+"/"+al.JobID] = true
		if al.Job != nil && al.Job.Submitter != nil && al.Job.Submitter.Name != "" {
			users[al.Job.Submitter.Name] = true
		}
		if al.AllocatedResources != nil {
			for _, t := range al.AllocatedResources.Tasks {
				for _, d := range t.Devices {
					if d.Type == "gpu" {
						gpus += int64(len(d.DeviceIDs))
					}
				}
			}
		}
	}
	s := plural(live, "live allocation")
	if gpus > 0 {
		s += " with " + plural(gpus, "GPU")
	}
	if live > 0 {
		s += " of " + plural(int64(len(jobs)), "job")
	}
	if len(users) > 0 {
		s += " (" + strings.Join(sortedKeys(users), ", ") + ")"
	}
	if live == 0 {
		return s, e.ask, nil
	}
	return s, e.confirm, nil
}
