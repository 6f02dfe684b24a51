package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/nomadlike/wire"
)

func newNodeIntro(e *env) *cobra.Command {
	return e.group("intro", "Tokens by which new nodes register", "", `muster node intro create -node-name gpu-17`, newNodeIntroCreate)
}

type nodeIntroOptions struct {
	*env
	form       format
	name, pool string
	ttl        time.Duration
}

func newNodeIntroCreate(e *env) *cobra.Command {
	o := &nodeIntroOptions{env: e}
	c := e.verb("create [options]", "Make a token for the first registration of one node", `Make a token by which one new node may register, where ACLs are on and TLS is off. Put it into client { intro_token = "..." } of
the new agent. It is used up by the registration; after that the node proves itself by its own secret.`, `
muster node intro create
muster node intro create -node-name gpu-17 -node-pool training -ttl 10m`, 0, 0, o.run)
	o.form.flags(c)
	c.Flags().StringVar(&o.name, "node-name", "", "name of the node that may use the token; any if empty")
	c.Flags().StringVar(&o.pool, "node-pool", "", "pool of the node that may use the token; any if empty")
	c.Flags().DurationVar(&o.ttl, "ttl", 0, "time within which the token must be used, at most 24h; 30m if 0")
	return c
}

func (o *nodeIntroOptions) run(ctx context.Context, _ []string) error {
	a, err := o.api()
	if err != nil {
		return err
	}
	var resp wire.IntroductionResponse
	body := wire.IntroductionRequest{TTL: o.ttl, NodeName: o.name, NodePool: o.pool}
	if _, err := a.put(ctx, "/v1/acl/identity/client-introduction-token", nil, &body, &resp); err != nil {
		return fmt.Errorf("make an introduction token: %w", err)
	}
	if done, err := o.form.done(o.env, &resp); done || err != nil {
		return err
	}
	o.println(resp.JWT)
	return nil
}
