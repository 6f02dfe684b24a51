package gpuwatch

import (
	"context"
	"errors"
	"fmt"
)

// LimitPower sets the power limit of a GPU for a task that is about to start.
func (w *Watch) LimitPower(ctx context.Context, uuid string, watts int64) error {
	if w.cfg.Device.LimitPower == nil {
		return errors.New("this node cannot set the power limit of GPUs: the agent must run as root")
	}
	within, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	return w.cfg.Device.LimitPower(within, uuid, watts)
}

// RestorePower resets the power limit of every GPU for which no allocation wants one.
func (w *Watch) RestorePower(ctx context.Context) error {
	if w.cfg.Device.RestorePower == nil {
		return nil
	}
	wanted := func() map[string]bool {
		out := map[string]bool{}
		for _, a := range w.node.Allocs() {
			if a.Ended() {
				continue
			}
			for uuid := range a.PowerLimits("") {
				out[uuid] = true
			}
		}
		return out
	}
	within, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	if err := w.cfg.Device.RestorePower(within, wanted); err != nil {
		return fmt.Errorf("reset the power limits of GPUs: %w", err)
	}
	return nil
}

// restorePower calls RestorePower each tick. The first failure of a row is logged.
func (w *Watch) restorePower(ctx context.Context) {
	err := w.RestorePower(ctx)
	if ctx.Err() != nil || (err != nil) == w.stuck {
		return
	}
	if w.stuck = err != nil; w.stuck {
		w.log.Warn("trying again", "error", err)
	}
}
