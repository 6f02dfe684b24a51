package client

import (
	"context"
	"fmt"
)

// limitPower is what runners call before a task starts that wants its GPUs held to a power limit, or nil.
func (c *Client) limitPower() func(ctx context.Context, uuid string, watts int64) error {
	if c.cfg.LimitPower == nil {
		return nil
	}
	return func(ctx context.Context, uuid string, watts int64) error {
		within, cancel := context.WithTimeout(ctx, 10*gpuWatchEvery)
		defer cancel()
		return c.cfg.LimitPower(within, uuid, watts)
	}
}

// RestoreGPUPower puts back the power limits of GPUs that no allocation here wants otherwise any more.
func (c *Client) RestoreGPUPower(ctx context.Context) error {
	if c.cfg.RestorePower == nil {
		return nil
	}
	wanted := func() map[string]bool {
		out := map[string]bool{}
		for _, r := range c.Allocs() {
			if r.Final() == nil {
				for uuid := range r.PowerLimits("") {
					out[uuid] = true
				}
			}
		}
		return out
	}
	within, cancel := context.WithTimeout(ctx, 10*gpuWatchEvery)
	defer cancel()
	if err := c.cfg.RestorePower(within, wanted); err != nil {
		return fmt.Errorf("put back power limits of GPUs: %w", err)
	}
	return nil
}
